//! `paged-attention check`: the kernels against the oracle, in words.

use clap::Args;

use super::CheckOptions;
use crate::check;
use crate::common::{AdapterArgs, Failure, Progress, Status, TableArgs};

pub const HELP: &str = "\
Runs every storage format, paged and contiguous, with and without subgroups, on steps and heads that are easy to get
wrong: decoding, prompts, mixed and speculative steps, shared prefixes, split rows, with options of attention drawn by the
seed. Plants faults that must be noticed. On a software adapter, whose driver compiles slowly, the first full check takes
minutes; later ones find its cache.

Examples:
  paged-attention check
  paged-attention check --quick --json check.json
  paged-attention check --adapter nvidia --require-gpu";

#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Few scenarios: seconds, even on a CPU.
    #[arg(long)]
    pub quick: bool,
    /// Seed of all inputs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Files; the CSV has a row for every form of the kernels.
    #[command(flatten)]
    pub tables: TableArgs,
}

pub fn run(args: &CheckArgs) -> Result<Status, Failure> {
    let files = args.tables.prepare(&[])?;
    let gpu = args.adapter.open()?;
    let options = CheckOptions { quick: args.quick, seed: args.seed };
    let bar = Progress::new();
    let software = if gpu.is_software() { " (SOFTWARE ADAPTER)" } else { "" };
    let report = check::run(&gpu, &options, &mut |progress| match progress {
        check::Progress::Started { total } => {
            bar.say(&format!("checking {total} scenarios on {}{software}", gpu.info.name));
            bar.start(total);
        }
        check::Progress::At { done, label } => bar.at(done, label),
    });
    bar.finish();
    files.deliver(&report)?;
    Ok(if report.passed() { Status::Ok } else { Status::Failed })
}
