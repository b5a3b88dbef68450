//! The benchmark run: cases one after the other, checked, then timed in alternation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::accounting::{self, Cost};
use super::case::{Case, CaseError, CaseInputs};
use super::ceilings::CeilingKernels;
use super::models::ModelShape;
use super::options::{BenchOptions, Lengths, Op};
use super::report::{Adapter, CaseResult, Failure, Mode, Pair, Report};
use super::stats::{Summary, median, warnings};
use super::timer::{Sample, Timer, TimerError};
use super::trace::{SampleError, sequence_lengths};
use crate::config::KvFormat;
use crate::gpu::KvShape;
use crate::harness::Gpu;

/// K and V bytes of the largest default case, and a grid of batch × context that ends in time.
const SOFTWARE_BYTES: u64 = 192 << 20;
const SOFTWARE_GRID: [(u32, u32); 5] = [(1, 1024), (8, 1024), (8, 2048), (1, 8192), (1, 32_768)];
const GPU_BYTES: u64 = 4 << 30;
const GPU_GRID: [(u32, u32); 8] =
    [(1, 1024), (1, 8192), (1, 32_768), (8, 1024), (8, 2048), (8, 8192), (64, 1024), (64, 4096)];
const QUICK_GRID: [(u32, u32); 1] = [(2, 256)];
/// What the layers of a case read together on a GPU: more than its caches hold.
const GPU_ROTATED_BYTES: u64 = 512 << 20;
const LEAST_SAMPLES: u32 = 5;
/// Requests drawn from a built-in workload, of which a batch is then picked.
const WORKLOAD_REQUESTS: usize = 4096;
/// A clock that is read across a submission does not resolve less.
const RESOLUTION_US: f64 = 1.0;

/// What a run reports while it runs.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Before the first case.
    Started {
        /// Cases to come.
        total_cases: usize,
    },
    /// Before a case.
    Case {
        /// Cases done.
        done: usize,
        /// All cases.
        total: usize,
        /// The case that begins.
        label: &'a str,
    },
    /// Something the reader should know.
    Message(&'a str),
    /// After a case: the report so far, worth saving.
    Report(&'a Report),
}

/// Why there is no report at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The device cannot even be timed.
    #[error(transparent)]
    Timer(#[from] TimerError),
    /// No lengths can be drawn from the log.
    #[error(transparent)]
    Lengths(#[from] SampleError),
}

/// Measures what `options` ask for. Stops after the current case once `cancel` is set; what was measured is reported.
///
/// # Errors
/// [`BenchError`] if nothing can be measured. A case that fails is a [`Failure`] in the report, and the others go on.
pub fn run(
    gpu: &Gpu,
    options: &BenchOptions,
    command: &str,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Report, BenchError> {
    let deadline = Instant::now() + options.time_budget;
    let cases = plan_cases(gpu, options, progress)?;
    progress(Progress::Started { total_cases: cases.len() });

    let mut timer = Timer::new(gpu)?;
    let kernels = CeilingKernels::new(gpu);
    let ceilings = kernels.measure(&mut timer)?;
    let report = Report::new(command.to_owned(), options.seed, Adapter::of(gpu), ceilings);
    let mut run = Run { gpu, options, timer, kernels, report };
    for (done, inputs) in cases.iter().enumerate() {
        if cancel.load(Ordering::Relaxed) {
            progress(Progress::Message("stopped before all cases were measured"));
            break;
        }
        progress(Progress::Case { done, total: cases.len(), label: &inputs.label() });
        let left = deadline.saturating_duration_since(Instant::now());
        run.case(inputs, left / (cases.len() - done) as u32, progress);
        progress(Progress::Report(&run.report));
    }
    Ok(run.report)
}

/// A run in progress.
struct Run<'a> {
    gpu: &'a Gpu,
    options: &'a BenchOptions,
    timer: Timer,
    kernels: CeilingKernels,
    report: Report,
}

/// One mode of a case under way.
struct Side {
    mode: Mode,
    case: Case,
    cold: Sample,
    max_abs_error: f64,
    samples: Vec<Sample>,
}

impl Run<'_> {
    /// Measures both modes of a case within about `share` of time.
    fn case(&mut self, inputs: &CaseInputs, share: Duration, progress: &mut dyn FnMut(Progress<'_>)) {
        let end = Instant::now() + share;
        let ops = if self.options.ops.is_empty() { Op::ALL.to_vec() } else { self.options.ops.clone() };
        let mut cases = Vec::new();
        for mode in [Mode::Paged, Mode::Contiguous] {
            match Case::new(self.gpu, inputs, mode) {
                Ok(case) => cases.push((mode, case)),
                Err(error) => ops.iter().for_each(|&op| self.fail(inputs, op, mode, &error)),
            }
        }
        for (at, &op) in ops.iter().enumerate() {
            let mut sides = Vec::new();
            for (mode, case) in std::mem::take(&mut cases) {
                // Correct first: a case that is not has no time.
                match case.check(op, &mut self.timer) {
                    Ok((cold, max_abs_error)) => {
                        sides.push(Side { mode, case, cold, max_abs_error, samples: Vec::new() });
                    }
                    Err(error) => self.fail(inputs, op, mode, &error),
                }
            }
            let left = end.saturating_duration_since(Instant::now()) / (ops.len() - at) as u32;
            match self.sample(op, &mut sides, left) {
                Ok(read_gb_s) => self.record(inputs, op, &sides, read_gb_s, progress),
                Err(error) => {
                    let error = CaseError::from(error);
                    sides.iter().for_each(|side| self.fail(inputs, op, side.mode, &error));
                }
            }
            cases = sides.into_iter().map(|side| (side.mode, side.case)).collect();
        }
    }

    /// Times the sides in alternation, and the streaming read with them; returns the latter's median.
    fn sample(&mut self, op: Op, sides: &mut [Side], time: Duration) -> Result<Option<f64>, TimerError> {
        let wanted = self.options.samples.unwrap_or(if self.options.quick {
            LEAST_SAMPLES
        } else if self.gpu.is_software() {
            41
        } else {
            101
        });
        let end = Instant::now() + time;
        let mut read = Vec::new();
        // Round 0 warms up: the check before it ran with other work in between.
        for round in 0..=wanted {
            if self.options.samples.is_none() && round > LEAST_SAMPLES && Instant::now() > end {
                break;
            }
            for side in sides.iter_mut() {
                let sample = side.case.time(op, &mut self.timer)?;
                if round > 0 {
                    side.samples.push(sample);
                }
            }
            read.push(self.kernels.read_gb_s(&mut self.timer)?);
        }
        Ok(median(&read[1..]))
    }

    fn record(
        &mut self,
        inputs: &CaseInputs,
        op: Op,
        sides: &[Side],
        read_gb_s: Option<f64>,
        progress: &mut dyn FnMut(Progress<'_>),
    ) {
        let mut results = Vec::new();
        for side in sides {
            let result = self.result(inputs, op, side, read_gb_s);
            for warning in warnings(&result.samples_us, RESOLUTION_US) {
                let label = format!("{op} {} {}: {warning}", inputs.label(), side.mode.name());
                progress(Progress::Message(&label));
            }
            results.push(result);
        }
        if let [paged, contiguous] = &results[..] {
            self.report.pairs.extend(Pair::of(paged, contiguous));
        }
        self.report.results.extend(results);
    }

    fn result(&self, inputs: &CaseInputs, op: Op, side: &Side, read_gb_s: Option<f64>) -> CaseResult {
        let layers = f64::from(inputs.layers);
        let samples_us: Vec<f64> = side.samples.iter().map(|sample| self.timer.time_us(sample) / layers).collect();
        let wall_us: Vec<f64> = side.samples.iter().map(|sample| sample.wall_us / layers).collect();
        let summary = Summary::of(&samples_us);
        let time = |pick: fn(&Summary) -> f64| summary.as_ref().map_or(f64::NAN, pick);
        let cost = cost(inputs, op, side.mode);
        let gb_s = cost.gb_s(time(|summary| summary.median));
        CaseResult {
            op: op.to_string(),
            model: inputs.shape.name.to_string(),
            num_q_heads: inputs.shape.num_q_heads,
            num_kv_heads: inputs.shape.num_kv_heads,
            head_dim: inputs.shape.head_dim,
            kv_dtype: inputs.kv_format.to_string(),
            block_size: inputs.block_size,
            batch: inputs.lens.len() as u32,
            context: inputs.lens.iter().copied().max().unwrap_or(0),
            tokens: inputs.tokens(op),
            mode: side.mode,
            workload: workload_name(&self.options.lengths).to_owned(),
            input_hash: inputs.hash(),
            timing: self.timer.timing(),
            median_us: time(|summary| summary.median),
            p25_us: time(|summary| summary.p25),
            p75_us: time(|summary| summary.p75),
            samples_us,
            wall_median_us: median(&wall_us),
            cold_us: Some(self.timer.time_us(&side.cold) / layers),
            bytes: cost.bytes(),
            gb_s,
            fraction_of_read: read_gb_s.map(|read| gb_s / read),
            max_abs_error: side.max_abs_error,
        }
    }

    fn fail(&mut self, inputs: &CaseInputs, op: Op, mode: Mode, error: &CaseError) {
        self.report.failures.push(Failure {
            op: op.to_string(),
            model: inputs.shape.name.to_string(),
            batch: inputs.lens.len() as u32,
            context: inputs.lens.iter().copied().max().unwrap_or(0),
            mode,
            error: error.to_string(),
        });
    }
}

fn cost(inputs: &CaseInputs, op: Op, mode: Mode) -> Cost {
    let paged = mode == Mode::Paged;
    let row_bytes = inputs.shape.head_dim * inputs.kv_format.element_bytes();
    match op {
        Op::Append => accounting::append(&inputs.shape, row_bytes, inputs.tokens(op), paged),
        Op::Decode => accounting::decode(&inputs.shape, row_bytes, &inputs.lens, paged.then_some(inputs.block_size)),
    }
}

/// The cases of a run, in order.
fn plan_cases(
    gpu: &Gpu,
    options: &BenchOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<CaseInputs>, BenchError> {
    let software = gpu.is_software();
    let or = |given: &[u32], default: u32| if given.is_empty() { vec![default] } else { given.to_vec() };
    let formats = if options.kv_formats.is_empty() { vec![KvFormat::F16] } else { options.kv_formats.clone() };
    let block_sizes = or(&options.block_sizes, 16);
    let mut shapes: Vec<(ModelShape, u32, u32)> = Vec::new();
    // What was asked for by its numbers is measured; the default leaves out what is too large for the adapter.
    let mut chosen = true;
    if options.cases.is_empty() {
        let models = if options.models.is_empty() { ModelShape::BUILT_IN.to_vec() } else { options.models.clone() };
        let grid = if options.batches.is_empty() && options.contexts.is_empty() {
            chosen = false;
            match (options.quick, software) {
                (true, _) => QUICK_GRID.to_vec(),
                (false, true) => SOFTWARE_GRID.to_vec(),
                (false, false) => GPU_GRID.to_vec(),
            }
        } else {
            let contexts = or(&options.contexts, 1024);
            or(&options.batches, 8).iter().flat_map(|&b| contexts.iter().map(move |&c| (b, c))).collect()
        };
        for model in models {
            shapes.extend(grid.iter().map(|&(batch, context)| (model.clone(), batch, context)));
        }
    } else {
        shapes.extend(options.cases.iter().map(|case| (case.shape.clone(), case.batch, case.context)));
    }

    let limit = if software { SOFTWARE_BYTES } else { GPU_BYTES };
    let mut cases = Vec::new();
    for (shape, batch, context) in shapes {
        let lens = lengths(&options.lengths, batch, context, options.seed)?;
        let tokens = lens.iter().map(|&len| u64::from(len)).sum();
        for &kv_format in &formats {
            for &block_size in &block_sizes {
                let kv = KvShape { format: kv_format, head_dim: shape.head_dim, block_size };
                let bytes = accounting::kv_bytes(&shape, 16 * kv.units(), tokens);
                let layers = if software { 1 } else { GPU_ROTATED_BYTES.div_ceil(bytes.max(1)).clamp(1, 16) as u32 };
                let (shape, lens) = (shape.clone(), lens.clone());
                let inputs = CaseInputs { shape, kv_format, block_size, lens, layers, seed: options.seed };
                // Lengths from a log are clipped to the context, and two contexts may give the same.
                if cases.contains(&inputs) {
                    continue;
                }
                if !chosen && bytes > limit {
                    let label = inputs.label();
                    let megabytes = bytes >> 20;
                    progress(Progress::Message(&format!(
                        "left out {label}: {megabytes} MiB of K and V would take too long here; --batch and --context, \
                         or --case, measure it all the same"
                    )));
                    continue;
                }
                cases.push(inputs);
            }
        }
    }
    Ok(cases)
}

fn lengths(lengths: &Lengths, batch: u32, context: u32, seed: u64) -> Result<Vec<u32>, SampleError> {
    match lengths {
        Lengths::Uniform => Ok(vec![context; batch as usize]),
        Lengths::Trace { requests, .. } => sequence_lengths(requests, batch as usize, context, seed),
        Lengths::Workload(workload) => {
            sequence_lengths(&workload.requests(WORKLOAD_REQUESTS, seed), batch as usize, context, seed)
        }
    }
}

fn workload_name(lengths: &Lengths) -> &str {
    match lengths {
        Lengths::Uniform => "uniform",
        Lengths::Trace { name, .. } => name,
        Lengths::Workload(workload) => workload.name,
    }
}
