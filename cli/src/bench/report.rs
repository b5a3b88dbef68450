//! The result of a benchmark run.

mod case;
mod figure;
mod page;

use serde::{Deserialize, Serialize};

use crate::common::files::Report as _;
use crate::report::{Adapter, Head};

pub use case::{CaseResult, Mode, Pair, Timing};
pub use figure::{Figure, Limit};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    pub head: Head,
    pub adapter: Adapter,
    pub ceilings: Ceilings,
    /// Cases that passed their check against the reference.
    pub results: Vec<CaseResult>,
    /// Paged and contiguous runs of the same case, compared.
    pub pairs: Vec<Pair>,
    /// Other numbers made of runs that alternated: formats, shared prefixes, performance targets.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// Cases that did not pass, and have no result for that reason.
    pub failures: Vec<Failure>,
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

/// A case that gave an error or a wrong result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub op: String,
    pub model: String,
    pub batch: u32,
    /// Longest sequence.
    pub context: u32,
    pub mode: Mode,
    pub error: String,
}

impl Report {
    pub fn new(command: String, seed: u64, adapter: Adapter, ceilings: Ceilings) -> Self {
        Self {
            head: Head::new(Self::KIND, Some(command), Some(seed)),
            adapter,
            ceilings,
            results: Vec::new(),
            pairs: Vec::new(),
            figures: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// The pair of which a result is the paged side.
    fn pair(&self, result: &CaseResult) -> Option<&Pair> {
        self.pairs.iter().find(|pair| result.mode == Mode::Paged && pair.key() == result.key())
    }
}

#[cfg(test)]
mod tests;
