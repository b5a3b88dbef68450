//! Calibrating a device: small steps, checked, then timed in alternation.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::testkit::{Gpu, ScenarioVariant};

use super::{CalibrateError, Calibration, Part, Point, Setup};
use crate::bench::{
    Case, CaseError, CaseInputs, CeilingKernels, Clock, Mode, ModelShape, Op, PassTimer, Rounds, Timing, median, pairs,
    rotated_layers,
};
use crate::common::ChosenProfile;
use crate::replay::StepWork;
use crate::report::Adapter;

const ROUNDS: RangeInclusive<u32> = 5..=15;
const EMPTY_RUNS: usize = 15;
/// Times of a GPU's contexts over a CPU's, which would take it no time at all.
const GPU_SCALE: u32 = 8;

#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    pub shape: ModelShape,
    pub kv_dtype: KvDtype,
    pub block_size: u32,
    pub seed: u64,
    /// Time after which no more than the fewest rounds are timed. Compiling and checking are not counted.
    pub time_budget: Duration,
}

struct Batch {
    lens: Vec<u32>,
    ops: &'static [Op],
    held_out: bool,
}

/// The multiples of 16 keep prompts to the widest query tiles, as most of a long prompt is.
fn batches(scale: u32) -> Vec<Batch> {
    let batch = |lens: Vec<u32>, ops, held_out| {
        let lens = lens.into_iter().map(|len| len * scale).collect();
        Batch { lens, ops, held_out }
    };
    vec![
        batch(vec![64], &[Op::Append, Op::Decode, Op::Prefill], false),
        batch(vec![256], &[Op::Append, Op::Prefill], false),
        batch(vec![512], &[Op::Append, Op::Decode, Op::Mixed], false),
        batch(vec![2048], &[Op::Decode, Op::Mixed], false),
        batch(vec![16; 16], &[Op::Append, Op::Decode], false),
        batch(vec![128; 8], &[Op::Decode], false),
        batch(vec![1024; 4], &[Op::Decode], false),
        batch(vec![176], &[Op::Append, Op::Decode, Op::Prefill], true),
        batch(vec![704, 96, 336, 256, 512], &[Op::Decode, Op::Mixed], true),
        batch(vec![304; 4], &[Op::Append, Op::Decode, Op::Mixed], true),
    ]
}

/// `progress` hears how many batches are ready, of how many, and what comes next.
pub fn calibrate(
    gpu: &Gpu,
    options: &CalibrateOptions,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(usize, usize, &str),
) -> Result<Calibration, CalibrateError> {
    let mut timer = PassTimer::new(gpu)?;
    let ceilings = CeilingKernels::new(gpu).measure(&mut timer)?;
    let submit_us = submit_us(&mut timer)?;
    let profile = ChosenProfile::of(gpu).profile;
    let batches = batches(if gpu.is_software() { 1 } else { GPU_SCALE });
    let total = batches.len();
    let mut cases = Vec::new();
    for (done, batch) in batches.iter().enumerate() {
        if cancel.load(Ordering::Relaxed) {
            return Err(CalibrateError::Cancelled);
        }
        let label = label(&batch.lens);
        progress(done, total, &label);
        let inputs = CaseInputs {
            kv_dtype: options.kv_dtype,
            block_size: options.block_size,
            layers: rotated_layers(&options.shape, options.kv_dtype, &batch.lens, gpu.is_software()),
            ..CaseInputs::new(options.shape.clone(), batch.lens.clone(), options.seed)
        };
        let failed = |source| CalibrateError::Case { what: label.clone(), source };
        let case = Case::new(gpu, &profile, &inputs, Mode::Paged).map_err(|verdict| failed(CaseError::Run(verdict)))?;
        cases.push((inputs, case));
    }
    let mut works = Vec::new();
    let mut points = Vec::new();
    for (batch, (inputs, case)) in batches.iter().zip(&cases) {
        for &op in batch.ops {
            let what = format!("{op} {}", label(&batch.lens));
            progress(total, total, &what);
            let failed = |source| CalibrateError::Case { what: what.clone(), source };
            let work = case.begin(op).map_err(|verdict| failed(CaseError::Run(verdict)))?;
            case.check(&work, &mut timer).map_err(failed)?;
            works.push((case, inputs.layers, work));
            let part = if op == Op::Append { Part::Append } else { Part::Attention };
            let (work, held_out) = (work_of(op, inputs), batch.held_out);
            points.push(Point { what, part, work, measured_us: f64::NAN, predicted_us: f64::NAN, held_out });
        }
    }
    progress(total, total, "timing");
    let rounds = Rounds { count: ROUNDS, deadline: timer.now() + options.time_budget };
    let sides: Vec<_> = works.iter().map(|(case, _, work)| (*case, work)).collect();
    let times_us = rounds.time(&mut timer, &sides, cancel)?;
    for ((point, (_, layers, _)), times_us) in points.iter_mut().zip(&works).zip(&times_us) {
        if times_us.len() < *ROUNDS.start() as usize {
            return Err(CalibrateError::Cancelled);
        }
        // A step that takes less than the submission itself is at least not free.
        let us = median(times_us).unwrap_or(f64::NAN);
        point.measured_us = (us - submit_us).max(0.01 * us) / f64::from(*layers);
    }
    for (what, ceiling) in [("read", ceilings.read_gb_s), ("multiply-add", ceilings.fma_gflop_s)] {
        if !ceiling.is_some_and(f64::is_finite) {
            return Err(CalibrateError::NoCeiling { what });
        }
    }
    let shape = &options.shape;
    let setup = Setup {
        adapter: Adapter::of(gpu),
        model: shape.name.to_string(),
        num_q_heads: shape.num_q_heads,
        num_kv_heads: shape.num_kv_heads,
        head_dim: shape.head_dim,
        kv_dtype: options.kv_dtype,
        block_size: options.block_size,
        ceilings,
        submit_us,
    };
    Ok(Calibration::fitted(setup, points)?)
}

/// Microseconds of a pass that does nothing; 0 by a clock of the device, which does not see the way to it.
fn submit_us(timer: &mut PassTimer) -> Result<f64, CalibrateError> {
    let mut times_us = Vec::new();
    for _ in 0..EMPTY_RUNS {
        times_us.push(timer.measure(|_| Ok(()))?.wall_us);
    }
    Ok(if timer.timing() == Timing::Wall { median(&times_us).unwrap_or(0.0) } else { 0.0 })
}

fn work_of(op: Op, inputs: &CaseInputs) -> StepWork {
    let mut work = StepWork::default();
    if op == Op::Append {
        // At most a chunk of every sequence: far below 32 bits.
        return StepWork { prompt_tokens: inputs.tokens(op) as u32, ..work };
    }
    let last = inputs.lens.len() - 1;
    for (at, (queries, &len)) in inputs.queries(op).into_iter().zip(&inputs.lens).enumerate() {
        if op == Op::Decode || (op == Op::Mixed && at < last) {
            work.decoding += 1;
            work.decode_keys += u64::from(len);
        } else {
            work.chunks += 1;
            work.prompt_tokens += queries;
            work.prompt_pairs += pairs(queries, len, &ScenarioVariant::PLAIN);
        }
    }
    work
}

fn label(lens: &[u32]) -> String {
    let runs = lens.chunk_by(|a, b| a == b).map(|run| match run.len() {
        1 => run[0].to_string(),
        count => format!("{}x{count}", run[0]),
    });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_measured_for_the_fit_and_held_out() {
        for scale in [1, GPU_SCALE] {
            for held_out in [false, true] {
                let of =
                    |op: Op| batches(scale).iter().any(|batch| batch.held_out == held_out && batch.ops.contains(&op));
                assert!(Op::ALL.into_iter().all(of), "scale {scale}, held out: {held_out}");
            }
        }
    }

    #[test]
    fn an_operation_is_counted_as_the_step_it_is() {
        let shape = ModelShape::custom(2, 1, 8).unwrap();
        let inputs = CaseInputs::new(shape, vec![5, 3, 200], 1);
        let decode = StepWork { decoding: 3, decode_keys: 208, ..StepWork::default() };
        assert_eq!(work_of(Op::Decode, &inputs), decode);
        // A chunk of 128 at the end of 200 tokens: queries see 73 to 200 keys.
        let chunk = StepWork { prompt_tokens: 128, prompt_pairs: (73..=200).sum(), chunks: 1, ..StepWork::default() };
        assert_eq!(work_of(Op::Mixed, &inputs), StepWork { decoding: 2, decode_keys: 8, ..chunk });
        let prefill = work_of(Op::Prefill, &inputs);
        assert_eq!((prefill.chunks, prefill.prompt_tokens, prefill.prompt_pairs), (3, 208, 15 + 6 + 20_100));
        assert_eq!(work_of(Op::Append, &inputs).prompt_tokens, 208);
        assert_eq!(label(&inputs.lens), "5,3,200");
        assert_eq!(label(&[16; 16]), "16x16");
    }
}
