//! From what was asked for to the groups of cases that are timed in alternation.

use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::layout::UNIT_BYTES;

use super::{BenchOptions, CaseInputs, Lengths, Limit, Mode, ModelShape, Op, accounting, measured};
use crate::trace::{SampleError, sequence_lengths};

/// K and V bytes of the largest default case, and what is measured by default so that it ends in time.
const SOFTWARE_BYTES: u64 = 192 << 20;
/// Operations of one run that is measured without being asked for by name: half a second.
const SOFTWARE_FLOPS: u64 = 12_000_000_000;
const SOFTWARE_GRID: [GridCase; 5] = [
    (1, 512, &[Op::Prefill]),
    (1, 1024, CACHE_OPS),
    (8, 1024, &[Op::Append, Op::Decode, Op::Mixed]),
    (8, 2048, CACHE_OPS),
    (1, 32_768, CACHE_OPS),
];
const GPU_BYTES: u64 = 4 << 30;
const GPU_FLOPS: u64 = 12_000_000_000_000;
const GPU_GRID: [GridCase; 8] = [
    (1, 1024, &Op::ALL),
    (1, 8192, &Op::ALL),
    (1, 32_768, CACHE_OPS),
    (8, 1024, &Op::ALL),
    (8, 2048, &Op::ALL),
    (8, 8192, &[Op::Append, Op::Decode, Op::Mixed]),
    (64, 1024, &[Op::Append, Op::Decode, Op::Mixed]),
    (64, 4096, &[Op::Append, Op::Decode, Op::Mixed]),
];
const QUICK_GRID: [GridCase; 1] = [(2, 256, &Op::ALL)];
/// Bound by reads and writes of the cache, and so quick at any length.
const CACHE_OPS: &[Op] = &[Op::Append, Op::Decode];
/// Models whose prompts are measured by default on a CPU: compiling the kernels of one takes it half a minute.
const SOFTWARE_PROMPT_MODELS: [&str; 1] = ["llama-3-8b"];
/// What the layers of a case read together on a GPU: more than its caches hold.
const GPU_ROTATED_BYTES: u64 = 512 << 20;
const WORKLOAD_REQUESTS: usize = 4096;

type GridCase = (u32, u32, &'static [Op]);

/// Cases that are timed in alternation, so that the drift of a clock falls out of what is compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub ops: Vec<Op>,
    pub sides: Vec<(CaseInputs, Mode)>,
    pub comparisons: Vec<Comparison>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub what: String,
    pub measure: Measure,
    pub limit: Option<Limit>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Time of some sides over the time of others; of each, the sum.
    Ratio(Vec<usize>, Vec<usize>),
    ShareOfMultiplyAdd(usize),
}

impl Group {
    pub fn label(&self) -> String {
        let first = self.sides.first().map_or_else(String::new, |(inputs, _)| inputs.label());
        if self.sides.len() > 1 { format!("{first} and {} more", self.sides.len() - 1) } else { first }
    }
}

pub fn groups(options: &BenchOptions, software: bool) -> Result<(Vec<Group>, Vec<String>), SampleError> {
    let formats = if options.kv_dtypes.is_empty() { vec![KvDtype::F16] } else { options.kv_dtypes.clone() };
    let block_sizes = if options.block_sizes.is_empty() { vec![16] } else { options.block_sizes.clone() };
    let limit = if software { SOFTWARE_BYTES } else { GPU_BYTES };
    let (mut groups, mut left_out): (Vec<Group>, _) = (Vec::new(), Vec::new());
    for batch in batches(options, software)? {
        for &block_size in &block_sizes {
            let inputs = |kv_dtype: KvDtype| {
                let layers = rotated_layers(&batch.shape, kv_dtype, &batch.lens, software);
                CaseInputs {
                    kv_dtype,
                    block_size,
                    workload: batch.workload.clone(),
                    decoding: options.queries,
                    shared_prefix: options.shared_prefix.unwrap_or(0),
                    variant: options.variant,
                    lse: options.lse,
                    layers,
                    ..CaseInputs::new(batch.shape.clone(), batch.lens.clone(), options.seed)
                }
            };
            let inputs: Vec<CaseInputs> = formats.iter().map(|&format| inputs(format)).collect();
            let bytes =
                formats.iter().map(|&format| stored_bytes(&batch.shape, format, &batch.lens)).max().unwrap_or(0);
            if !batch.chosen && bytes > limit {
                left_out.push(format!(
                    "left out {}: {} MiB of K and V would take too long here; --batch and --context, or --case, \
                     measure it all the same",
                    inputs[0].label(),
                    bytes >> 20
                ));
                continue;
            }
            let mut ops = batch.ops.clone();
            ops.retain(|&op| {
                let flops = flops(&inputs[0], op);
                let kept = options.ops.contains(&op) || flops <= if software { SOFTWARE_FLOPS } else { GPU_FLOPS };
                if !kept {
                    left_out.push(format!(
                        "left out {op} of {}: {} GFLOP would take too long here; --op {op} measures it all the same",
                        inputs[0].label(),
                        flops / 1_000_000_000
                    ));
                }
                kept
            });
            let group = group(ops, inputs, options.shared_prefix.is_some());
            // Lengths from a log are clipped to the context, and two contexts may give the same.
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
    }
    Ok((groups, left_out))
}

/// Layers of a case: so many that a GPU's caches do not hold what one of them reads next.
pub(crate) fn rotated_layers(shape: &ModelShape, kv_dtype: KvDtype, lens: &[u32], software: bool) -> u32 {
    let bytes = stored_bytes(shape, kv_dtype, lens);
    if software { 1 } else { GPU_ROTATED_BYTES.div_ceil(bytes.max(1)).clamp(1, 16) as u32 }
}

fn group(ops: Vec<Op>, inputs: Vec<CaseInputs>, shared: bool) -> Group {
    let modes = if shared { [Mode::Shared, Mode::Paged] } else { [Mode::Paged, Mode::Contiguous] };
    let mut comparisons = Vec::new();
    for (at, own) in inputs.iter().enumerate() {
        let mut ratio = |what: String, over, under| {
            comparisons.push(Comparison { what, measure: Measure::Ratio(vec![over], vec![under]), limit: None });
        };
        if shared {
            ratio(format!("{}: time without sharing over time with", own.label()), 2 * at + 1, 2 * at);
        }
        if at > 0 {
            ratio(format!("{}: time over that of {}", own.label(), inputs[0].kv_dtype), 2 * at, 0);
        }
    }
    let sides = inputs.iter().flat_map(|inputs| modes.map(|mode| (inputs.clone(), mode))).collect();
    Group { ops, sides, comparisons }
}

struct Batch {
    shape: ModelShape,
    lens: Vec<u32>,
    workload: String,
    ops: Vec<Op>,
    /// What was asked for by its numbers is measured; the default leaves out what is too large for the adapter.
    chosen: bool,
}

fn batches(options: &BenchOptions, software: bool) -> Result<Vec<Batch>, SampleError> {
    let models = if options.models.is_empty() { measured().collect() } else { options.models.clone() };
    let or = |given: &[u32], default: u32| if given.is_empty() { vec![default] } else { given.to_vec() };
    let chosen = !options.batches.is_empty() || !options.contexts.is_empty();
    let grid: Vec<GridCase> = match (chosen, options.quick, software) {
        (true, ..) => {
            let contexts = or(&options.contexts, 1024);
            let of_batch = |&batch: &u32| contexts.iter().map(move |&context| (batch, context, &Op::ALL[..]));
            or(&options.batches, 8).iter().flat_map(of_batch).collect()
        }
        (false, true, _) => QUICK_GRID.to_vec(),
        (false, false, true) => SOFTWARE_GRID.to_vec(),
        (false, false, false) => GPU_GRID.to_vec(),
    };
    let asked = |shape: &ModelShape, ops: &[Op]| -> Vec<Op> {
        let by_name = !options.ops.is_empty() || !options.models.is_empty() || !options.cases.is_empty();
        let slow = software && !chosen && !by_name && !SOFTWARE_PROMPT_MODELS.contains(&&*shape.name);
        let wanted = |op: &Op| match options.ops.is_empty() {
            true => !(slow && op.is_compute_bound()),
            false => options.ops.contains(op),
        };
        ops.iter().copied().filter(wanted).collect()
    };

    let mut batches = Vec::new();
    if let Lengths::Lists(lists) = &options.lengths {
        for (shape, list) in models.iter().flat_map(|shape| lists.iter().map(move |list| (shape, list))) {
            let (shape, lens, workload) = (shape.clone(), list.lens.clone(), list.to_string());
            let ops = if options.ops.is_empty() { Op::ALL.to_vec() } else { options.ops.clone() };
            batches.push(Batch { shape, lens, workload, ops, chosen: true });
        }
        return Ok(batches);
    }
    let mut push = |shape: &ModelShape, (batch, context, ops): GridCase, chosen: bool| {
        let (lens, workload) = lengths(&options.lengths, batch, context, options.seed)?;
        batches.push(Batch { shape: shape.clone(), lens, workload, ops: asked(shape, ops), chosen });
        Ok(())
    };
    for case in &options.cases {
        push(&case.shape, (case.batch, case.context, &Op::ALL), true)?;
    }
    if options.cases.is_empty() {
        for (shape, &case) in models.iter().flat_map(|shape| grid.iter().map(move |case| (shape, case))) {
            push(shape, case, chosen)?;
        }
    }
    batches.retain(|batch| !batch.ops.is_empty());
    Ok(batches)
}

fn flops(inputs: &CaseInputs, op: Op) -> u64 {
    let rows: Vec<(u32, u32)> = inputs.queries(op).into_iter().zip(inputs.lens.iter().copied()).collect();
    let variant = inputs.variant;
    accounting::Attention { rows: &rows, variant, lse: false, shared: 0, block_size: None }.cost(&inputs.shape, 0).flops
}

fn stored_bytes(shape: &ModelShape, format: KvDtype, lens: &[u32]) -> u64 {
    let tokens = lens.iter().map(|&len| u64::from(len)).sum();
    accounting::kv_bytes(shape, UNIT_BYTES * u64::from(format.row_units(shape.head_dim)), tokens)
}

fn lengths(lengths: &Lengths, batch: u32, context: u32, seed: u64) -> Result<(Vec<u32>, String), SampleError> {
    let drawn = |requests: &[crate::trace::Request]| sequence_lengths(requests, batch as usize, context, seed);
    Ok(match lengths {
        Lengths::Uniform | Lengths::Lists(_) => (vec![context; batch as usize], "uniform".to_owned()),
        Lengths::Trace { name, requests } => (drawn(requests)?, name.clone()),
        Lengths::Workload(workload) => (drawn(&workload.requests(WORKLOAD_REQUESTS, seed))?, workload.name.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(options: &BenchOptions) -> (Vec<Group>, Vec<String>) {
        groups(options, true).unwrap()
    }

    #[test]
    fn by_default_every_operation_is_measured_and_none_that_takes_long() {
        for software in [true, false] {
            let (groups, _) = groups(&BenchOptions::default(), software).unwrap();
            for op in Op::ALL {
                assert!(groups.iter().any(|group| group.ops.contains(&op)), "{op}, software {software}");
            }
            let most = if software { SOFTWARE_FLOPS } else { GPU_FLOPS };
            assert!(groups.iter().all(|group| group.ops.iter().all(|&op| flops(&group.sides[0].0, op) <= most)));
        }
        let quick = planned(&BenchOptions { quick: true, ..BenchOptions::default() }).0;
        assert_eq!(quick.len(), measured().count());
    }

    #[test]
    fn what_takes_long_is_measured_only_by_name() {
        let case = "8,8192,32,8,128".parse().unwrap();
        let mut options = BenchOptions { cases: vec![case], ..BenchOptions::default() };
        let (groups, left_out) = planned(&options);
        assert_eq!(groups[0].ops, [Op::Append, Op::Decode]);
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert!(left_out[0].contains("--op prefill"), "{left_out:?}");
        options.ops = vec![Op::Prefill];
        assert_eq!(planned(&options).0[0].ops, [Op::Prefill]);
    }

    #[test]
    fn formats_alternate_in_one_group() {
        let case = "1,64,2,1,8".parse().unwrap();
        let kv_dtypes = vec![KvDtype::F16, KvDtype::Int4];
        let options = BenchOptions { cases: vec![case], kv_dtypes, ..BenchOptions::default() };
        let (groups, _) = planned(&options);
        let sides: Vec<_> = groups[0].sides.iter().map(|(inputs, mode)| (inputs.kv_dtype, *mode)).collect();
        let (paged, contiguous) = (Mode::Paged, Mode::Contiguous);
        let (f16, int4) = (KvDtype::F16, KvDtype::Int4);
        assert_eq!(sides, [(f16, paged), (f16, contiguous), (int4, paged), (int4, contiguous)]);
        assert_eq!(groups[0].comparisons.len(), 1);
        assert_eq!(groups[0].comparisons[0].measure, Measure::Ratio(vec![2], vec![0]));
    }

    #[test]
    fn a_shared_prefix_is_compared_with_none() {
        let case = "3,64,2,1,8".parse().unwrap();
        let options = BenchOptions { cases: vec![case], shared_prefix: Some(32), ..BenchOptions::default() };
        let group = &planned(&options).0[0];
        let modes: Vec<Mode> = group.sides.iter().map(|(_, mode)| *mode).collect();
        assert_eq!(modes, [Mode::Shared, Mode::Paged]);
        assert_eq!(group.comparisons[0].measure, Measure::Ratio(vec![1], vec![0]));
    }

    #[test]
    fn lists_of_lengths_are_batches() {
        let lists = vec!["32,8x3".parse().unwrap(), "32".parse().unwrap()];
        let models = vec![ModelShape::custom(2, 1, 8).unwrap()];
        let options = BenchOptions { models, lengths: Lengths::Lists(lists), ..BenchOptions::default() };
        let (groups, _) = planned(&options);
        assert_eq!(groups.len(), 2);
        assert_eq!((&groups[0].sides[0].0.lens, &*groups[0].sides[0].0.workload), (&vec![32, 8, 8, 8], "32,8x3"));
    }
}
