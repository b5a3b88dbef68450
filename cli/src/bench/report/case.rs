//! One measured case, the quotient of two that alternated, and numbers made of several.

use serde::{Deserialize, Serialize};

use crate::bench::median;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Paged,
    Contiguous,
    /// In blocks, and sequences that begin alike have their first blocks in common.
    Shared,
    /// In blocks that lie in memory as the sequences have them: all that is left of paging is the look-up.
    Ordered,
}

impl Mode {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paged => "paged",
            Self::Contiguous => "contiguous",
            Self::Shared => "shared",
            Self::Ordered => "ordered",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Timing {
    Gpu,
    /// The host's clock from submission to completion.
    Wall,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseResult {
    pub op: String,
    pub model: String,
    pub num_q_heads: u32,
    pub num_kv_heads: u32,
    pub head_dim: u32,
    pub kv_dtype: String,
    pub block_size: u32,
    pub batch: u32,
    pub context: u32,
    /// Lengths of all sequences together; for an append, the tokens appended.
    pub tokens: u64,
    /// Query tokens of all sequences together; 0 for an append.
    #[serde(default)]
    pub queries: u64,
    #[serde(default)]
    pub variant: String,
    #[serde(default)]
    pub shared_prefix: u32,
    pub mode: Mode,
    /// Where the lengths come from: `uniform`, a built-in workload, the name of a log, or the lengths themselves.
    pub workload: String,
    pub input_hash: String,
    pub timing: Timing,
    pub samples_us: Vec<f64>,
    pub median_us: f64,
    pub p25_us: f64,
    pub p75_us: f64,
    /// Median by the host's clock, where `timing` is another.
    pub wall_median_us: Option<f64>,
    /// The first run, which compiles and warms up, and is not among the samples.
    pub cold_us: Option<f64>,
    /// Bytes that must move, by the formulas of [`accounting`](crate::bench::accounting).
    pub bytes: u64,
    pub gb_s: f64,
    /// `gb_s` as a share of the ceiling for reading, 0 to 1; `None` without the ceiling.
    pub fraction_of_read: Option<f64>,
    #[serde(default)]
    pub flops: u64,
    #[serde(default)]
    pub gflop_s: Option<f64>,
    /// `gflop_s` as a share of the ceiling for multiply-adds, measured beside operations that are bound by it.
    #[serde(default)]
    pub fraction_of_fma: Option<f64>,
    pub max_abs_error: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    pub op: String,
    pub model: String,
    pub kv_dtype: String,
    pub block_size: u32,
    pub batch: u32,
    pub context: u32,
    pub workload: String,
    /// Median of the quotients of neighbouring runs: above 1, paging costs time.
    pub paged_over_contiguous: f64,
    pub samples: usize,
}

type Key<'a> = (&'a str, &'a str, &'a str, [u32; 3], &'a str);

impl CaseResult {
    pub(super) fn key(&self) -> Key<'_> {
        (&self.op, &self.model, &self.kv_dtype, [self.block_size, self.batch, self.context], &self.workload)
    }

    pub fn is_speculative(&self) -> bool {
        self.op == "decode" && self.queries > self.batch.into()
    }

    pub fn options(&self) -> Option<&str> {
        Some(&*self.variant).filter(|variant| !matches!(*variant, "" | "plain"))
    }
}

impl Pair {
    /// Compares two results whose runs alternated: the n-th sample of one was taken next to the n-th of the other, so
    /// a drift of the clocks falls out of each quotient.
    /// `None` if they are not a paged and a contiguous run on the same inputs, or have no samples.
    pub fn of(paged: &CaseResult, contiguous: &CaseResult) -> Option<Self> {
        let same = paged.key() == contiguous.key() && paged.input_hash == contiguous.input_hash;
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

    pub(super) fn key(&self) -> Key<'_> {
        (&self.op, &self.model, &self.kv_dtype, [self.block_size, self.batch, self.context], &self.workload)
    }
}

#[cfg(test)]
impl CaseResult {
    /// A decode step of one sequence that took 1 µs; tests change what they are about.
    pub fn sample() -> Self {
        Self {
            op: "decode".into(),
            model: "m".into(),
            num_q_heads: 1,
            num_kv_heads: 1,
            head_dim: 8,
            kv_dtype: "f16".into(),
            block_size: 16,
            batch: 1,
            context: 1,
            tokens: 1,
            queries: 1,
            variant: "plain".into(),
            shared_prefix: 0,
            mode: Mode::Paged,
            workload: "uniform".into(),
            input_hash: "0".into(),
            timing: Timing::Gpu,
            samples_us: vec![1.0],
            median_us: 1.0,
            p25_us: 1.0,
            p75_us: 1.0,
            wall_median_us: None,
            cold_us: None,
            bytes: 1,
            gb_s: 1.0,
            fraction_of_read: None,
            flops: 0,
            gflop_s: None,
            fraction_of_fma: None,
            max_abs_error: 0.0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    AtMost(f64),
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    pub what: String,
    pub measured: f64,
    /// What it should be, if anything was asked: `{"at_most": 1.1}`.
    pub limit: Option<Limit>,
    /// Numbers it is made of: the median of quotients, the largest of errors.
    pub samples: usize,
}

impl Figure {
    pub fn met(&self) -> Option<bool> {
        self.limit.map(|limit| limit.holds(self.measured))
    }
}
