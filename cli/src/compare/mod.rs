//! Two reports of one kind, side by side: what differs beyond the noise.
//!
//! Times of a benchmark have samples: their medians differ if the intervals that hold each with a certainty of 95 % do
//! not overlap. The intervals are made a little wider for what changes between two runs, on a CPU more than on a GPU. A
//! replay with the step clock has no noise: what differs, differs.

mod bench;
pub mod command;
mod measure;
pub(crate) mod noise;
mod numbers;
mod pairs;
mod read;
mod row;
mod text;

use serde::{Deserialize, Serialize};

use self::pairs::pairs;
use self::row::row;
use crate::report::{to_csv, to_json};

pub use measure::{Band, Better, Measure, Missing};
pub use read::{CompareError, Recorded};
pub use row::{Row, Verdict};
pub use text::render;

/// Version of the JSON's form.
pub const SCHEMA: u32 = 1;

/// A setting, or a fact about the machine, of both reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// What it is.
    pub name: String,
    /// In A; empty if it has none.
    pub a: String,
    /// In B.
    pub b: String,
}

/// Two reports side by side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `compare`.
    pub kind: String,
    /// Version of this crate.
    pub version: String,
    /// The kind of both reports.
    pub compared: String,
    /// File of A.
    pub a: String,
    /// File of B.
    pub b: String,
    /// How the noise was judged.
    pub noise: String,
    /// What differs of settings, versions and machine.
    pub settings: Vec<Setting>,
    /// Every case, in the order of A; then what only B has.
    pub rows: Vec<Row>,
}

impl Comparison {
    /// Puts two reports side by side.
    ///
    /// # Errors
    /// [`CompareError::OtherKind`] if they are not of one kind.
    pub fn of(a: &Recorded, b: &Recorded) -> Result<Self, CompareError> {
        if a.kind != b.kind {
            return Err(CompareError::OtherKind {
                a: (a.file.clone(), a.kind.clone()),
                b: (b.file.clone(), b.kind.clone()),
            });
        }
        let rows = pairs(&a.measures, &b.measures).into_iter().filter_map(|(a, b)| row(a, b)).collect();
        Ok(Self {
            schema: SCHEMA,
            kind: "compare".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            compared: a.kind.clone(),
            a: a.file.display().to_string(),
            b: b.file.display().to_string(),
            noise: if a.noise == b.noise { a.noise.clone() } else { format!("A: {}; B: {}", a.noise, b.noise) },
            settings: settings(&a.settings, &b.settings),
            rows,
        })
    }

    /// Cases in which B is slower or worse by more than this share, beyond the noise, or has failed where A did not.
    pub fn slower_than(&self, share: f64) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| match row.verdict {
            Verdict::Slower | Verdict::Worse => row.loss.is_none_or(|loss| loss > share),
            Verdict::FailedInB => true,
            _ => false,
        })
    }

    /// The comparison as indented JSON.
    ///
    /// # Errors
    /// If a number is not finite.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        to_json(self)
    }

    /// The rows as CSV.
    ///
    /// # Errors
    /// If a row cannot be written.
    pub fn to_csv(&self) -> Result<String, csv::Error> {
        to_csv(&self.rows)
    }
}

/// What differs, in the order of A.
fn settings(a: &[(String, String)], b: &[(String, String)]) -> Vec<Setting> {
    let of = |settings: &[(String, String)], name: &str| {
        settings.iter().find(|setting| setting.0 == name).map(|setting| setting.1.clone()).unwrap_or_default()
    };
    let only_b = b.iter().filter(|(name, _)| a.iter().all(|setting| setting.0 != *name));
    let names = a.iter().chain(only_b).map(|(name, _)| name);
    let both = names.map(|name| Setting { name: name.clone(), a: of(a, name), b: of(b, name) });
    both.filter(|setting| setting.a != setting.b).collect()
}

#[cfg(test)]
mod tests;
