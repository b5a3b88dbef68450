//! The benchmark run: groups of cases one after the other, checked, then timed in alternation.

mod device;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wgpu_paged_attention::testkit::{ACCURACY, Gpu, Verdict};

use super::ceilings::best;
use super::{
    BenchOptions, CaseError, CaseInputs, CaseResult, Clock, Comparison, CoreTime, Failure, Figure, Group, Measure,
    Mode, Op, Pair, Report, Rounds, Sample, Summary, ThreadTimes, TimerError, Timing, Warning, figures, fold, groups,
    median, warnings,
};
use crate::common::ChosenProfile;
use crate::report::Adapter;
use crate::trace::SampleError;
use device::Device;

const LEAST_SAMPLES: u32 = 5;
const SOFTWARE_SAMPLES: u32 = 41;
const GPU_SAMPLES: u32 = 101;
/// A clock that is read across a submission does not resolve less.
const RESOLUTION_US: f64 = 1.0;

#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    Started { total_cases: usize },
    Case { done: usize, label: &'a str },
    Message(&'a str),
    Report(&'a Report),
}

#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    #[error(transparent)]
    Timer(#[from] TimerError),
    #[error(transparent)]
    Lengths(#[from] SampleError),
}

pub trait Timer: Clock {
    type Case;
    type Work;
    fn prepare(&mut self, inputs: &CaseInputs, mode: Mode) -> Result<Self::Case, CaseError>;
    /// Runs an operation once and compares it with the reference: its first time and its largest error.
    fn check(&mut self, case: &Self::Case, op: Op) -> Result<(Self::Work, Sample, f64), CaseError>;
    fn time(&mut self, case: &Self::Case, work: &Self::Work) -> Result<Sample, TimerError>;
    fn read_gb_s(&mut self) -> Result<f64, TimerError>;
    fn fma_gflop_s(&mut self) -> Result<f64, TimerError>;
    fn accuracy(&mut self, seed: u64, index: usize) -> Result<Figure, Verdict>;
    fn timing(&self) -> Timing;
    fn time_us(&self, sample: &Sample) -> f64;
    /// Of the program so far, where it computes what is timed.
    fn core_time(&self) -> Option<ThreadTimes>;
}

/// Measures what `options` ask for. Stops after the current group once `cancel` is set; what was measured is reported.
pub fn run(
    gpu: &Gpu,
    chosen: &ChosenProfile,
    options: &BenchOptions,
    command: &str,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Report, BenchError> {
    let (groups, accuracies) = work(options, gpu.is_software(), progress)?;
    progress(Progress::Started { total_cases: groups.len() + accuracies });
    let (mut device, ceilings) = Device::new(gpu, &chosen.profile)?;
    let mut report = Report::new(command.to_owned(), options.seed, Adapter::of(gpu), ceilings);
    report.profile = chosen.source.clone();
    let most = if gpu.is_software() { SOFTWARE_SAMPLES } else { GPU_SAMPLES };
    Ok(Run::new(&mut device, options, most, report).all(&groups, accuracies, cancel, progress))
}

fn work(
    options: &BenchOptions,
    software: bool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(Vec<Group>, usize), SampleError> {
    if options.figures {
        return Ok((figures::groups(options.seed), ACCURACY.len()));
    }
    let (groups, left_out) = groups::groups(options, software)?;
    left_out.iter().for_each(|message| progress(Progress::Message(message)));
    Ok((groups, 0))
}

struct Run<'a, T> {
    timer: &'a mut T,
    options: &'a BenchOptions,
    deadline: Duration,
    count: std::ops::RangeInclusive<u32>,
    report: Report,
    warnings: Vec<(String, Warning)>,
    /// Of the timed runs.
    core_time: CoreTime,
}

struct Side<'a, T: Timer> {
    place: usize,
    inputs: &'a CaseInputs,
    mode: Mode,
    case: &'a T::Case,
    work: T::Work,
    cold: Sample,
    max_abs_error: f64,
    samples: Vec<Sample>,
}

#[derive(Default)]
struct Beside {
    read_gb_s: Vec<f64>,
    /// Only beside what is bound by it.
    fma_gflop_s: Vec<f64>,
}

impl<'a, T: Timer> Run<'a, T> {
    /// `most`: samples of a case where time allows and `options` name no number.
    fn new(timer: &'a mut T, options: &'a BenchOptions, most: u32, report: Report) -> Self {
        let count = match (options.samples, options.quick) {
            (Some(samples), _) => samples..=samples,
            (None, true) => LEAST_SAMPLES..=LEAST_SAMPLES,
            (None, false) => LEAST_SAMPLES..=most,
        };
        let deadline = timer.now() + options.time_budget;
        let (warnings, core_time) = (Vec::new(), CoreTime::default());
        Self { timer, options, deadline, count, report, warnings, core_time }
    }

    fn all(
        mut self,
        groups: &[Group],
        accuracies: usize,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Report {
        for done in 0..groups.len() + accuracies {
            if cancel.load(Ordering::Relaxed) {
                progress(Progress::Message("stopped before all cases were measured"));
                break;
            }
            if let Some(group) = groups.get(done) {
                progress(Progress::Case { done, label: &group.label() });
                let left = self.deadline.saturating_sub(self.timer.now());
                self.group(group, left / (groups.len() - done) as u32);
            } else {
                progress(Progress::Case { done, label: "accuracy" });
                self.accuracy(done - groups.len());
            }
            self.report.note();
            progress(Progress::Report(&self.report));
        }
        fold(&self.warnings).iter().for_each(|line| progress(Progress::Message(line)));
        self.report
    }

    fn group(&mut self, group: &Group, share: Duration) {
        let end = self.timer.now() + share;
        let mut cases = Vec::new();
        for (place, (inputs, mode)) in group.sides.iter().enumerate() {
            match self.timer.prepare(inputs, *mode) {
                Ok(case) => cases.push((place, case)),
                Err(error) => group.ops.iter().for_each(|&op| self.fail(inputs, op, *mode, &error.to_string())),
            }
        }
        for (at, &op) in group.ops.iter().enumerate() {
            let mut sides = Vec::new();
            for (place, case) in &cases {
                let (inputs, mode) = &group.sides[*place];
                // Correct first: a case that is not has no time.
                match self.timer.check(case, op) {
                    Ok((work, cold, max_abs_error)) => {
                        let (place, mode, samples) = (*place, *mode, Vec::new());
                        sides.push(Side { place, inputs, mode, case, work, cold, max_abs_error, samples });
                    }
                    Err(error) => self.fail(inputs, op, *mode, &error.to_string()),
                }
            }
            let now = self.timer.now();
            let deadline = now + end.saturating_sub(now) / (group.ops.len() - at) as u32;
            let start = self.timer.core_time();
            let sampled = self.sample(op, &mut sides, deadline);
            if let Some((start, end)) = start.zip(self.timer.core_time()) {
                self.core_time = self.core_time.plus(end.since(&start));
                self.report.waiting_share = self.core_time.waiting_share();
            }
            match sampled {
                Ok(beside) => self.record(group, op, &sides, &beside),
                Err(error) => sides.iter().for_each(|side| self.fail(side.inputs, op, side.mode, &error.to_string())),
            }
        }
    }

    fn sample(&mut self, op: Op, sides: &mut [Side<'_, T>], deadline: Duration) -> Result<Beside, TimerError> {
        let mut beside = Beside::default();
        let rounds = Rounds { count: self.count.clone(), deadline };
        let mut backwards = false;
        rounds.each(self.timer, |timer, counts| {
            let mut time = |side: &mut Side<'_, T>| -> Result<(), TimerError> {
                let sample = timer.time(side.case, &side.work)?;
                side.samples.extend(counts.then_some(sample));
                Ok(())
            };
            // What comes first in a round follows a kernel of another kind, and may pay for that.
            match backwards {
                false => sides.iter_mut().try_for_each(&mut time)?,
                true => sides.iter_mut().rev().try_for_each(&mut time)?,
            }
            backwards = !backwards;
            let read_gb_s = timer.read_gb_s()?;
            let fma_gflop_s = if op.is_compute_bound() { timer.fma_gflop_s()? } else { f64::NAN };
            beside.read_gb_s.extend(counts.then_some(read_gb_s));
            beside.fma_gflop_s.extend(counts.then_some(fma_gflop_s));
            Ok(())
        })?;
        Ok(beside)
    }

    fn record(&mut self, group: &Group, op: Op, sides: &[Side<'_, T>], beside: &Beside) {
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
        let places: Vec<usize> = sides.iter().map(|side| side.place).collect();
        for comparison in &group.comparisons {
            if let Some(mut figure) = figure(comparison, &places, &results, beside) {
                // Performance targets name their operation.
                if !self.options.figures {
                    figure.what = format!("{op} {}", figure.what);
                }
                self.report.figures.push(figure);
            }
        }
        self.report.results.extend(results);
    }

    fn result(&self, op: Op, side: &Side<'_, T>, beside: &Beside) -> CaseResult {
        let inputs = side.inputs;
        let layers = f64::from(inputs.layers);
        let samples_us: Vec<f64> = side.samples.iter().map(|sample| self.timer.time_us(sample) / layers).collect();
        let wall_us: Vec<f64> = side.samples.iter().map(|sample| sample.wall_us / layers).collect();
        let summary = Summary::of(&samples_us);
        let time = |pick: fn(&Summary) -> f64| summary.as_ref().map_or(f64::NAN, pick);
        let cost = inputs.cost(op, side.mode);
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
            fraction_of_read: best(&beside.read_gb_s).map(|read| gb_s / read),
            flops: cost.flops,
            gflop_s,
            fraction_of_fma: gflop_s.zip(fma_gflop_s).map(|(gflop_s, fma)| gflop_s / fma),
            max_abs_error: side.max_abs_error,
        }
    }

    fn accuracy(&mut self, index: usize) {
        match self.timer.accuracy(self.options.seed, index) {
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

/// What a comparison comes to: the median over the rounds, of quotients over two neighbours, in which each side came early
/// and late. `None` if a side of it has failed. `places` are those of the results in their group.
fn figure(comparison: &Comparison, places: &[usize], results: &[CaseResult], beside: &Beside) -> Option<Figure> {
    let of = |place: usize| Some(&results[places.iter().position(|&other| other == place)?]);
    let sums = |places: &[usize]| -> Option<Vec<f64>> {
        let results: Vec<&CaseResult> = places.iter().map(|&place| of(place)).collect::<Option<_>>()?;
        let rounds = results.iter().map(|result| result.samples_us.len()).min()?;
        let times = |at: std::ops::Range<usize>| results.iter().flat_map(|result| &result.samples_us[at.clone()]).sum();
        Some((0..rounds.saturating_sub(1).max(1)).map(|round| times(round..rounds.min(round + 2))).collect())
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
