//! The result of a benchmark run: as JSON for machines, as a table for people.
//!
//! Fields are added to the JSON, never renamed or dropped, within one [`SCHEMA`].

mod text;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::stats::median;
use crate::harness::{Gpu, describe_driver};

pub use text::{
    SOFTWARE_NOTICE, render, render_banner, render_ceilings, render_failures, render_figures, render_table,
};

/// Version of the JSON's form.
pub const SCHEMA: u32 = 1;

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command line that gives these numbers again.
    pub command: String,
    /// Seed of every random input.
    pub seed: u64,
    /// What was measured on.
    pub adapter: Adapter,
    /// What the device does at best.
    pub ceilings: Ceilings,
    /// Cases that passed their check against the reference.
    pub results: Vec<CaseResult>,
    /// Paged and contiguous runs of the same case, compared.
    pub pairs: Vec<Pair>,
    /// Other numbers made of runs that alternated: formats, shared prefixes, and what the project asks of itself.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// Cases that did not pass, and have no result for that reason.
    pub failures: Vec<Failure>,
}

/// The device and the way to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Adapter {
    /// Name the driver gives the device.
    pub name: String,
    /// Graphics API below wgpu.
    pub backend: String,
    /// Name and version of the driver.
    pub driver: String,
    /// Whether the device is a program on the CPU.
    pub software: bool,
    /// Discrete, integrated, virtual or CPU, in wgpu's words.
    pub device_type: String,
    /// Version of wgpu.
    pub wgpu_version: String,
}

/// The version of wgpu that this crate is built for; Cargo.lock holds the exact one.
const WGPU_VERSION: &str = "30.0";

impl Adapter {
    /// What is known of an open device.
    pub fn of(gpu: &Gpu) -> Self {
        Self {
            name: gpu.info.name.clone(),
            backend: gpu.info.backend.to_string(),
            driver: describe_driver(&gpu.info),
            software: gpu.is_software(),
            device_type: format!("{:?}", gpu.info.device_type),
            wgpu_version: WGPU_VERSION.to_owned(),
        }
    }
}

/// Best rates of trivial kernels on the same device; `None` (JSON `null`) where not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Reading a large buffer, 10⁹ bytes per second.
    pub read_gb_s: Option<f64>,
    /// Copying one, bytes read and written together.
    pub copy_gb_s: Option<f64>,
    /// Multiply-adds, counted as two operations each.
    pub fma_gflop_s: Option<f64>,
    /// An empty dispatch, in microseconds.
    pub dispatch_us: Option<f64>,
}

/// How K and V lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// In blocks, through a block table.
    Paged,
    /// In one piece per sequence.
    Contiguous,
    /// In blocks, and sequences that begin alike have their first blocks in common.
    Shared,
}

impl Mode {
    /// The name in the JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paged => "paged",
            Self::Contiguous => "contiguous",
            Self::Shared => "shared",
        }
    }
}

/// The clock behind `samples_us`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Timing {
    /// Timestamps written by the device around the work.
    Gpu,
    /// The host's clock from submission to completion.
    Wall,
}

/// One case, timed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    /// What was run: `append`, `decode`, `prefill` or `mixed`.
    pub op: String,
    /// Name of the model's shape.
    pub model: String,
    /// Query heads.
    pub num_q_heads: u32,
    /// Key and value heads.
    pub num_kv_heads: u32,
    /// Elements in one head's row.
    pub head_dim: u32,
    /// Storage format of K and V.
    pub kv_dtype: String,
    /// Tokens per block of the case. The contiguous run of a pair carries the same number.
    pub block_size: u32,
    /// Sequences.
    pub batch: u32,
    /// Longest sequence, in tokens.
    pub context: u32,
    /// Lengths of all sequences together; for an append, the tokens appended.
    pub tokens: u64,
    /// Query tokens of all sequences together; 0 for an append.
    #[serde(default)]
    pub queries: u64,
    /// The options of the attention, `plain` without any.
    #[serde(default)]
    pub variant: String,
    /// Leading tokens that are the same in all sequences; their blocks are shared if the mode says so.
    #[serde(default)]
    pub shared_prefix: u32,
    /// How K and V lie in memory.
    pub mode: Mode,
    /// Where the lengths come from: `uniform`, a built-in workload, the name of a log, or the lengths themselves.
    pub workload: String,
    /// Hash of the inputs, which depend on case and seed alone.
    pub input_hash: String,
    /// The clock of the times below.
    pub timing: Timing,
    /// Every counted run, in order, in microseconds.
    pub samples_us: Vec<f64>,
    /// Median of the samples.
    pub median_us: f64,
    /// First quartile.
    pub p25_us: f64,
    /// Third quartile.
    pub p75_us: f64,
    /// Median by the host's clock, where `timing` is another.
    pub wall_median_us: Option<f64>,
    /// The first run, which compiles and warms up, and is not among the samples.
    pub cold_us: Option<f64>,
    /// Bytes that must move, by the formulas of [`accounting`](super::accounting).
    pub bytes: u64,
    /// `bytes` over the median.
    pub gb_s: f64,
    /// `gb_s` as a share of the ceiling for reading, 0 to 1; `None` without the ceiling.
    pub fraction_of_read: Option<f64>,
    /// Multiplies and adds that must happen, by the same formulas; 0 for an append.
    #[serde(default)]
    pub flops: u64,
    /// `flops` over the median; `None` where there are none.
    #[serde(default)]
    pub gflop_s: Option<f64>,
    /// `gflop_s` as a share of the ceiling for multiply-adds, measured beside operations that are bound by it.
    #[serde(default)]
    pub fraction_of_fma: Option<f64>,
    /// Largest difference from the f64 reference.
    pub max_abs_error: f64,
}

/// The price of paging in one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// As in the two results, like all fields but the last two.
    pub op: String,
    /// Name of the model's shape.
    pub model: String,
    /// Storage format of K and V.
    pub kv_dtype: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Sequences.
    pub batch: u32,
    /// Longest sequence.
    pub context: u32,
    /// Where the lengths come from.
    pub workload: String,
    /// Median of the quotients of neighbouring runs: above 1, paging costs time.
    pub paged_over_contiguous: f64,
    /// Quotients it is the median of.
    pub samples: usize,
}

impl Pair {
    /// Compares two results whose runs alternated: the n-th sample of one was taken next to the n-th of the other, so
    /// a drift of the clocks falls out of each quotient.
    ///
    /// `None` if they are not a paged and a contiguous run on the same inputs, or have no samples.
    pub fn of(paged: &CaseResult, contiguous: &CaseResult) -> Option<Self> {
        let same = Case::of(paged) == Case::of(contiguous) && paged.input_hash == contiguous.input_hash;
        if !same || (paged.mode, contiguous.mode) != (Mode::Paged, Mode::Contiguous) {
            return None;
        }
        let quotients: Vec<f64> =
            paged.samples_us.iter().zip(&contiguous.samples_us).map(|(paged, contiguous)| paged / contiguous).collect();
        Some(Self {
            op: paged.op.clone(),
            model: paged.model.clone(),
            kv_dtype: paged.kv_dtype.clone(),
            block_size: paged.block_size,
            batch: paged.batch,
            context: paged.context,
            workload: paged.workload.clone(),
            paged_over_contiguous: median(&quotients)?,
            samples: quotients.len(),
        })
    }

    fn is_of(&self, result: &CaseResult) -> bool {
        Case {
            op: &self.op,
            model: &self.model,
            kv_dtype: &self.kv_dtype,
            block_size: self.block_size,
            batch: self.batch,
            context: self.context,
            workload: &self.workload,
        } == Case::of(result)
    }
}

/// What a figure should be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

impl Limit {
    /// Whether a number is within it; NaN is not.
    pub fn holds(self, measured: f64) -> bool {
        match self {
            Self::AtMost(most) => measured <= most,
            Self::AtLeast(least) => measured >= least,
        }
    }
}

/// A number made of several runs that alternated, or of their errors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What it says, in words.
    pub what: String,
    /// The number.
    pub measured: f64,
    /// What it should be, if anything was asked: `{"at_most": 1.1}`.
    pub limit: Option<Limit>,
    /// Numbers it is made of: the median of quotients, the largest of errors.
    pub samples: usize,
}

impl Figure {
    /// Whether it is as it should be; `None` if nothing was asked.
    pub fn met(&self) -> Option<bool> {
        self.limit.map(|limit| limit.holds(self.measured))
    }
}

/// What the two runs of a pair have in common.
#[derive(PartialEq)]
struct Case<'a> {
    op: &'a str,
    model: &'a str,
    kv_dtype: &'a str,
    block_size: u32,
    batch: u32,
    context: u32,
    workload: &'a str,
}

impl<'a> Case<'a> {
    fn of(result: &'a CaseResult) -> Self {
        Self {
            op: &result.op,
            model: &result.model,
            kv_dtype: &result.kv_dtype,
            block_size: result.block_size,
            batch: result.batch,
            context: result.context,
            workload: &result.workload,
        }
    }
}

/// A case that gave an error or a wrong result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What was run.
    pub op: String,
    /// Name of the model's shape.
    pub model: String,
    /// Sequences.
    pub batch: u32,
    /// Longest sequence.
    pub context: u32,
    /// How K and V lie in memory.
    pub mode: Mode,
    /// What went wrong.
    pub error: String,
}

/// Why a report was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// A number is infinite or NaN, which JSON cannot hold: a case without a valid time has no result.
    #[error("the report cannot be written as JSON and read again: {0}")]
    NotJson(#[from] serde_json::Error),
    /// The file could not be written. An older one of that name is untouched.
    #[error("cannot write {}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl Report {
    /// A run without results yet.
    pub fn new(command: String, seed: u64, adapter: Adapter, ceilings: Ceilings) -> Self {
        Self {
            schema: SCHEMA,
            command,
            seed,
            adapter,
            ceilings,
            results: Vec::new(),
            pairs: Vec::new(),
            figures: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// The report as indented JSON.
    ///
    /// # Errors
    /// [`ReportError::NotJson`] if a number is not finite.
    pub fn to_json(&self) -> Result<String, ReportError> {
        let json = serde_json::to_string_pretty(self)?;
        // NaN is written as null without complaint, and noticed only by whoever reads it.
        serde_json::from_str::<Self>(&json)?;
        Ok(json + "\n")
    }

    /// Writes the report to `path` so that the file is at all times either the old one or the new one, whole. Meant to
    /// be called after every case.
    ///
    /// The text goes to `path` with `.tmp` after it first.
    ///
    /// # Errors
    /// [`ReportError`]; the file is then as it was.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), ReportError> {
        let path = path.as_ref();
        let json = self.to_json()?;
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        write_and_rename(json.as_bytes(), &temporary, path).map_err(|source| {
            // What is left of the attempt is of no use; that it cannot be removed would not be worth another error.
            let _ = fs::remove_file(&temporary);
            ReportError::Io { file: path.to_owned(), source }
        })
    }
}

fn write_and_rename(bytes: &[u8], temporary: &Path, path: &Path) -> io::Result<()> {
    let mut file = File::create(temporary)?;
    file.write_all(bytes)?;
    // Or the rename may reach the disk before the content does.
    file.sync_all()?;
    fs::rename(temporary, path)
}

#[cfg(test)]
mod tests;
