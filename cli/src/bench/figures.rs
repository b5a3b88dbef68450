//! The figures that the project holds itself to, each with the cases that it is made of.
//!
//! Cases of one figure are timed in alternation. Times are about this crate's own kernels only, so what is asked are
//! quotients, which mean the same on any machine.

use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::DeviceProfile;
use wgpu_paged_attention::reference::max_error;
use wgpu_paged_attention::testkit::{ACCURACY, Gpu, Scenario, ScenarioSpec, Verdict};

use super::inputs::Placement;
use super::{CaseInputs, Comparison, Figure, Group, Limit, Measure, Mode, ModelShape, Op};

const HEADS: (u32, u32, u32) = (32, 8, 128);

pub fn groups(seed: u64) -> Vec<Group> {
    // The shape is within its limits.
    let shape = || ModelShape::by_name("llama-3-8b").expect("it is in the table");
    let batch = |lens: &[u32]| CaseInputs::new(shape(), lens.to_vec(), seed);
    let format = |kv_dtype| CaseInputs { kv_dtype, ..batch(&[1024; 8]) };
    let paged = |inputs: Vec<CaseInputs>| inputs.into_iter().map(|inputs| (inputs, Mode::Paged)).collect::<Vec<_>>();
    let ratio = |what: &str, over: &[usize], under: &[usize], limit| Comparison {
        what: what.to_owned(),
        measure: Measure::Ratio(over.to_vec(), under.to_vec()),
        limit: Some(limit),
    };

    // One KV head: the blocks of a sequence in order are the very memory of a contiguous one.
    let alone = CaseInputs::new(ModelShape::custom(4, 1, 128).expect("within its limits"), vec![8192; 8], seed);
    let paging = |what: &str, inputs: &CaseInputs, mode, most| Group {
        ops: vec![Op::Decode],
        sides: vec![(inputs.clone(), mode), (inputs.clone(), Mode::Contiguous)],
        comparisons: vec![ratio(what, &[0], &[1], Limit::AtMost(most))],
    };
    let mut windowed = batch(&[8192]);
    windowed.variant.window = Some(256);
    let placed = |op: Op, what: &str, inputs: &CaseInputs| {
        let at = |placement| CaseInputs { placement, ..inputs.clone() };
        let over = |placed: &str| format!("{what} {placed}: over buffers without gaps");
        Group {
            ops: vec![op],
            sides: paged([Placement::Compact, Placement::Arena, Placement::Fused].map(at).to_vec()),
            comparisons: vec![
                ratio(&over("in one arena"), &[1], &[0], Limit::AtMost(1.03)),
                ratio(&over("in fused q, k, v"), &[2], &[0], Limit::AtMost(1.03)),
            ],
        }
    };
    let prefixed = CaseInputs { shared_prefix: 2048, ..batch(&[2048 + 64; 64]) };
    let short = [256; 63];
    let lens: Vec<u32> = [32_768].into_iter().chain(short).collect();
    let ragged = CaseInputs { workload: "32768,256x63".to_owned(), ..batch(&lens) };
    vec![
        paging(
            "the look-up alone, decode of 8 x 8192 tokens of one KV head: over contiguous",
            &alone,
            Mode::Ordered,
            1.005,
        ),
        paging(
            "blocks all over the memory, decode of 8 x 1024 tokens: over contiguous",
            &batch(&[1024; 8]),
            Mode::Paged,
            1.03,
        ),
        Group {
            ops: vec![Op::Prefill],
            sides: paged(vec![batch(&[512])]),
            comparisons: vec![Comparison {
                what: "prefill of 512 tokens, f16: share of the multiply-add ceiling".to_owned(),
                measure: Measure::ShareOfMultiplyAdd(0),
                limit: Some(Limit::AtLeast(0.5)),
            }],
        },
        Group {
            ops: vec![Op::Decode],
            sides: paged([KvDtype::F32, KvDtype::F16, KvDtype::Int8, KvDtype::Int4].map(format).to_vec()),
            comparisons: vec![
                ratio("decode of 8 x 1024 tokens: f16 over f32", &[1], &[0], Limit::AtMost(1.0)),
                ratio("decode of 8 x 1024 tokens: int8 over f16", &[2], &[1], Limit::AtMost(1.1)),
                ratio("decode of 8 x 1024 tokens: int4 over int8", &[3], &[2], Limit::AtMost(1.15)),
            ],
        },
        Group {
            ops: vec![Op::Decode],
            sides: paged(vec![windowed, batch(&[256])]),
            comparisons: vec![ratio(
                "decode with a window of 256 over 8192 tokens: over a context of 256",
                &[0],
                &[1],
                Limit::AtMost(1.3),
            )],
        },
        Group {
            ops: vec![Op::Decode],
            sides: vec![(prefixed.clone(), Mode::Paged), (prefixed, Mode::Shared)],
            comparisons: vec![ratio(
                "decode of 64 sequences with 2048 tokens in common and 64 of their own: without sharing over with",
                &[0],
                &[1],
                Limit::AtLeast(3.0),
            )],
        },
        Group {
            ops: vec![Op::Decode],
            sides: paged(vec![ragged, batch(&[32_768]), batch(&short)]),
            comparisons: vec![ratio(
                "decode of 32768 tokens among 63 x 256: over the sum of both alone",
                &[0],
                &[1, 2],
                Limit::AtMost(1.3),
            )],
        },
        placed(Op::Decode, "decode of 8 x 1024 tokens,", &batch(&[1024; 8])),
        placed(Op::Prefill, "prefill of 512 tokens,", &batch(&[512])),
        placed(Op::Append, "append of 512 tokens,", &batch(&[512])),
    ]
}

/// The figure of a format's error: K and V as they were given, not as they were stored, are the measure.
pub fn accuracy(gpu: &Gpu, profile: &DeviceProfile, seed: u64, index: usize) -> Result<Figure, Verdict> {
    let (kv_dtype, at_most) = ACCURACY[index];
    let spec = ScenarioSpec { kv_dtype, ..ScenarioSpec::decode(HEADS.0, HEADS.1, HEADS.2, &[1, 17, 300, 1024]) };
    let scenario = Scenario::random(&spec, seed)?;
    let outcome = scenario.run(gpu, profile, None)?;
    let mut exact = scenario;
    exact.spec.kv_dtype = KvDtype::F32;
    let error = max_error(&outcome.out, &exact.expected().output);
    let largest = exact.v.iter().filter(|v| v.is_finite()).fold(0.0_f32, |top, v| top.max(v.abs()));
    Ok(Figure {
        what: format!("{kv_dtype}: largest error over the largest value"),
        measured: error / f64::from(largest),
        limit: Some(Limit::AtMost(at_most)),
        samples: outcome.out.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_comparison_is_of_cases_that_there_are() {
        for group in groups(1) {
            assert_eq!(group.ops.len(), 1);
            for Comparison { what, measure, limit } in &group.comparisons {
                let used = match measure {
                    Measure::Ratio(over, under) => [over.clone(), under.clone()].concat(),
                    Measure::ShareOfMultiplyAdd(side) => vec![*side],
                };
                assert!(used.iter().all(|&side| side < group.sides.len()), "{what}");
                assert!(limit.is_some(), "{what}");
            }
            let shapes = group.sides.iter().map(|(inputs, _)| &inputs.shape);
            for shape in shapes {
                let heads = (shape.num_q_heads, shape.num_kv_heads, shape.head_dim);
                assert!(heads == HEADS || heads == (4, 1, 128), "{heads:?}");
            }
        }
    }

    #[test]
    fn the_ragged_batch_is_the_sum_of_its_parts() {
        let groups = groups(1);
        let ragged = groups.iter().find(|group| group.sides[0].0.workload != "uniform").unwrap();
        let lens: Vec<&[u32]> = ragged.sides.iter().map(|(inputs, _)| &*inputs.lens).collect();
        assert_eq!(lens[0].len(), 64);
        assert_eq!(lens[0], [lens[1], lens[2]].concat());
    }
}
