//! Two reports of one kind, side by side: what differs beyond the noise.
//!
//! Times of a benchmark have samples: their medians differ if the intervals that hold each with a certainty of 95 % do
//! not overlap. The intervals are made a little wider for what changes between two runs, on a CPU more than on a GPU. A
//! replay with the step clock has no noise: what differs, differs.

mod bench;
pub mod command;
mod numbers;
mod page;
mod pairs;
mod read;
mod row;

use serde::{Deserialize, Serialize};

use self::pairs::pairs;
use self::row::row;
use crate::common::Report as _;
use crate::report::Head;

pub use crate::bench::measure::{Band, Better, Measure, Missing};
pub use read::{CompareError, Recorded};
pub use row::{Row, Verdict};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    pub name: String,
    pub a: String,
    pub b: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    #[serde(flatten)]
    pub head: Head,
    pub compared: String,
    pub a: String,
    pub b: String,
    pub noise: String,
    pub settings: Vec<Setting>,
    pub rows: Vec<Row>,
}

impl Comparison {
    pub fn of(a: &Recorded, b: &Recorded) -> Result<Self, CompareError> {
        if a.kind != b.kind {
            return Err(CompareError::OtherKind {
                a: (a.file.clone(), a.kind.clone()),
                b: (b.file.clone(), b.kind.clone()),
            });
        }
        let rows = pairs(&a.measures, &b.measures).into_iter().filter_map(|(a, b)| row(a, b)).collect();
        Ok(Self {
            head: Head::new(Self::KIND, None, None),
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
}

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
