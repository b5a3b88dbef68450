//! `paged-attention check`: the kernels against the oracle, in words.

use clap::Args;

use super::CheckOptions;
use crate::check;
use crate::common::{AdapterArgs, Failure, ProfileArgs, Progress, Status, TableArgs};

pub const HELP: &str = "\
Runs every storage format, paged and contiguous, with and without subgroups, on steps and heads that are easy to get
wrong: decoding, prompts, mixed and speculative steps, shared prefixes, split rows, with options of attention drawn by the
seed; and appends that norm and rotate. Plants faults that must be noticed. On a software adapter, whose driver compiles
slowly, the first full check takes minutes; later ones find its cache.

Examples:
  paged-attention check
  paged-attention check --quick --json check.json
  paged-attention check --adapter nvidia --require-gpu";

/// Of a software adapter: each takes memory, and more cores than a few are never busy to the end.
const MOST_DEVICES: usize = 4;

#[derive(Debug, Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub profile: ProfileArgs,
    /// Few scenarios: seconds, even on a CPU.
    #[arg(long)]
    pub quick: bool,
    /// Also the forms of the kernels that this device could run and does not.
    #[arg(long)]
    pub every_form: bool,
    /// Seed of all inputs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Files; the CSV has a row for every form of the kernels.
    #[command(flatten)]
    pub tables: TableArgs,
}

pub fn run(args: &CheckArgs) -> Result<Status, Failure> {
    let files = args.tables.prepare(&[&args.profile.profile])?;
    let mut gpus = vec![args.adapter.open()?];
    let profile = args.profile.choose(&gpus[0])?.profile;
    let software = gpus[0].is_software();
    if software {
        // Each compiles on a core of its own; where there is no room for several, one will do.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 1..cores.min(MOST_DEVICES) {
            let Ok(gpu) = args.adapter.open() else { break };
            gpus.push(gpu);
        }
    }
    let options = CheckOptions { quick: args.quick, every_form: args.every_form, seed: args.seed };
    let bar = Progress::new();
    let note = if software { " (SOFTWARE ADAPTER)" } else { "" };
    let report = check::run(&gpus, &profile, &options, &|progress| match progress {
        check::Progress::Started { total } => {
            bar.say(&format!("checking {total} scenarios on {}{note}", gpus[0].info.name));
            bar.start(total);
        }
        check::Progress::At { done, label } => bar.at(done, label),
    });
    bar.finish();
    files.deliver(&report)?;
    Ok(if report.passed() { Status::Ok } else { Status::Failed })
}
