//! What can be asked for.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use crate::bench::lens::LengthList;
use crate::bench::models::{CaseSpec, MAX_BATCH, MAX_CONTEXT, ModelShape};
use crate::bench::options::Op;
use crate::workload::Workload;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use wgpu_paged_attention::config::{KvDtype, MAX_BLOCK_SIZE};
use wgpu_paged_attention::gpu::IoFormat;

use crate::blocks::command::{self as blocks, BlocksArgs};
use crate::common::files::{ReportArgs, TableArgs};
use crate::compare::command::{self as compare, CompareArgs};
use crate::plan::command::{self as plan, PlanArgs};
use crate::replay::command::{self as replay, ReplayArgs};

/// More runs than anybody has time for.
const MAX_SAMPLES: u32 = 100_000;
/// A day.
const MAX_SECONDS: f64 = 86_400.0;

/// Beyond, a cap caps nothing.
const MAX_SOFT_CAP: f32 = 1e6;

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

const BENCH_HELP: &str = "\
Every case is first compared with a reference on the CPU; one that is wrong has no numbers and makes the run fail.
Paged and contiguous runs alternate, so that their quotient is the price of paging; so do storage formats, and batches
with and without a shared prefix.

Examples:
  paged-attention bench                                       all models, sizes that suit the adapter
  paged-attention bench --model llama-3-8b --batch 8 --context 1024,4096
  paged-attention bench --case 8,1024,32,8,128 --kv-dtype f16,f32,int8,int4
  paged-attention bench --op decode --model llama-3-8b --lens 32768,256x63 --lens 32768 --lens 256x63
  paged-attention bench --op decode --model llama-3-8b --batch 64 --context 2112 --shared-prefix 2048
  paged-attention bench --op prefill --model llama-3-8b --batch 1 --context 512 --window 256 --io f16
  paged-attention bench --figures
  paged-attention bench --workload azure-conv --batch 64 --context 8192
  paged-attention bench --trace requests.csv --require-gpu --json out.json
  paged-attention bench --report out.html --svg plots --csv out.csv";

const CHECK_HELP: &str = "\
Runs every storage format, paged and contiguous, with and without subgroups, on steps and heads that are easy to get
wrong: decoding, prompts, mixed and speculative steps, shared prefixes, split rows, with options of attention drawn by the
seed. Plants faults that must be noticed. On a software adapter, whose driver compiles slowly, the first full check takes
minutes; later ones find its cache.

Examples:
  paged-attention check
  paged-attention check --quick --json check.json
  paged-attention check --adapter nvidia --require-gpu";

/// A paged KV cache and PagedAttention for every device that wgpu reaches: look at devices, check, measure, plan, compare.
#[derive(Debug, Parser)]
#[command(name = "paged-attention", version, override_usage = "paged-attention [COMMAND] [OPTIONS]", after_help = format!("{PROGRAM_HELP}\n\n{EXIT_STATUSES}"))]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the adapters, what they offer and which kernels they would get.
    #[command(after_help = EXIT_STATUSES)]
    Devices(DevicesArgs),
    /// Compare every form of the kernels with a reference on the CPU.
    #[command(after_help = format!("{CHECK_HELP}\n\n{EXIT_STATUSES}"))]
    Check(CheckArgs),
    /// Measure append, decode, prefill and mixed steps, paged and contiguous.
    #[command(after_help = format!("{BENCH_HELP}\n\n{EXIT_STATUSES}"))]
    Bench(Box<BenchArgs>),
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

/// Arguments of `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Files.
    #[command(flatten)]
    pub tables: TableArgs,
}

/// Which adapter.
#[derive(Debug, Args)]
pub struct AdapterArgs {
    /// Part of the adapter's name in any case, or its number in `devices` [default: the first].
    #[arg(long, value_name = "NAME|NUMBER")]
    pub adapter: Option<String>,
    /// Refuse an adapter that computes on the CPU (exit status 3).
    #[arg(long)]
    pub require_gpu: bool,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The adapter.
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

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The adapter.
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// Measure the project's own figures and say which are met: prompts against the multiply-adds, formats, windows,
    /// shared prefixes and ragged batches against each other, and the error of every format.
    #[arg(long, conflicts_with_all = ["op", "model", "case", "kv_dtype", "block_size", "batch", "context", "lens",
        "trace", "workload", "queries", "shared_prefix", "window", "soft_cap", "alibi", "sinks", "non_causal", "lse",
        "io", "quick"])]
    pub figures: bool,
    /// Operations: append, decode, prefill, mixed [default: all that end in time].
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    pub op: Vec<Op>,
    /// Models by name [default: all].
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = models(), conflicts_with = "case")]
    pub model: Vec<ModelShape>,
    /// One case by its numbers: BATCH,CONTEXT,NUM_Q_HEADS,NUM_KV_HEADS,HEAD_DIM; may be repeated.
    #[arg(long, value_name = "B,CTX,HQ,HKV,D", conflicts_with_all = ["batch", "context"])]
    pub case: Vec<CaseSpec>,
    /// Storage of K and V: f32, f16, bf16, int8, fp8, int4, timed in alternation [default: f16].
    #[arg(long, value_name = "FORMAT", value_delimiter = ',')]
    pub kv_dtype: Vec<KvDtype>,
    /// Tokens per block [default: 16].
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = up_to(MAX_BLOCK_SIZE))]
    pub block_size: Vec<u32>,
    /// Sequences in a batch [default: what suits the adapter].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = up_to(MAX_BATCH))]
    pub batch: Vec<u32>,
    /// Tokens of a sequence; with --trace or --workload, the most it may have [default: what suits the adapter].
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = up_to(MAX_CONTEXT))]
    pub context: Vec<u32>,
    /// Lengths of a batch by their numbers: 32768,256x63 is one of 32,768 tokens and 63 of 256; may be repeated.
    #[arg(long, value_name = "TOKENS[xN],...", conflicts_with_all = ["case", "batch", "context", "trace", "workload"])]
    pub lens: Vec<LengthList>,
    /// Queries of every sequence that decodes, as in speculative decoding.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(MAX_CONTEXT))]
    pub queries: u32,
    /// Let all sequences begin with the same tokens, and compare batches that share their blocks with ones that do not.
    #[arg(long, value_name = "TOKENS", value_parser = up_to(MAX_CONTEXT))]
    pub shared_prefix: Option<u32>,
    /// Let a query see the last N keys only.
    #[arg(long, value_name = "N", value_parser = up_to(MAX_CONTEXT))]
    pub window: Option<u32>,
    /// Cap the scores: X·tanh(score / X).
    #[arg(long, value_name = "X", value_parser = positive)]
    pub soft_cap: Option<f32>,
    /// Let scores fall with the distance of the key.
    #[arg(long)]
    pub alibi: bool,
    /// Give every head an attention sink.
    #[arg(long)]
    pub sinks: bool,
    /// Let a query see the keys behind its own as well.
    #[arg(long)]
    pub non_causal: bool,
    /// Write the log-sum-exp as well.
    #[arg(long)]
    pub lse: bool,
    /// Type of queries and outputs: f32, f16.
    #[arg(long, value_name = "FORMAT", default_value = "f32", value_parser = io_formats())]
    pub io: IoFormat,
    /// Timed runs of every case [default: what fits into the time].
    #[arg(long, value_name = "N", value_parser = up_to(MAX_SAMPLES))]
    pub samples: Option<u32>,
    /// Take the lengths from a request log: CSV with arrival_s,prompt_tokens,output_tokens, or an Azure, BurstGPT or
    /// Mooncake trace, gz or not [default: all sequences as long as the context].
    #[arg(long, value_name = "FILE", conflicts_with = "workload")]
    pub trace: Option<PathBuf>,
    /// Leave out rows of the log that cannot be read, and say how many.
    #[arg(long, requires = "trace")]
    pub skip_bad: bool,
    /// Draw the lengths from a fit to a published request log.
    #[arg(long, value_name = "NAME", value_parser = workloads())]
    pub workload: Option<Workload>,
    /// Seed of all inputs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Time for the whole run; what is short of it has fewer samples, never fewer than five.
    #[arg(long, value_name = "SECONDS", default_value = "100", value_parser = seconds)]
    pub time_budget: Duration,
    /// Few, small cases: to see that everything works.
    #[arg(long)]
    pub quick: bool,
    /// Files; the JSON is written after every case.
    #[command(flatten)]
    pub report: ReportArgs,
}

pub fn up_to(max: u32) -> impl TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=i64::from(max))
}

pub fn models() -> impl TypedValueParser<Value = ModelShape> {
    let values = ModelShape::BUILT_IN.into_iter().filter_map(|model| match model.name {
        Cow::Borrowed(name) => Some(PossibleValue::new(name)),
        // Only shapes by their numbers make up a name.
        Cow::Owned(_) => None,
    });
    PossibleValuesParser::new(values).try_map(|name| name.parse::<ModelShape>())
}

pub fn workloads() -> impl TypedValueParser<Value = Workload> {
    let values = Workload::BUILT_IN.map(|workload| PossibleValue::new(workload.name).help(workload.source));
    PossibleValuesParser::new(values).try_map(|name| Workload::by_name(&name))
}

fn io_formats() -> impl TypedValueParser<Value = IoFormat> {
    let formats = [IoFormat::F32, IoFormat::F16];
    let values = PossibleValuesParser::new(formats.map(IoFormat::name));
    // The parser lets no other name through.
    values.map(move |name| formats.into_iter().find(|format| format.name() == name).unwrap_or_default())
}

fn positive(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value: &f32| *value > 0.0 && *value <= MAX_SOFT_CAP);
    value.ok_or_else(|| format!("give a number above 0, up to {MAX_SOFT_CAP}"))
}

pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0 && *seconds <= MAX_SECONDS);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("give seconds above 0, up to {MAX_SECONDS}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_cap_is_a_positive_number() {
        assert_eq!(positive("30"), Ok(30.0));
        for wrong in ["0", "-1", "NaN", "inf", "1e7", "x", ""] {
            assert!(positive(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_have_limits() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "NaN", "inf", "86401", "ten", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
