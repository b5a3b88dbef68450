//! `paged-attention plan`: sizes in, tables out; nothing is measured.

use clap::Args;
use wgpu_paged_attention::testkit::{OpenError, choose_adapter};

use super::{DeviceLimits, SizingOptions};
use crate::bench::LengthList;
use crate::common::{AdapterArgs, Failure, ReportArgs, Status, command_line};
use crate::models::args::{CacheArgs, in_options, longest};
use crate::plan;
use crate::trace::ReadOptions;
use crate::trace::args::LogArgs;

pub const HELP: &str = "\
Sizes are exact and come from the library's own layout. A sequence of a contiguous cache reserves --max-len tokens; a
paged one takes whole blocks.

Examples:
  paged-attention plan                                        LLaMA-13B, as in the published table
  paged-attention plan --model llama-3-8b --kv-dtype int8 --budget 16GiB --max-len 8192
  paged-attention plan --config models/mine/config.json --lens 32768,256x63
  paged-attention plan --model gemma-2-9b --workload azure-conv --json plan.json --report plan.html";

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The adapter whose limits are shown beside WebGPU's defaults.
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// The cache.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// Lengths to compare for: 1024x8 is eight sequences of 1,024 tokens; may be repeated [default: 128, 1024, 4096 and
    /// 1024x8, as far as --max-len lets them].
    #[arg(long, value_name = "TOKENS[xN],...")]
    pub lens: Vec<LengthList>,
    /// Requests to compare for as well.
    #[command(flatten)]
    pub log: LogArgs,
    /// Seed of what is drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Files.
    #[command(flatten)]
    pub report: ReportArgs,
}

pub fn run(args: &PlanArgs) -> Result<Status, Failure> {
    let files = args.report.prepare(&[&args.log.trace.trace, &args.cache.other.config])?;
    let model = args.cache.model()?;
    let options = SizingOptions {
        max_seq_len: longest(&model, args.cache.max_len),
        model,
        kv_dtype: args.cache.kv_dtype,
        block_size: args.cache.block_size,
        budget_bytes: args.cache.budget.0,
        lens: args.lens.clone(),
        logs: args.log.read(ReadOptions::LENGTHS, &[], args.seed)?,
        devices: devices(&args.adapter)?,
    };
    let report = plan::plan(&options, command_line()).map_err(|error| in_options(&error))?;
    files.deliver(&report)?;
    Ok(Status::Ok)
}

/// The adapter's limits. Without any adapter there is a plan all the same, unless one was asked for.
fn devices(args: &AdapterArgs) -> Result<Vec<DeviceLimits>, Failure> {
    let asked = args.adapter.is_some() || args.backend.is_some() || args.require_gpu;
    match choose_adapter(&args.choice()) {
        Ok(adapter) => Ok(vec![DeviceLimits::of(&adapter)]),
        Err(OpenError::NoAdapter) if !asked => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}
