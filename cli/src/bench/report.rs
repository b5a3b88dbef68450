//! The result of a benchmark run: as JSON for machines, as a table for people.
//!
//! Fields are added to the JSON, never renamed or dropped, within one [`SCHEMA`].

mod adapter;
mod case;
mod csv;
mod figure;
mod text;

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::report;

pub use adapter::{Adapter, Ceilings};
pub use case::{CaseResult, Mode, Pair, Timing};
pub use figure::{Figure, Limit};
pub(crate) use text::results_table;
pub use text::{SOFTWARE_NOTICE, render, render_banner};

/// Version of the JSON's form.
pub const SCHEMA: u32 = 1;

/// What the JSON is a report of.
pub const KIND: &str = "bench";

fn kind() -> String {
    KIND.to_owned()
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// [`KIND`]; missing from reports of older versions.
    #[serde(default = "kind")]
    pub kind: String,
    /// Version of this crate; `unknown` for reports of older versions.
    #[serde(default = "unknown")]
    pub version: String,
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
    /// A row cannot be written.
    #[error("the results cannot be written as CSV: {0}")]
    NotCsv(#[from] ::csv::Error),
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
            kind: kind(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
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
        Ok(report::to_json(self)?)
    }

    /// Writes the report to `path`, as [`report::replace_file`] does. Meant to be called after every case.
    ///
    /// # Errors
    /// [`ReportError`]; the file is then as it was.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), ReportError> {
        let path = path.as_ref();
        let json = self.to_json()?;
        report::replace_file(path, &json).map_err(|source| ReportError::Io { file: path.to_owned(), source })
    }
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
