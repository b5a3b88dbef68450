//! `paged-attention blocks`: what the size of a block costs and saves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use wgpu_paged_attention::config::{KvDtype, MAX_BLOCK_SIZE};
use wgpu_paged_attention::testkit::Gpu;

use super::{BlockSizeStudy, BlockSizesError, BlockSizesReport, DecodeMeasure, recommend, study};
use crate::bench::{MAX_CONTEXT, ModelShape};
use crate::common::{
    AdapterArgs, Failure, Progress, Report, ReportArgs, Status, cancel_on_ctrl_c, command_line, seconds, up_to,
};
use crate::models::Model;
use crate::models::args::{OtherModelArgs, longest, models};
use crate::report::{Adapter, Head};
use crate::trace::args::{LogArgs, check_ids};
use crate::trace::{Log, ReadOptions};
use crate::workload::Workload;

pub const HELP: &str = "\
Utilisation and fragmentation are averages over all steps of all requests, exact; the decode time is that of one layer on a
batch drawn from the same requests, all sizes in alternation, each compared with a reference on the CPU first.

Examples:
  paged-attention blocks                                   all built-in workloads, 1 to 256 tokens, measured here
  paged-attention blocks --workload short-chat --no-measure
  paged-attention blocks --trace requests.csv --block-size 8,16,24,32 --report blocks.html";

#[derive(Debug, Args)]
pub struct BlocksArgs {
    #[command(flatten)]
    pub adapter: AdapterArgs,
    #[command(flatten)]
    pub log: LogArgs,
    /// Tokens that one hash id of the log stands for [default: as the log shows].
    #[arg(long, value_name = "TOKENS", requires = "trace", value_parser = up_to(MAX_CONTEXT))]
    pub tokens_per_id: Option<u32>,
    /// Tokens per block.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', value_parser = up_to(MAX_BLOCK_SIZE),
        default_value = "1,2,4,8,16,32,64,128,256")]
    pub block_size: Vec<u32>,
    /// The longest sequence [default: what the model was made for].
    #[arg(long, value_name = "TOKENS", value_parser = up_to(MAX_CONTEXT))]
    pub max_len: Option<u32>,
    /// The model whose decode step is timed.
    #[arg(long, value_name = "NAME", default_value = "llama-3-8b", value_parser = models())]
    pub model: Model,
    /// Another model.
    #[command(flatten)]
    pub other: OtherModelArgs,
    /// Storage of K and V.
    #[arg(long, value_name = "FORMAT", default_value = "f16")]
    pub kv_dtype: KvDtype,
    /// Only count: no adapter is needed, and the output is the same everywhere.
    #[arg(long, conflicts_with_all = ["adapter", "backend", "require_gpu", "time_budget"])]
    pub no_measure: bool,
    /// Time for the timed runs of all workloads; never fewer than five of each.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub time_budget: Duration,
    /// Seed of all inputs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub report: ReportArgs,
}

pub fn run(args: &BlocksArgs) -> Result<Status, Failure> {
    let files = args.report.prepare(&[&args.log.trace.trace, &args.other.config])?;
    let mut sizes = args.block_size.clone();
    sizes.sort_unstable();
    sizes.dedup();
    let read = ReadOptions { tokens_per_id: args.tokens_per_id, ..ReadOptions::LENGTHS };
    let logs = args.log.read(read, &Workload::BUILT_IN, args.seed)?;
    let usage = |error: BlockSizesError| Failure::new(Status::Usage, error.to_string());
    if logs.iter().all(|log| log.tokens_per_id.is_none()) {
        check_ids(&[("tokens_per_id", args.tokens_per_id.is_some())])?;
    }
    let model = args.other.model(1, args.max_len)?.unwrap_or_else(|| args.model.clone());
    let max_len = longest(&model, args.max_len).min(MAX_CONTEXT);
    let mut workloads: Vec<BlockSizeStudy> = Vec::new();
    for log in &logs {
        workloads.push(study(log, &sizes, max_len).map_err(usage)?);
    }

    let mut report = BlockSizesReport {
        head: Head::new(BlockSizesReport::KIND, Some(command_line()), Some(args.seed)),
        max_seq_len: max_len,
        model: model.name.to_string(),
        kv_dtype: args.kv_dtype,
        adapter: None,
        workloads,
        recommendation: None,
        interrupted: false,
    };
    if !args.no_measure {
        let gpu = args.adapter.open().map_err(|failure| {
            Failure::new(failure.status, format!("{}; --no-measure does without", failure.message))
        })?;
        let cancel = cancel_on_ctrl_c()?;
        measure(args, &gpu, model.shape(), &logs, &sizes, &mut report, &cancel)?;
    }
    report.recommendation = recommend(&report.workloads);

    files.deliver(&report)?;
    Ok(if report.interrupted { Status::Interrupted } else { Status::Ok })
}

fn measure(
    args: &BlocksArgs,
    gpu: &Gpu,
    shape: ModelShape,
    logs: &[Log],
    sizes: &[u32],
    report: &mut BlockSizesReport,
    cancel: &AtomicBool,
) -> Result<(), Failure> {
    let decode = DecodeMeasure {
        shape,
        kv_dtype: args.kv_dtype,
        max_seq_len: report.max_seq_len,
        seed: args.seed,
        time_budget: args.time_budget / logs.len().max(1) as u32,
    };
    let bar = Progress::new();
    let software = if gpu.is_software() { " (SOFTWARE ADAPTER)" } else { "" };
    bar.say(&format!("measuring {} block sizes on {}{software}", sizes.len(), gpu.info.name));
    bar.start(logs.len());
    report.adapter = Some(Adapter::of(gpu));
    for (done, (log, study)) in logs.iter().zip(&mut report.workloads).enumerate() {
        bar.at(done, &log.name);
        let times = if cancel.load(Ordering::Relaxed) {
            None
        } else {
            decode
                .run(gpu, &log.requests, sizes, cancel)
                .map_err(|error| Failure::new(Status::Failed, format!("{}: {error}", log.name)))?
        };
        let Some(times) = times else { continue };
        for (row, time) in study.rows.iter_mut().zip(times) {
            row.decode = Some(time);
        }
    }
    bar.finish();
    report.interrupted = cancel.load(Ordering::Relaxed);
    Ok(())
}
