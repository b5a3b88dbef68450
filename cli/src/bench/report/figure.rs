//! A number made of several cases, and what it should be.

use serde::{Deserialize, Serialize};

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
