//! The program's arguments: a command, each with its own.

use clap::{Parser, Subcommand};

use crate::bench::args::{self as bench, BenchArgs};
use crate::blocks::command::{self as blocks, BlocksArgs};
use crate::check::command::{self as check, CheckArgs};
use crate::compare::command::{self as compare, CompareArgs};
use crate::devices::DevicesArgs;
use crate::plan::command::{self as plan, PlanArgs};
use crate::replay::command::{self as replay, ReplayArgs};
use crate::tune::command::{self as tune, TuneArgs};

const EXIT_STATUSES: &str = "\
Exit status:
  0    done, and everything is right
  1    a wrong result, a failed measurement, a report that could not be written, or a case that --fail-on-slower counts
  2    wrong usage, or a file that cannot be read or written
  3    no adapter, none of that name, or only software where --require-gpu is given
  130  ended by Ctrl-C; what was measured is printed and written";

const PROGRAM_HELP: &str = "\
Without a command, `bench` is run; its options may follow at once.

Examples:
  paged-attention                                  measure what suits the adapter
  paged-attention devices                          what there is to measure on
  paged-attention check --quick                    are the results right here?
  paged-attention bench --case 8,1024,32,8,128 --json out.json
  paged-attention plan --model llama-3-8b          what a cache takes, and what paging saves";

/// A paged KV cache and PagedAttention for every device that wgpu reaches: look at devices, check, measure, tune, plan, compare.
#[derive(Debug, Parser)]
#[command(name = "paged-attention", version, override_usage = "paged-attention [COMMAND] [OPTIONS]", after_help = format!("{PROGRAM_HELP}\n\n{EXIT_STATUSES}"))]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the adapters, what they offer and which kernels they would get.
    #[command(after_help = EXIT_STATUSES)]
    Devices(DevicesArgs),
    /// Compare every form of the kernels with a reference on the CPU.
    #[command(after_help = format!("{}\n\n{EXIT_STATUSES}", check::HELP))]
    Check(CheckArgs),
    /// Measure append, decode, prefill and mixed steps, paged and contiguous.
    #[command(after_help = format!("{}\n\n{EXIT_STATUSES}", bench::HELP))]
    Bench(Box<BenchArgs>),
    /// Find the form of the kernels that is the fastest on this device, and keep it in a file.
    #[command(after_help = format!("{}\n\n{EXIT_STATUSES}", tune::HELP))]
    Tune(Box<TuneArgs>),
    /// Put two reports side by side, and say what differs beyond the noise.
    #[command(after_help = format!("{}\n\n{EXIT_STATUSES}", compare::HELP))]
    Compare(CompareArgs),
    /// Compare block sizes on a request log or on workloads: memory, tables, prefix hits, decode time.
    #[command(after_help = format!("{}\n\n{EXIT_STATUSES}", blocks::HELP))]
    Blocks(Box<BlocksArgs>),
    /// Work out what a cache takes and what paging saves, without measuring.
    #[command(after_help = format!("{}\n\n{EXIT_STATUSES}", plan::HELP))]
    Plan(Box<PlanArgs>),
    /// Serve a request log with a contiguous and a paged cache, and compare them.
    #[command(after_help = format!("{}\n\n{EXIT_STATUSES}", replay::HELP))]
    Replay(Box<ReplayArgs>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
