//! Where requests come from: a log, or a workload that is drawn.

use std::path::{Path, PathBuf};

use crate::bench::models::MAX_CONTEXT;
use crate::trace::{self, Log, ReadOptions};
use crate::workload::Workload;
use clap::Args;

use crate::args::{up_to, workloads};
use crate::common::status::{Failure, Status};

/// The requests.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// A request log: CSV with arrival_s,prompt_tokens,output_tokens, or an Azure, BurstGPT or Mooncake trace, gz or not.
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    pub trace: Option<PathBuf>,
    /// Leave out rows of the log that cannot be read, and say how many.
    #[arg(long, requires = "trace")]
    pub skip_bad: bool,
    /// Tokens that one hash id of the log stands for [default: as the log shows].
    #[arg(long, value_name = "TOKENS", requires = "trace", value_parser = up_to(MAX_CONTEXT))]
    pub tokens_per_id: Option<u32>,
    /// Draw requests from fits to published logs.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = workloads())]
    pub workload: Vec<Workload>,
    /// Requests drawn from a workload.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = up_to(1 << 24), conflicts_with = "trace")]
    pub requests: u32,
}

impl LogArgs {
    /// The log, or the workloads drawn with `seed`; of `default` where nothing was asked for.
    pub fn read(&self, default: &[Workload], seed: u64) -> Result<Vec<Log>, Failure> {
        if let Some(path) = &self.trace {
            let read = ReadOptions { skip_bad: self.skip_bad, tokens_per_id: self.tokens_per_id };
            return Ok(vec![read_log(path, &read)?]);
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

/// The log of `--trace`; says how many bad rows were left out.
pub fn read_log(path: &Path, options: &ReadOptions) -> Result<Log, Failure> {
    let log =
        trace::read_file(path, options).map_err(|error| Failure::new(Status::Usage, format!("--trace {error}")))?;
    if log.skipped > 0 {
        eprintln!("warning: {} bad rows of {} were left out", log.skipped, log.name);
    }
    Ok(log)
}
