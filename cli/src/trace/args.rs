//! Where requests come from: a log, or a workload that is drawn.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::{Log, ReadOptions, count, read_file};
use crate::common::{Failure, Status, up_to};
use crate::needs::no_effect;
use crate::workload::Workload;

/// A log.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// A request log: CSV with arrival_s,prompt_tokens,output_tokens, or an Azure, BurstGPT, Mooncake or Qwen-Bailian
    /// trace, gz or not.
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    pub trace: Option<PathBuf>,
    /// Leave out rows of the log that cannot be read, and say how many.
    #[arg(long, requires = "trace")]
    pub skip_bad: bool,
}

/// A log, or drawn requests.
#[derive(Debug, Args)]
pub struct LogArgs {
    #[command(flatten)]
    pub trace: TraceArgs,
    /// Draw requests from fits to published logs.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = workloads())]
    pub workload: Vec<Workload>,
    /// Requests drawn from a workload.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = up_to(1 << 24), conflicts_with = "trace")]
    pub requests: u32,
}

impl TraceArgs {
    pub fn read(&self, options: ReadOptions) -> Result<Option<Log>, Failure> {
        let Some(path) = &self.trace else { return Ok(None) };
        let log = read_file(path, &ReadOptions { skip_bad: self.skip_bad, ..options })
            .map_err(|error| Failure::new(Status::Usage, format!("--trace {error}")))?;
        if log.skipped > 0 {
            let verb = if log.skipped == 1 { "was" } else { "were" };
            eprintln!("warning: {} of {} {verb} left out", count(log.skipped, "bad row"), log.name);
        }
        if let Some(doubt) = &log.time_doubt {
            eprintln!("warning: {}: {doubt}", log.name);
        }
        Ok(Some(log))
    }
}

impl LogArgs {
    pub fn read(&self, options: ReadOptions, default: &[Workload], seed: u64) -> Result<Vec<Log>, Failure> {
        if let Some(log) = self.trace.read(options)? {
            return Ok(vec![log]);
        }
        let workloads = if self.workload.is_empty() { default } else { &self.workload };
        let drawn = |workload: &Workload| Log {
            name: workload.name.to_owned(),
            requests: workload.requests(self.requests as usize, seed),
            ..Log::default()
        };
        Ok(workloads.iter().map(drawn).collect())
    }
}

pub fn workloads() -> impl TypedValueParser<Value = Workload> {
    let values = Workload::BUILT_IN.map(|workload| PossibleValue::new(workload.name).help(workload.source));
    PossibleValuesParser::new(values).try_map(|name| Workload::by_name(&name))
}

pub fn check_ids(given: &[(&str, bool)]) -> Result<(), Failure> {
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(no_effect(option, "on a log without hash_ids")),
        None => Ok(()),
    }
}
