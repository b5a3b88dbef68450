//! Joining attention over two sets of keys on the device, against the oracle's.

use crate::common;

use crate::common::{gpu, profiles};
use half::f16;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{
    AttentionIo, DeviceProfile, GpuError, IoFormat, KvCache, State, StateMerger, StateShape,
};
use wgpu_paged_attention::plan::{Append, RawTables, Tables};
use wgpu_paged_attention::reference::{Attended, compare, merge_states};
use wgpu_paged_attention::testkit::{Gpu, Outcome, Scenario, ScenarioSpec, ScenarioVariant, changed};
use wgpu_paged_attention::wgpu;

/// A state on the host.
#[derive(Clone)]
struct Part {
    out: Vec<f32>,
    lse: Vec<f32>,
}

impl Part {
    fn random(shape: StateShape, seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let states = (shape.num_rows * shape.num_q_heads) as usize;
        let out = (0..states * shape.v_head_dim as usize).map(|_| rng.random_range(-2.0..2.0)).collect();
        Self { out, lse: (0..states).map(|_| rng.random_range(-4.0..4.0)).collect() }
    }

    fn attended(&self, io_format: IoFormat) -> Attended {
        let given = |&x: &f32| f64::from(if io_format == IoFormat::F16 { f16::from_f32(x).to_f32() } else { x });
        Attended { output: self.out.iter().map(given).collect(), lse: self.lse.iter().map(|&x| x.into()).collect() }
    }

    fn upload(&self, gpu: &Gpu, io_format: IoFormat) -> [wgpu::Buffer; 2] {
        let out = match io_format {
            IoFormat::F32 => gpu.storage("out", &self.out),
            IoFormat::F16 => gpu.storage("out", &self.out.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>()),
        };
        [out, gpu.storage("lse", &self.lse)]
    }
}

fn state([out, lse]: &[wgpu::Buffer; 2]) -> State<'_> {
    State::new(out.slice(..), lse.slice(..))
}

fn record(gpu: &Gpu, merger: &StateMerger, shape: StateShape, a: State<'_>, b: State<'_>) -> Result<(), GpuError> {
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let recorded = merger.merge(&mut encoder.begin_compute_pass(&Default::default()), shape, a, b);
    gpu.submit(encoder);
    recorded
}

fn merge(gpu: &Gpu, (merger, io_format): (&StateMerger, IoFormat), shape: StateShape, a: &Part, b: &Part) -> Part {
    let [a, b] = [a, b].map(|part| part.upload(gpu, io_format));
    record(gpu, merger, shape, state(&a), state(&b)).unwrap();
    let out = match io_format {
        IoFormat::F32 => gpu.read(&a[0]).unwrap(),
        IoFormat::F16 => gpu.read::<f16>(&a[0]).unwrap().into_iter().map(f16::to_f32).collect(),
    };
    Part { out, lse: gpu.read(&a[1]).unwrap() }
}

fn judge(io_format: IoFormat, got: &Part, want: &Attended) -> Result<(), String> {
    let rtol = if io_format == IoFormat::F16 { 4.9e-4 } else { 0.0 };
    compare(&got.out, &want.output, 2e-6, rtol).map_err(|error| format!("output: {error}"))?;
    compare(&got.lse, &want.lse, 2e-6, 2e-7).map_err(|error| format!("log-sum-exp: {error}"))?;
    Ok(())
}

#[test]
fn states_are_merged_as_the_oracle_merges_them() {
    let Some(gpu) = gpu() else { return };
    let mut folded = DeviceProfile::of(&gpu.device);
    folded.max_workgroups_per_dim = 7;
    for profile in [DeviceProfile::of(&gpu.device), folded] {
        for io_format in [IoFormat::F32, IoFormat::F16] {
            let merger = StateMerger::with_profile(&gpu.device, io_format, profile.clone()).unwrap();
            for (num_rows, num_q_heads, v_head_dim) in [(1, 1, 2), (5, 3, 80), (4, 7, 130)] {
                let shape = StateShape::new(num_rows, num_q_heads, v_head_dim);
                let (a, mut b) = (Part::random(shape, 1), Part::random(shape, 2));
                let got = merge(&gpu, (&merger, io_format), shape, &a, &b);
                let want = merge_states(&a.attended(io_format), &b.attended(io_format));
                assert_eq!(judge(io_format, &got, &want), Ok(()), "{shape:?} {io_format:?}");
                // One weight of one state is another.
                b.lse[0] += 0.25;
                let want = merge_states(&a.attended(io_format), &b.attended(io_format));
                assert!(judge(io_format, &got, &want).is_err(), "{shape:?} {io_format:?}");
            }
        }
    }
}

#[test]
fn closed_forms() {
    let Some(gpu) = gpu() else { return };
    let merger = StateMerger::new(&gpu.device, IoFormat::F32).unwrap();
    let shape = StateShape::new(3, 1, 1);
    // Denominators 1 and 3; beyond any float, where the second part weighs nothing; the same, equal.
    let a = Part { out: vec![8.0, 2.0, 2.0], lse: vec![0.0, 2000.0, -2000.0] };
    let b = Part { out: vec![4.0, 5.0, 5.0], lse: vec![3.0_f32.ln(), 1000.0, -2000.0] };
    let got = merge(&gpu, (&merger, IoFormat::F32), shape, &a, &b);
    let want = Attended { output: vec![5.0, 2.0, 3.5], lse: vec![4.0_f64.ln(), 2000.0, -2000.0 + 2.0_f64.ln()] };
    assert_eq!(judge(IoFormat::F32, &got, &want), Ok(()));
    // And a denominator that is not a number shows.
    let nan = Part { lse: vec![f32::NAN; 3], ..b };
    let got = merge(&gpu, (&merger, IoFormat::F32), shape, &a, &nan);
    assert!(got.out.iter().chain(&got.lse).all(|x| x.is_nan()), "{:?} {:?}", got.out, got.lse);
}

#[test]
fn a_part_without_keys_changes_no_bit_whatever_its_output_holds() {
    let Some(gpu) = gpu() else { return };
    let bits = |part: &Part| -> (Vec<u32>, Vec<u32>) { (common::bits(&part.out), common::bits(&part.lse)) };
    for io_format in [IoFormat::F32, IoFormat::F16] {
        let merger = StateMerger::new(&gpu.device, io_format).unwrap();
        let shape = StateShape::new(2, 2, 6);
        let mut part = Part::random(shape, 3);
        part.out = part.out.iter().map(|&x| f16::from_f32(x).to_f32()).collect();
        part.out[..3].copy_from_slice(&[-0.0, 6e-8, f32::INFINITY].map(|x| f16::from_f32(x).to_f32()));
        for nothing in [f32::NEG_INFINITY, f32::INFINITY] {
            let empty = Part { out: vec![f32::NAN; part.out.len()], lse: vec![nothing; 4] };
            assert_eq!(bits(&merge(&gpu, (&merger, io_format), shape, &part, &empty)), bits(&part));
            assert_eq!(bits(&merge(&gpu, (&merger, io_format), shape, &empty, &part)), bits(&part));
            let zeros = Part { out: vec![0.0; part.out.len()], lse: vec![f32::NEG_INFINITY; 4] };
            assert_eq!(bits(&merge(&gpu, (&merger, io_format), shape, &empty, &empty)), bits(&zeros));
        }
    }
}

/// Attention of a scenario over a part of every sequence's blocks: those from `begin` to `end`.
fn attend_part(gpu: &Gpu, cache: &KvCache, scenario: &Scenario, begin: usize, end: usize) -> [wgpu::Buffer; 2] {
    let spec = &scenario.spec;
    let block_size = spec.block_size as usize;
    let (mut block_table, mut seq_lens, mut cu) = (Vec::new(), Vec::new(), vec![0]);
    for (seq, table) in scenario.tables.iter().enumerate() {
        let len = spec.seq_lens[seq] as usize;
        seq_lens.push((len.min(end * block_size)).saturating_sub(begin * block_size) as u32);
        let mut row = table[begin.min(table.len())..end.min(table.len())].to_vec();
        row.resize(16, u32::MAX);
        block_table.extend(row);
        cu.push(cu[seq] + spec.queries(seq));
    }
    let skip = vec![-1; cu[scenario.tables.len()] as usize];
    let mut plan = cache.new_plan();
    let tables = Tables::Dense { block_table: &block_table, max_blocks: 16, seq_lens: &seq_lens };
    plan.plan_tables(cache.layout(), &RawTables { tables, cu_seqlens_q: Some(&cu), append: Append::Slots(&skip) })
        .unwrap();
    let attention = cache.attention(scenario.attention_spec(None)).unwrap();
    let heads = skip.len() * spec.num_q_heads as usize;
    let q = gpu.storage("q", &scenario.q);
    let out = gpu.storage("out", &vec![9.0_f32; heads * spec.v_dim() as usize]);
    let lse = gpu.storage("lse", &vec![9.0_f32; heads]);
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let step = cache.begin_step(&mut encoder, &plan).unwrap();
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let io = AttentionIo::new(q.slice(..), out.slice(..)).with_lse(lse.slice(..));
        cache.attend(&mut pass, &attention, &step, 0, io).unwrap();
    }
    gpu.submit(encoder);
    [out, lse]
}

#[test]
fn attention_to_two_halves_of_the_keys_merged_is_attention_to_all() {
    let Some(gpu) = gpu() else { return };
    let spec = ScenarioSpec {
        kv_dtype: KvDtype::F32,
        v_head_dim: Some(24),
        block_size: 4,
        query_lens: Some(vec![3, 1, 1, 2]),
        variant: ScenarioVariant { causal: false, ..ScenarioVariant::PLAIN },
        lse: true,
        // One that has no key behind block 5, one without any.
        ..ScenarioSpec::decode(6, 2, 16, &[61, 20, 0, 33])
    };
    let scenario = Scenario::random(&spec, 9).unwrap();
    let merger = StateMerger::new(&gpu.device, IoFormat::F32).unwrap();
    let shape = StateShape::new(7, 6, 24);
    for profile in profiles(&gpu) {
        let cache = scenario.upload(&gpu, &profile).unwrap();
        let [a, b] = [(0, 5), (5, 16)].map(|(begin, end)| attend_part(&gpu, &cache, &scenario, begin, end));
        let outcome = || Outcome { out: gpu.read(&a[0]).unwrap(), lse: gpu.read(&a[1]).unwrap() };
        assert!(scenario.judge(&outcome()).is_err(), "a half is not the whole");
        record(&gpu, &merger, shape, state(&a), state(&b)).unwrap();
        scenario.judge(&outcome()).unwrap();
        // A part that is counted twice shows.
        record(&gpu, &merger, shape, state(&a), state(&b)).unwrap();
        assert!(scenario.judge(&outcome()).is_err());
    }
}

#[test]
fn buffers_that_cannot_be_right_are_refused_and_leave_no_trace() {
    let Some(gpu) = gpu() else { return };
    let merger = StateMerger::new(&gpu.device, IoFormat::F16).unwrap();
    let shape = StateShape::new(64, 2, 4);
    let part = Part::random(shape, 1);
    let [a, b] = [1, 2].map(|seed| Part::random(shape, seed).upload(&gpu, IoFormat::F16));
    let (good_a, good_b) = (state(&a), state(&b));
    let uniform = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: 1024,
        usage: wgpu::BufferUsages::UNIFORM,
        mapped_at_creation: false,
    });
    let cases = [
        ("v_head_dim is 3", StateShape::new(64, 2, 3), good_a, good_b),
        ("a.out has 1024 bytes, but 1040 are needed", StateShape::new(65, 2, 4), good_a, good_b),
        ("a.lse has 508 bytes, but 512 are needed", shape, State::new(good_a.out, a[1].slice(..508)), good_b),
        ("b.out has 4 bytes", shape, good_a, State::new(b[0].slice(..4), good_b.lse)),
        ("b.lse has 256 bytes", shape, good_a, State::new(good_b.out, b[1].slice(256..))),
        ("b.out lacks the usage", shape, good_a, State::new(uniform.slice(..), good_b.lse)),
        ("b.out starts at byte 2", shape, good_a, State::new(b[0].slice(2..), good_b.lse)),
        ("b.out has 1020 bytes", shape, good_a, State::new(b[0].slice(4..), good_b.lse)),
        ("b.out and a.out overlap", shape, good_a, good_a),
        ("b.lse and a.lse overlap", shape, good_a, State::new(good_b.out, a[1].slice(..))),
        ("a.out and a.lse overlap", shape, State::new(good_a.out, a[0].slice(..)), good_b),
        ("the log-sum-exp would take", StateShape::new(u32::MAX, 2, 4), good_a, good_b),
    ];
    for (words, shape, a, b) in cases {
        let said = record(&gpu, &merger, shape, a, b).unwrap_err().to_string();
        assert!(said.contains(words), "`{said}` does not say `{words}`");
    }
    let few = changed(&DeviceProfile::of(&gpu.device), |it| it.max_workgroups_per_dim = 11);
    let few = StateMerger::with_profile(&gpu.device, IoFormat::F16, few).unwrap();
    let error = record(&gpu, &few, shape, good_a, good_b).unwrap_err();
    assert!(matches!(error, GpuError::Plan(_)), "{error:?}");
    assert_eq!(common::bits(&gpu.read::<f32>(&a[1]).unwrap()), common::bits(&part.lse));
    // No rows, no work, and no buffers looked at.
    record(&gpu, &merger, StateShape::new(0, 2, 4), good_a, good_a).unwrap();
}
