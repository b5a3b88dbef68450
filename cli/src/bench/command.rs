//! `paged-attention bench`: options in, tables, files and a page out.

use std::io::{IsTerminal, stderr};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bench::options::{BenchOptions, Lengths};
use crate::bench::report::{Report, render};
use crate::bench::runner::{self, BenchError};
use crate::trace::ReadOptions;
use wgpu_paged_attention::testkit::ScenarioVariant;

use crate::bench::args::BenchArgs;
use crate::common::files::ReportFiles;
use crate::common::output::{Progress, print};
use crate::common::status::{Failure, Status};

/// Runs the command.
pub fn run(args: &BenchArgs) -> Result<Status, Failure> {
    let files = args.report.prepare()?;
    args.check_lengths()?;
    let options = options(args)?;
    let gpu = args.adapter.open()?;
    let cancel = cancel_on_ctrl_c()?;

    let bar = Progress::new();
    let software = if gpu.is_software() { " (SOFTWARE ADAPTER)" } else { "" };
    // A file that cannot be written any more ends the run no sooner: the table may still be had.
    let mut unsaved = None;
    let ended = runner::run(&gpu, &options, &command_line(), &cancel, &mut |progress| match progress {
        runner::Progress::Started { total_cases } => {
            bar.say(&format!("measuring {total_cases} cases on {}{software}", gpu.info.name));
            bar.start(total_cases);
        }
        runner::Progress::Case { done, label, .. } => bar.at(done, label),
        runner::Progress::Message(message) => bar.say(message),
        runner::Progress::Report(report) => unsaved = save(report, &files).err(),
    });
    bar.finish();
    let report = ended.map_err(|error| {
        let status = if matches!(error, BenchError::Lengths(_)) { Status::Usage } else { Status::Failed };
        Failure::new(status, error.to_string())
    })?;

    print(&render(&report))?;
    if report.results.is_empty() && report.failures.is_empty() && !cancel.load(Ordering::Relaxed) {
        eprintln!("error: nothing was measured; choose smaller cases with --batch and --context, or --case");
    }
    save(&report, &files)?;
    files.tables.write_csv(|| report.to_csv())?;
    files.write_page(&report)?;
    if let Some(failure) = unsaved {
        eprintln!("warning: an earlier attempt to save failed: {}", failure.message);
    }
    Ok(Status::of_bench(&report, cancel.load(Ordering::Relaxed)))
}

fn save(report: &Report, files: &ReportFiles) -> Result<(), Failure> {
    let Some(file) = &files.tables.json else { return Ok(()) };
    report.write(file.path()).map_err(|error| Failure::new(Status::Failed, error.to_string()))
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

/// The command line of this run, fit for a shell; what is not UTF-8 in it, names of files, can only be hinted at.
pub fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| quote(&word.to_string_lossy()));
    std::iter::once("paged-attention".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,./:+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The first Ctrl-C ends the run after the current case, the second one at once.
pub fn cancel_on_ctrl_c() -> Result<Arc<AtomicBool>, Failure> {
    let cancel = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&cancel);
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            process::exit(Status::Interrupted as i32);
        }
        // On a terminal, below the bar.
        let newline = if stderr().is_terminal() { "\n" } else { "" };
        eprintln!("{newline}stopping after this case; Ctrl-C once more stops at once");
    })
    .map_err(|error| Failure::new(Status::Failed, format!("cannot listen for Ctrl-C: {error}")))?;
    Ok(cancel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_can_be_pasted_into_a_shell() {
        assert_eq!(quote("--case"), "--case");
        assert_eq!(quote("8,1024,32,8,128"), "8,1024,32,8,128");
        assert_eq!(quote("my log.csv"), "'my log.csv'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }
}
