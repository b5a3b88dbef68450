//! `paged-attention tune`: options in, a table and a profile out.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::Args;
use wgpu_paged_attention::config::{KvDtype, MAX_BLOCK_SIZE};
use wgpu_paged_attention::testkit::Gpu;

use super::candidates::AXES;
use super::found::{self, Ended, Found};
use super::report::{TuneReport, tuned_profile};
use super::{TuneOptions, tune};
use crate::bench::{CaseError, CaseSpec, MAX_CONTEXT};
use crate::common::{
    AdapterArgs, ChosenProfile, Failure, OutputFile, Progress, Status, TableArgs, cancel_on_ctrl_c, command_line,
    seconds, up_to,
};
use crate::models::Model;
use crate::models::args::{OtherModelArgs, models};

pub const HELP: &str = "\
Tries other forms of the kernels and other numbers than the device's own profile has: lanes, rows, loads, lengths of splits.
Each is compared with a reference on the CPU before it is timed. All are timed in alternation with the device's own profile,
which stays unless another is faster beyond the noise. A profile holds for its adapter, driver and version alone.

Examples:
  paged-attention tune --save here.toml
  paged-attention tune --model qwen2-7b --kv-dtype int8 --save here.toml
  paged-attention tune --case 16,4096,32,8,128 --time-budget 120 --json tune.json
  paged-attention bench --profile here.toml";

#[derive(Debug, Args)]
pub struct TuneArgs {
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// A model by name.
    #[arg(long, value_name = "NAME", default_value = "llama-3-8b", value_parser = models())]
    pub model: Model,
    /// Another model.
    #[command(flatten)]
    pub other: OtherModelArgs,
    /// The decode step by its numbers: BATCH,CONTEXT,NUM_Q_HEADS,NUM_KV_HEADS,HEAD_DIM [default: what suits the adapter].
    #[arg(long, value_name = "B,CTX,HQ,HKV,D", conflicts_with_all = ["model", "config", "heads"])]
    pub case: Option<CaseSpec>,
    /// Storage of K and V: f32, f16, bf16, int8, fp8, int4.
    #[arg(long, value_name = "FORMAT", default_value = "f16")]
    pub kv_dtype: KvDtype,
    /// Tokens per block.
    #[arg(long, value_name = "TOKENS", default_value = "16", value_parser = up_to(MAX_BLOCK_SIZE))]
    pub block_size: u32,
    /// Write the profile to this file: what was found so far, whenever something is found.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Seed of all inputs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Time for the search; kernels that compile longer than what is left are not tried [default: 60 on a GPU, 300 on a CPU].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub time_budget: Option<Duration>,
    /// Few settings and small steps: to see that everything works.
    #[arg(long)]
    pub quick: bool,
    /// Files; the CSV has a row for every profile that was tried.
    #[command(flatten)]
    pub tables: TableArgs,
}

pub fn run(args: &TuneArgs) -> Result<Status, Failure> {
    let files = args.tables.prepare(&[&args.other.config])?;
    let saved = OutputFile::prepare("--save", &args.save, &[&args.other.config])?;
    files.apart_from(&saved)?;
    let model = args.other.model(1, Some(MAX_CONTEXT))?.unwrap_or_else(|| args.model.clone());
    let gpu = args.adapter.open()?;
    let options = options(args, &model, gpu.is_software());
    let cancel = cancel_on_ctrl_c()?;

    let (bar, start) = (Progress::new(), Instant::now());
    let save = |found: &Found| {
        let text = tuned_profile(&gpu, &options, found).to_toml();
        saved.as_ref().map_or(Ok(()), |file| file.write(&text))
    };
    // A file that cannot be written any more ends the search no sooner.
    let found = search(&gpu, &options, &cancel, &bar, &mut |found| drop(save(found)))?;
    let Some(found) = found else {
        eprintln!("nothing was measured yet");
        return Ok(Status::Interrupted);
    };
    let mut report = TuneReport::new(&gpu, &options, command_line(), &found);
    report.seconds = start.elapsed().as_secs_f64();
    files.deliver(&report)?;
    // A device that was lost at once leaves nothing to keep.
    if !found.times.is_empty() {
        save(&found)?;
    }
    Ok(match found.ended {
        None => Status::Ok,
        Some(Ended::Cancelled) => Status::Interrupted,
        Some(Ended::Failed(error)) => return Err(Failure::new(Status::Failed, error)),
    })
}

fn options(args: &TuneArgs, model: &Model, software: bool) -> TuneOptions {
    let shape = args.case.as_ref().map_or_else(|| model.shape(), |case| case.shape.clone());
    let mut options = TuneOptions::new(shape, software, args.quick);
    if let Some(case) = &args.case {
        (options.batch, options.context) = (case.batch, case.context);
        options.prompt = options.prompt.min(case.context);
    }
    (options.kv_dtype, options.block_size, options.seed) = (args.kv_dtype, args.block_size, args.seed);
    options.time_budget = args.time_budget.unwrap_or(options.time_budget);
    options
}

fn search(
    gpu: &Gpu,
    options: &TuneOptions,
    cancel: &AtomicBool,
    bar: &Progress,
    keep: &mut dyn FnMut(&Found),
) -> Result<Option<Found>, Failure> {
    let software = if gpu.is_software() { " (SOFTWARE ADAPTER)" } else { "" };
    bar.say(&format!("tuning {}{software} for {}", gpu.info.name, options.subject()));
    bar.start(AXES.len());
    let ended = tune(gpu, options, cancel, &mut |progress| match progress {
        found::Progress::At { done, label } => bar.at(done, label),
        found::Progress::Found(so_far) => keep(so_far),
    });
    bar.finish();
    ended.map_err(|error: CaseError| Failure::new(Status::Failed, format!("the device's own profile: {error}")))
}

/// The profile that a search finds; the device's own where it was interrupted too soon.
pub fn for_bench(
    gpu: &Gpu,
    options: &TuneOptions,
    cancel: &AtomicBool,
    bar: &Progress,
) -> Result<ChosenProfile, Failure> {
    let found = search(gpu, options, cancel, bar, &mut |_| {})?;
    if let Some(Ended::Failed(error)) = found.as_ref().and_then(|found| found.ended.as_ref()) {
        return Err(Failure::new(Status::Failed, error));
    }
    Ok(found.map_or_else(|| ChosenProfile::of(gpu), |found| ChosenProfile::new(gpu, found.profile, "tuned here")))
}
