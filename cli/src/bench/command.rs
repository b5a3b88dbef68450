//! `paged-attention bench`: options in, tables, files and a page out.

use std::sync::atomic::Ordering;

use wgpu_paged_attention::testkit::ScenarioVariant;

use super::args::BenchArgs;
use super::{BenchError, BenchOptions, Lengths, ModelShape, Report, runner};
use crate::common::{Failure, Progress, Status, cancel_on_ctrl_c, command_line};
use crate::trace::ReadOptions;
use crate::tune::{self, TuneOptions};

pub fn run(args: &BenchArgs) -> Result<Status, Failure> {
    let files = args.report.prepare(&[&args.trace.trace, &args.other.config, &args.profile.profile])?;
    args.check_lengths()?;
    let options = options(args)?;
    let gpu = args.adapter.open()?;
    let mut chosen = args.profile.choose(&gpu)?;
    let cancel = cancel_on_ctrl_c()?;

    let bar = Progress::new();
    if args.tune {
        chosen = tune::for_bench(&gpu, &tune_options(&options, gpu.is_software()), &cancel, &bar)?;
    }
    let software = if gpu.is_software() { " (SOFTWARE ADAPTER)" } else { "" };
    // A file that cannot be written any more ends the run no sooner: the table may still be had.
    let mut unsaved = None;
    let ended = runner::run(&gpu, &chosen, &options, &command_line(), &cancel, &mut |progress| match progress {
        runner::Progress::Started { total_cases } => {
            bar.say(&format!("measuring {total_cases} cases on {}{software}", gpu.info.name));
            bar.start(total_cases);
        }
        runner::Progress::Case { done, label, .. } => bar.at(done, label),
        runner::Progress::Message(message) => bar.say(message),
        runner::Progress::Report(report) => unsaved = files.tables.write_json(report).err(),
    });
    bar.finish();
    let report = ended.map_err(|error| {
        let status = if matches!(error, BenchError::Lengths(_)) { Status::Usage } else { Status::Failed };
        Failure::new(status, error.to_string())
    })?;

    if report.results.is_empty() && report.failures.is_empty() && !cancel.load(Ordering::Relaxed) {
        eprintln!("error: nothing was measured; choose smaller cases with --batch and --context, or --case");
    }
    files.deliver(&report)?;
    if let Some(failure) = unsaved {
        eprintln!("warning: an earlier attempt to save failed: {}", failure.message);
    }
    Ok(status(&report, cancel.load(Ordering::Relaxed)))
}

fn status(report: &Report, interrupted: bool) -> Status {
    if interrupted {
        Status::Interrupted
    } else if !report.failures.is_empty() || report.results.is_empty() {
        Status::Failed
    } else {
        Status::Ok
    }
}

/// For the first of the shapes, in the first format.
fn tune_options(options: &BenchOptions, software: bool) -> TuneOptions {
    let mut shapes = options.cases.iter().map(|case| &case.shape).chain(&options.models);
    // The shape is in the table, which a test checks.
    let shape = shapes.next().cloned().or_else(|| ModelShape::by_name("llama-3-8b").ok());
    let mut tune = TuneOptions::new(shape.expect("it is in the table"), software, options.quick);
    tune.kv_dtype = options.kv_dtypes.first().copied().unwrap_or(tune.kv_dtype);
    tune.block_size = options.block_sizes.first().copied().unwrap_or(tune.block_size);
    tune.seed = options.seed;
    tune
}

fn options(args: &BenchArgs) -> Result<BenchOptions, Failure> {
    let lengths = match (args.trace.read(ReadOptions::LENGTHS)?, &args.workload) {
        (Some(log), _) => Lengths::Trace { name: log.name, requests: log.requests },
        (None, Some(workload)) => Lengths::Workload(*workload),
        (None, None) if !args.lens.is_empty() => Lengths::Lists(args.lens.clone()),
        (None, None) => Lengths::Uniform,
    };
    let variant = ScenarioVariant {
        causal: !args.non_causal,
        window: args.window,
        soft_cap: args.soft_cap,
        alibi: args.alibi,
        sinks: args.sinks,
        io_format: args.io,
    };
    Ok(BenchOptions {
        figures: args.figures,
        ops: args.op.clone(),
        models: args.shapes()?,
        cases: args.case.clone(),
        kv_dtypes: args.kv_dtype.clone(),
        block_sizes: args.block_size.clone(),
        batches: args.batch.clone(),
        contexts: args.context.clone(),
        queries: args.queries,
        shared_prefix: args.shared_prefix,
        variant,
        lse: args.lse,
        samples: args.samples,
        lengths,
        seed: args.seed,
        time_budget: args.time_budget,
        quick: args.quick,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::{CaseResult, Ceilings, Failure, Mode};
    use crate::report::Adapter;

    fn report() -> Report {
        let mut report = Report::new("paged-attention bench".into(), 1, Adapter::default(), Ceilings::default());
        report.results.push(CaseResult::sample());
        report
    }

    #[test]
    fn a_failed_case_is_a_failed_run_however_many_passed() {
        let mut report = report();
        assert_eq!(status(&report, false), Status::Ok);
        let (op, model) = ("decode".to_owned(), "m".to_owned());
        let (mode, error) = (Mode::Contiguous, "element 0: got NaN".to_owned());
        report.failures = vec![Failure { op, model, batch: 1, context: 1, mode, error }];
        assert_eq!(status(&report, false), Status::Failed);
    }

    #[test]
    fn a_run_that_measured_nothing_has_failed() {
        let mut report = report();
        report.results.clear();
        assert_eq!(status(&report, false), Status::Failed);
        assert_eq!(status(&report, true), Status::Interrupted);
    }
}
