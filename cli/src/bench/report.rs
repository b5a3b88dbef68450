//! The result of a benchmark run.

mod case;
mod notes;
mod page;

use serde::{Deserialize, Serialize};

use crate::common::Report as _;
use crate::report::{Adapter, Head};

pub use case::{CaseResult, Figure, Limit, Mode, Pair, Timing};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    #[serde(flatten)]
    pub head: Head,
    pub adapter: Adapter,
    /// Where the profile of the caches comes from: `default`, `shipped`, `tuned here`, or a file.
    #[serde(default = "default_profile")]
    pub profile: String,
    pub ceilings: Ceilings,
    pub results: Vec<CaseResult>,
    pub pairs: Vec<Pair>,
    #[serde(default)]
    pub figures: Vec<Figure>,
    pub failures: Vec<Failure>,
    /// Of the time for which threads of a software adapter had work in timed runs, the share that they waited for a core;
    /// `None` where the system does not say.
    #[serde(default)]
    pub waiting_share: Option<f64>,
    /// What to know about the numbers: see [`Report::note`].
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Best rates of trivial kernels on the same device; `None` (JSON `null`) where not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    pub read_gb_s: Option<f64>,
    /// What the host's own cores read; beside a software adapter only.
    #[serde(default)]
    pub host_read_gb_s: Option<f64>,
    /// What they multiply and add in native code, in vectors of 256 bits.
    #[serde(default)]
    pub host_fma_gflop_s: Option<f64>,
    /// Copying one, bytes read and written together.
    pub copy_gb_s: Option<f64>,
    /// Multiply-adds, counted as two operations each.
    pub fma_gflop_s: Option<f64>,
    pub dispatch_us: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub op: String,
    pub model: String,
    pub batch: u32,
    pub context: u32,
    pub mode: Mode,
    pub error: String,
}

fn default_profile() -> String {
    "default".to_owned()
}

impl Report {
    pub fn new(command: String, seed: u64, adapter: Adapter, ceilings: Ceilings) -> Self {
        let mut report = Self {
            head: Head::new(Self::KIND, Some(command), Some(seed)),
            adapter,
            profile: default_profile(),
            ceilings,
            results: Vec::new(),
            pairs: Vec::new(),
            figures: Vec::new(),
            failures: Vec::new(),
            waiting_share: None,
            notes: Vec::new(),
        };
        report.note();
        report
    }

    /// Writes down anew whether the driver's loads limit reading, whether other programs took cores, and which case lies above
    /// its ceiling.
    pub fn note(&mut self) {
        self.notes = notes::notes(self);
    }

    fn pair(&self, result: &CaseResult) -> Option<&Pair> {
        self.pairs.iter().find(|pair| result.mode == Mode::Paged && pair.key() == result.key())
    }
}

#[cfg(test)]
mod tests;
