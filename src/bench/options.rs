//! What a benchmark run is asked for.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::models::{CaseSpec, ModelShape};
use super::trace::Request;
use super::workload::Workload;
use crate::config::KvFormat;

/// An operation that can be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Writing the K and V of new tokens.
    Append,
    /// One query token per sequence.
    Decode,
}

impl Op {
    /// All of them, in the order in which they run.
    pub const ALL: [Self; 2] = [Self::Append, Self::Decode];

    /// The name in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Decode => "decode",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no [`Op`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no operation; choose append or decode")]
pub struct UnknownOp {
    given: String,
}

impl FromStr for Op {
    type Err = UnknownOp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|op| op.name() == text);
        found.ok_or_else(|| UnknownOp { given: text.to_owned() })
    }
}

/// Where the lengths of a batch come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    /// All sequences are as long as the context.
    Uniform,
    /// A request log.
    Trace {
        /// Its name in the report.
        name: String,
        /// Its requests.
        requests: Vec<Request>,
    },
    /// A built-in workload.
    Workload(Workload),
}

/// What to measure, and how long.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Operations; empty means all.
    pub ops: Vec<Op>,
    /// Model shapes; empty means the built-in ones. Not used where `cases` are given.
    pub models: Vec<ModelShape>,
    /// Cases by their numbers, instead of models over batches and contexts.
    pub cases: Vec<CaseSpec>,
    /// Storage formats; empty means f16.
    pub kv_formats: Vec<KvFormat>,
    /// Tokens per block; empty means 16.
    pub block_sizes: Vec<u32>,
    /// Sequences; empty means what suits the adapter.
    pub batches: Vec<u32>,
    /// Lengths; empty means what suits the adapter.
    pub contexts: Vec<u32>,
    /// Timed runs of every case; `None` means what suits the adapter.
    pub samples: Option<u32>,
    /// Where the lengths of a batch come from.
    pub lengths: Lengths,
    /// Seed of all inputs.
    pub seed: u64,
    /// Time for the whole run. What is left is shared among the cases that are left; a case gets fewer samples, and none
    /// fewer than five.
    pub time_budget: Duration,
    /// Few, small cases: to see that everything works.
    pub quick: bool,
}

impl Default for BenchOptions {
    fn default() -> Self {
        Self {
            ops: Vec::new(),
            models: Vec::new(),
            cases: Vec::new(),
            kv_formats: Vec::new(),
            block_sizes: Vec::new(),
            batches: Vec::new(),
            contexts: Vec::new(),
            samples: None,
            lengths: Lengths::Uniform,
            seed: 1,
            time_budget: Duration::from_secs(100),
            quick: false,
        }
    }
}
