//! `paged-attention replay`: a request log, served by a contiguous and by a paged cache.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use wgpu_paged_attention::config::MAX_SEQ_LEN;
use wgpu_paged_attention::testkit::Gpu;

use super::cost::{CalibrateError, CalibrateOptions, CalibratedClock, Calibration, Layers, calibrate};
use super::{
    Clock, ExecuteOptions, Executor, LogRecord, ReplayReport, ServeError, ServeOptions, ServeRecord, StepClock,
    StepObserver, serve, with_layers,
};
use crate::bench::MAX_CONTEXT;
use crate::common::{
    AdapterArgs, Failure, OutputFile, Progress, Report, ReportArgs, Status, cancel_on_ctrl_c, command_line, up_to,
};
use crate::models::Model;
use crate::models::args::{CacheArgs, in_options};
use crate::report::Head;
use crate::trace::args::{LogArgs, check_ids};
use crate::trace::{Log, ReadOptions, TimeUnit};
use crate::workload::Workload;

pub const HELP: &str = "\
Requests come when the log says so; each step takes a token of every sequence that decodes and chunks of new prompts. The
block manager is the real one, the time is that of the clock: every step as long as any other, or as long as it would take
by measurements on the adapter. Only --execute computes anything.

Examples:
  paged-attention replay                                       20,000 requests as of azure-conv, LLaMA-13B in 26 GB
  paged-attention replay --trace requests.csv.gz --model llama-3-8b --budget 16GiB --max-len 8192
  paged-attention replay --trace requests.jsonl --time-unit s --tokens-per-id 16
  paged-attention replay --trace requests.csv --clock calibrated --save-calibration here.json
  paged-attention replay --workload sharegpt --requests 200 --execute --budget 2GB
  paged-attention replay --json replay.json --csv replay.csv --report replay.html";

const DEFAULT_WORKLOAD: &str = "azure-conv";
const CALIBRATION_TIME: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ClockKind {
    /// Every step takes --step-ms.
    Step,
    /// By measurements on the adapter.
    Calibrated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Side {
    /// Every sequence reserves --max-len tokens.
    Contiguous,
    /// Every sequence takes blocks as it grows.
    Paged,
}

#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The adapter of --clock calibrated and --execute.
    #[command(flatten)]
    pub adapter: AdapterArgs,
    /// The requests.
    #[command(flatten)]
    pub log: LogArgs,
    /// Tokens that one hash id of the log stands for [default: as the log shows].
    #[arg(long, value_name = "TOKENS", requires = "trace", value_parser = up_to(MAX_CONTEXT))]
    pub tokens_per_id: Option<u32>,
    /// Unit of the log's times [default: as the log shows].
    #[arg(long, value_name = "UNIT", requires = "trace")]
    pub time_unit: Option<TimeUnit>,
    /// The cache.
    #[command(flatten)]
    pub cache: CacheArgs,
    /// The most concurrent requests.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = up_to(65_535))]
    pub max_sequences: u32,
    /// The most tokens of one step: those that decode, and chunks of prompts.
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, value_parser = up_to(MAX_SEQ_LEN))]
    pub step_tokens: u32,
    /// Compute prompts anew even where the log tells that they begin like others.
    #[arg(long)]
    pub no_prefix_cache: bool,
    /// Serve with one of the two caches alone [default: both].
    #[arg(long, value_name = "CACHE")]
    pub only: Option<Side>,
    /// How time passes.
    #[arg(long, value_name = "CLOCK", default_value = "step")]
    pub clock: ClockKind,
    /// Milliseconds of every step, with --clock step.
    #[arg(long, value_name = "MS", default_value = "25", value_parser = step_ms)]
    pub step_ms: f64,
    /// Take the measurements of --clock calibrated from a file of --save-calibration, of another device for instance.
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Write the measurements of --clock calibrated to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "calibration")]
    pub save_calibration: Option<PathBuf>,
    /// With --clock calibrated, leave out the time of all but append and attention, which is not measured but bounded by
    /// the adapter's ceilings.
    #[arg(long)]
    pub attention_only: bool,
    /// Run the first steps through the kernels, in a few layers, and compare rows of them with the reference.
    #[arg(long)]
    pub execute: bool,
    /// Layers that are run.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = up_to(1024), requires = "execute")]
    pub execute_layers: u32,
    /// Steps that are run.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = up_to(1 << 24), requires = "execute")]
    pub execute_steps: u32,
    /// Seed of what is drawn.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Files.
    #[command(flatten)]
    pub report: ReportArgs,
}

fn step_ms(text: &str) -> Result<f64, String> {
    let ms = text.parse().ok().filter(|ms: &f64| (1e-3..=1e6).contains(ms));
    ms.ok_or_else(|| "give milliseconds from 0.001 to 1000000".to_owned())
}

pub fn run(args: &ReplayArgs) -> Result<Status, Failure> {
    let inputs = [&args.log.trace.trace, &args.cache.other.config, &args.calibration];
    let files = args.report.prepare(&inputs)?;
    let saved = OutputFile::prepare("--save-calibration", &args.save_calibration, &inputs)?;
    files.apart_from(&saved)?;
    let model = args.cache.model()?;
    let options = options(args, &model);
    let layout = options.cache.layout().map_err(|error| in_options(&error))?;
    let log = requests(args, &model)?;

    let measures = args.is_calibrated() && args.calibration.is_none();
    let gpu = if measures || args.execute { Some(args.adapter.open()?) } else { None };
    let cancel = cancel_on_ctrl_c()?;
    let bar = Progress::new();
    let clock = clock(args, gpu.as_ref(), &model, saved, (&cancel, &bar))?;
    // With fewer layers and as many blocks the steps are the same.
    let mut executed = options.clone();
    let mut executor = None;
    if let Some(gpu) = gpu.as_ref().filter(|_| args.execute) {
        executed.cache = with_layers(&options.cache, args.execute_layers).map_err(|error| in_options(&error))?;
        let device = executor.insert(prepare(args, gpu, &model, &executed)?);
        executed.schedule = device.schedule();
    }

    bar.start(log.requests.len());
    let side = |paged: bool, observer: Option<&mut dyn StepObserver>| -> Result<Option<ServeRecord>, Failure> {
        let wanted = args.only.is_none_or(|only| (only == Side::Paged) == paged);
        if !wanted || cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut progress = |done| bar.at(done, if paged { "paged" } else { "contiguous" });
        let options = if paged { &executed } else { &options };
        let served = serve(&log, options, paged, &*clock, observer, &mut progress, &cancel);
        served.map(Some).map_err(|error| refusal(&error, paged))
    };
    let contiguous = side(false, None)?;
    let paged = side(true, executor.as_mut().map(|executor| executor as &mut dyn StepObserver))?;
    bar.finish();
    let report = ReplayReport {
        head: Head::new(ReplayReport::KIND, Some(command_line()), Some(args.seed)),
        log: LogRecord { tokens_per_id: log.tokens_per_id.filter(|_| args.shares()), ..LogRecord::of(&log) },
        model: model.name.to_string(),
        cache: options.cache.clone(),
        bytes_per_token: layout.bytes_per_token(),
        step_tokens: args.step_tokens,
        clock: clock.describe(),
        contiguous,
        paged,
        executed: executor.map(|executor| executor.record),
        interrupted: cancel.load(Ordering::Relaxed),
    };

    files.deliver(&report)?;
    Ok(match &report.executed {
        _ if report.interrupted => Status::Interrupted,
        Some(executed) if executed.wrong_rows > 0 => Status::Failed,
        _ => Status::Ok,
    })
}

impl ReplayArgs {
    fn is_calibrated(&self) -> bool {
        self.clock == ClockKind::Calibrated || self.calibration.is_some()
    }

    /// Whether prefixes are shared, so that it matters what the ids of a log stand for.
    fn shares(&self) -> bool {
        !self.no_prefix_cache && self.only != Some(Side::Contiguous)
    }
}

fn requests(args: &ReplayArgs, model: &Model) -> Result<Log, Failure> {
    let default = Workload::by_name(DEFAULT_WORKLOAD).map_err(|error| in_options(&error))?;
    let tokens_per_id = if args.shares() { args.tokens_per_id } else { Some(1) };
    let reading = ReadOptions { tokens_per_id, time_unit: args.time_unit, ..ReadOptions::default() };
    let mut logs = args.log.read(reading, &[default], args.seed)?;
    let (Some(log), true) = (logs.pop(), logs.is_empty()) else {
        return Err(Failure::new(Status::Usage, "--workload: give one name; one log is served at a time"));
    };
    warn_of_overload(&log);
    if log.tokens_per_id.is_none() {
        check_ids(&[("tokens_per_id", args.tokens_per_id.is_some()), ("no_prefix_cache", args.no_prefix_cache)])?;
    }
    if args.execute && args.execute_layers > model.num_layers {
        let (given, most) = (args.execute_layers, model.num_layers);
        return Err(Failure::new(Status::Usage, format!("--execute-layers {given}: {} has {most}", model.name)));
    }
    Ok(log)
}

fn clock(
    args: &ReplayArgs,
    gpu: Option<&Gpu>,
    model: &Model,
    saved: Option<OutputFile>,
    (cancel, bar): (&AtomicBool, &Progress),
) -> Result<Box<dyn Clock>, Failure> {
    if !args.is_calibrated() {
        return Ok(Box::new(StepClock { step_s: args.step_ms / 1e3 }));
    }
    let calibration = match (&args.calibration, gpu) {
        (None, Some(gpu)) => measure(args, gpu, model, cancel, bar)?,
        (path, _) => read(args, model, path.as_deref())?,
    };
    if let Some(file) = saved {
        file.write(&calibration.to_json().map_err(|error| Failure::new(Status::Failed, error.to_string()))?)?;
    }
    Ok(Box::new(CalibratedClock::new(calibration, layers(args, model)?)))
}

fn refusal(error: &ServeError, paged: bool) -> Failure {
    let failure = in_options(error);
    if paged || !matches!(error, ServeError::Config(_)) {
        return failure;
    }
    let message = format!("the contiguous cache is impossible: {}, or give --only paged", failure.message);
    Failure { message, ..failure }
}

/// Tells of a load that no device serves, since a wrong unit is the likely cause.
fn warn_of_overload(log: &Log) {
    if let Some((arrivals, tokens)) = log.overload() {
        let unit = log.time.as_ref().map_or("its unit", |(unit, _)| unit.name());
        eprintln!(
            "warning: {}: {arrivals:.0} arrivals and {tokens:.0} tokens a second, read in {unit}, are beyond any device; \
             --time-unit says which unit its times have",
            log.name
        );
    }
}

fn options(args: &ReplayArgs, model: &Model) -> ServeOptions {
    let cache = args.cache.cache(model).with_max_sequences(args.max_sequences);
    let window = model.window.filter(|_| model.windowed_layers > 0);
    // Blocks are of all layers, so they return where all have the window.
    let all = window.filter(|_| model.windowed_layers == model.num_layers);
    let cache = all.into_iter().fold(cache, |cache, window| cache.with_window(window));
    ServeOptions {
        window,
        step_tokens: args.step_tokens,
        prefix_cache: !args.no_prefix_cache,
        ..ServeOptions::new(cache)
    }
}

fn layers(args: &ReplayArgs, model: &Model) -> Result<Layers, Failure> {
    Layers::of(model, args.attention_only).ok_or_else(|| {
        let why = format!("the weights of {} cannot be counted from its config; give --attention-only", model.name);
        Failure::new(Status::Usage, why)
    })
}

fn measure(
    args: &ReplayArgs,
    gpu: &Gpu,
    model: &Model,
    cancel: &AtomicBool,
    bar: &Progress,
) -> Result<Calibration, Failure> {
    let options = CalibrateOptions {
        shape: model.shape(),
        kv_dtype: args.cache.kv_dtype,
        block_size: args.cache.block_size,
        seed: args.seed,
        time_budget: CALIBRATION_TIME,
    };
    let software = if gpu.is_software() { " (SOFTWARE ADAPTER)" } else { "" };
    bar.say(&format!("calibrating on {}{software}", gpu.info.name));
    let mut started = false;
    let calibration = calibrate(gpu, &options, cancel, &mut |done, total, label| {
        if !std::mem::replace(&mut started, true) {
            bar.start(total);
        }
        bar.at(done, label);
    });
    calibration.map_err(|error| match error {
        CalibrateError::Cancelled => Failure::new(Status::Interrupted, error.to_string()),
        error => Failure::new(Status::Failed, error.to_string()),
    })
}

fn read(args: &ReplayArgs, model: &Model, path: Option<&Path>) -> Result<Calibration, Failure> {
    let usage = |error| Failure::new(Status::Usage, format!("--calibration {error}"));
    let calibration = Calibration::read(path.unwrap_or(Path::new(""))).map_err(usage)?;
    calibration.check_fits(&model.shape(), args.cache.kv_dtype, args.cache.block_size).map_err(usage)?;
    Ok(calibration)
}

fn prepare(args: &ReplayArgs, gpu: &Gpu, model: &Model, options: &ServeOptions) -> Result<Executor, Failure> {
    let execute = ExecuteOptions {
        window: model.window.filter(|_| model.windowed_layers == model.num_layers),
        steps: args.execute_steps.into(),
        seed: args.seed,
        ..ExecuteOptions::new(model.shape())
    };
    Executor::new(gpu, &options.cache, execute).map_err(|error| Failure::new(Status::Failed, error.to_string()))
}
