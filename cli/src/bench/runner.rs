//! The benchmark run: groups of cases one after the other, checked, then timed in alternation.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::accounting::{self, Cost};
use super::case::{Case, CaseError, Work};
use super::ceilings::CeilingKernels;
use super::figures;
use super::groups::{self, Comparison, Group, Measure};
use super::inputs::CaseInputs;
use super::options::{BenchOptions, Op};
use super::report::{Adapter, CaseResult, Failure, Figure, Mode, Pair, Report};
use super::stats::{Summary, Warning, fold, median, warnings};
use super::timer::{Sample, Timer, TimerError};
use crate::trace::SampleError;
use wgpu_paged_attention::testkit::Gpu;

const LEAST_SAMPLES: u32 = 5;
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

/// Measures what `options` ask for. Stops after the current group once `cancel` is set; what was measured is reported.
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
    let (groups, accuracies) = if options.figures {
        (figures::groups(options.seed), figures::num_accuracies())
    } else {
        let (groups, left_out) = groups::groups(options, gpu.is_software())?;
        left_out.iter().for_each(|message| progress(Progress::Message(message)));
        (groups, 0)
    };
    let total = groups.len() + accuracies;
    progress(Progress::Started { total_cases: total });

    let mut timer = Timer::new(gpu)?;
    let kernels = CeilingKernels::new(gpu);
    let ceilings = kernels.measure(&mut timer)?;
    let report = Report::new(command.to_owned(), options.seed, Adapter::of(gpu), ceilings);
    let mut run = Run { gpu, options, timer, kernels, report, warnings: Vec::new() };
    for done in 0..total {
        if cancel.load(Ordering::Relaxed) {
            progress(Progress::Message("stopped before all cases were measured"));
            break;
        }
        if let Some(group) = groups.get(done) {
            progress(Progress::Case { done, label: &group.label() });
            let left = deadline.saturating_duration_since(Instant::now());
            run.group(group, left / (groups.len() - done) as u32);
        } else {
            progress(Progress::Case { done, label: "accuracy" });
            run.accuracy(done - groups.len());
        }
        progress(Progress::Report(&run.report));
    }
    fold(&run.warnings).iter().for_each(|line| progress(Progress::Message(line)));
    Ok(run.report)
}

/// A run in progress.
struct Run<'a> {
    gpu: &'a Gpu,
    options: &'a BenchOptions,
    timer: Timer,
    kernels: CeilingKernels,
    report: Report,
    /// What is doubtful, and about which result.
    warnings: Vec<(String, Warning)>,
}

/// A side of a group under way.
struct Side<'a> {
    /// Its place in the group.
    place: usize,
    inputs: &'a CaseInputs,
    mode: Mode,
    case: &'a Case,
    work: Work,
    cold: Sample,
    max_abs_error: f64,
    samples: Vec<Sample>,
}

/// Rates of the ceilings, measured between the runs of a group.
#[derive(Default)]
struct Beside {
    read_gb_s: Vec<f64>,
    /// Only beside what is bound by it.
    fma_gflop_s: Vec<f64>,
}

impl Run<'_> {
    /// Measures all sides of a group within about `share` of time.
    fn group(&mut self, group: &Group, share: Duration) {
        let end = Instant::now() + share;
        let mut cases = Vec::new();
        for (place, (inputs, mode)) in group.sides.iter().enumerate() {
            match Case::new(self.gpu, inputs, *mode) {
                Ok(case) => cases.push((place, case)),
                Err(error) => group.ops.iter().for_each(|&op| self.fail(inputs, op, *mode, &error.to_string())),
            }
        }
        for (at, &op) in group.ops.iter().enumerate() {
            let mut sides = Vec::new();
            for (place, case) in &cases {
                let (inputs, mode) = &group.sides[*place];
                // Correct first: a case that is not has no time.
                match self.check(op, case) {
                    Ok((work, cold, max_abs_error)) => {
                        let (place, mode, samples) = (*place, *mode, Vec::new());
                        sides.push(Side { place, inputs, mode, case, work, cold, max_abs_error, samples });
                    }
                    Err(error) => self.fail(inputs, op, *mode, &error.to_string()),
                }
            }
            let left = end.saturating_duration_since(Instant::now()) / (group.ops.len() - at) as u32;
            match self.sample(op, &mut sides, left) {
                Ok(beside) => self.record(group, op, &sides, &beside),
                Err(error) => sides.iter().for_each(|side| self.fail(side.inputs, op, side.mode, &error.to_string())),
            }
        }
    }

    fn check(&mut self, op: Op, case: &Case) -> Result<(Work, Sample, f64), CaseError> {
        let work = case.begin(op)?;
        let (cold, max_abs_error) = case.check(&work, &mut self.timer)?;
        Ok((work, cold, max_abs_error))
    }

    /// Times the sides in alternation, and the ceilings with them.
    fn sample(&mut self, op: Op, sides: &mut [Side<'_>], time: Duration) -> Result<Beside, TimerError> {
        let wanted = self.options.samples.unwrap_or(if self.options.quick {
            LEAST_SAMPLES
        } else if self.gpu.is_software() {
            41
        } else {
            101
        });
        let end = Instant::now() + time;
        let mut beside = Beside::default();
        // Round 0 warms up: the check before it ran with other work in between.
        for round in 0..=wanted {
            if self.options.samples.is_none() && round > LEAST_SAMPLES && Instant::now() > end {
                break;
            }
            for side in sides.iter_mut() {
                let sample = side.case.time(&side.work, &mut self.timer)?;
                if round > 0 {
                    side.samples.push(sample);
                }
            }
            let read_gb_s = self.kernels.read_gb_s(&mut self.timer)?;
            let fma_gflop_s = if op.is_compute_bound() { self.kernels.fma_gflop_s(&mut self.timer)? } else { f64::NAN };
            if round > 0 {
                beside.read_gb_s.push(read_gb_s);
                beside.fma_gflop_s.push(fma_gflop_s);
            }
        }
        Ok(beside)
    }

    fn record(&mut self, group: &Group, op: Op, sides: &[Side<'_>], beside: &Beside) {
        let mut results = Vec::new();
        for side in sides {
            let result = self.result(op, side, beside);
            let label = format!("{op} {} {}", side.inputs.label(), side.mode.name());
            let doubts = warnings(&result.samples_us, RESOLUTION_US);
            self.warnings.extend(doubts.into_iter().map(|warning| (label.clone(), warning)));
            results.push(result);
        }
        for paged in &results {
            self.report.pairs.extend(results.iter().filter_map(|other| Pair::of(paged, other)));
        }
        for comparison in &group.comparisons {
            if let Some(mut figure) = figure(comparison, sides, &results, beside) {
                // The project's own name theirs.
                if !self.options.figures {
                    figure.what = format!("{op} {}", figure.what);
                }
                self.report.figures.push(figure);
            }
        }
        self.report.results.extend(results);
    }

    fn result(&self, op: Op, side: &Side<'_>, beside: &Beside) -> CaseResult {
        let inputs = side.inputs;
        let layers = f64::from(inputs.layers);
        let samples_us: Vec<f64> = side.samples.iter().map(|sample| self.timer.time_us(sample) / layers).collect();
        let wall_us: Vec<f64> = side.samples.iter().map(|sample| sample.wall_us / layers).collect();
        let summary = Summary::of(&samples_us);
        let time = |pick: fn(&Summary) -> f64| summary.as_ref().map_or(f64::NAN, pick);
        let cost = cost(inputs, op, side.mode);
        let gb_s = cost.gb_s(time(|summary| summary.median));
        let gflop_s = (cost.flops > 0).then(|| cost.gflop_s(time(|summary| summary.median)));
        let fma_gflop_s = median(&beside.fma_gflop_s);
        CaseResult {
            op: op.to_string(),
            model: inputs.shape.name.to_string(),
            num_q_heads: inputs.shape.num_q_heads,
            num_kv_heads: inputs.shape.num_kv_heads,
            head_dim: inputs.shape.head_dim,
            kv_dtype: inputs.kv_dtype.to_string(),
            block_size: inputs.block_size,
            batch: inputs.lens.len() as u32,
            context: inputs.longest(),
            tokens: inputs.tokens(op),
            queries: inputs.queries(op).iter().map(|&queries| u64::from(queries)).sum(),
            variant: inputs.variant_name(op),
            shared_prefix: inputs.shared_prefix,
            mode: side.mode,
            workload: inputs.workload.clone(),
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
            fraction_of_read: median(&beside.read_gb_s).map(|read| gb_s / read),
            flops: cost.flops,
            gflop_s,
            fraction_of_fma: gflop_s.zip(fma_gflop_s).map(|(gflop_s, fma)| gflop_s / fma),
            max_abs_error: side.max_abs_error,
        }
    }

    /// Measures one of the figures that are made of errors.
    fn accuracy(&mut self, index: usize) {
        match figures::accuracy(self.gpu, self.options.seed, index) {
            Ok(figure) => self.report.figures.push(figure),
            Err(error) => self.report.failures.push(Failure {
                op: "accuracy".to_owned(),
                model: "llama-3-8b".to_owned(),
                batch: 1,
                context: 1,
                mode: Mode::Paged,
                error: error.to_string(),
            }),
        }
    }

    fn fail(&mut self, inputs: &CaseInputs, op: Op, mode: Mode, error: &str) {
        self.report.failures.push(Failure {
            op: op.to_string(),
            model: inputs.shape.name.to_string(),
            batch: inputs.lens.len() as u32,
            context: inputs.longest(),
            mode,
            error: error.to_owned(),
        });
    }
}

/// What a comparison comes to: the median over the rounds. `None` if a side of it has failed.
fn figure(comparison: &Comparison, sides: &[Side<'_>], results: &[CaseResult], beside: &Beside) -> Option<Figure> {
    let of = |place: usize| Some(&results[sides.iter().position(|side| side.place == place)?]);
    let sums = |places: &[usize]| -> Option<Vec<f64>> {
        let results: Vec<&CaseResult> = places.iter().map(|&place| of(place)).collect::<Option<_>>()?;
        let rounds = results.iter().map(|result| result.samples_us.len()).min()?;
        Some((0..rounds).map(|round| results.iter().map(|result| result.samples_us[round]).sum()).collect())
    };
    let numbers: Vec<f64> = match &comparison.measure {
        Measure::Ratio(over, under) => sums(over)?.into_iter().zip(sums(under)?).map(|(a, b)| a / b).collect(),
        Measure::ShareOfMultiplyAdd(place) => {
            let result = of(*place)?;
            let gflop_s = |us: &f64| result.flops as f64 / us / 1e3;
            result.samples_us.iter().zip(&beside.fma_gflop_s).map(|(us, fma)| gflop_s(us) / fma).collect()
        }
    };
    let (what, limit) = (comparison.what.clone(), comparison.limit);
    Some(Figure { what, measured: median(&numbers)?, limit, samples: numbers.len() })
}

fn cost(inputs: &CaseInputs, op: Op, mode: Mode) -> Cost {
    let paged = mode != Mode::Contiguous;
    let row_bytes = inputs.kv_dtype.used_bytes(inputs.shape.head_dim);
    if op == Op::Append {
        return accounting::append(&inputs.shape, row_bytes, inputs.tokens(op), paged);
    }
    let rows: Vec<(u32, u32)> = inputs.queries(op).into_iter().zip(inputs.lens.iter().copied()).collect();
    accounting::Attention {
        rows: &rows,
        variant: inputs.variant,
        lse: inputs.lse,
        // What is shared are whole blocks.
        shared: if mode == Mode::Shared { inputs.shared_prefix / inputs.block_size * inputs.block_size } else { 0 },
        block_size: paged.then_some(inputs.block_size),
    }
    .cost(&inputs.shape, row_bytes)
}
