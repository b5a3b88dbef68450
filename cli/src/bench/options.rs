//! What a benchmark run is asked for.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::testkit::ScenarioVariant;

use super::{CaseSpec, LengthList, ModelShape};
use crate::trace::Request;
use crate::workload::Workload;

const MIXED_CHUNK: u32 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Op {
    Append,
    /// One query token per sequence, or a few, as in speculative decoding.
    Decode,
    /// All tokens of every sequence are queries.
    Prefill,
    /// The last sequence brings a chunk of 128 queries, all others decode.
    Mixed,
}

impl Op {
    pub const ALL: [Self; 4] = [Self::Append, Self::Decode, Self::Prefill, Self::Mixed];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Decode => "decode",
            Self::Prefill => "prefill",
            Self::Mixed => "mixed",
        }
    }

    /// Queries of every sequence; `decoding` of a sequence that decodes. A sequence has no more queries than tokens.
    pub fn queries(self, lens: &[u32], decoding: u32) -> Vec<u32> {
        let last = lens.len().saturating_sub(1);
        let wanted = |seq: usize| match self {
            Self::Append => 0,
            Self::Decode => decoding,
            Self::Prefill => u32::MAX,
            Self::Mixed if seq == last => MIXED_CHUNK,
            Self::Mixed => decoding,
        };
        lens.iter().enumerate().map(|(seq, &len)| len.min(wanted(seq))).collect()
    }

    /// Whether multiply-adds bound it, rather than reads of K and V.
    pub fn is_compute_bound(self) -> bool {
        matches!(self, Self::Prefill | Self::Mixed)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Lengths {
    Uniform,
    Lists(Vec<LengthList>),
    Trace { name: String, requests: Vec<Request> },
    Workload(Workload),
}

#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Measure the project's own figures instead; of the rest, only samples, seed and time are used.
    pub figures: bool,
    pub ops: Vec<Op>,
    pub models: Vec<ModelShape>,
    pub cases: Vec<CaseSpec>,
    pub kv_dtypes: Vec<KvDtype>,
    pub block_sizes: Vec<u32>,
    pub batches: Vec<u32>,
    pub contexts: Vec<u32>,
    pub queries: u32,
    pub shared_prefix: Option<u32>,
    pub variant: ScenarioVariant,
    pub lse: bool,
    pub samples: Option<u32>,
    pub lengths: Lengths,
    pub seed: u64,
    /// Time for the whole run. What is left is shared among the cases that are left; a case gets fewer samples, and none
    /// fewer than five.
    pub time_budget: Duration,
    pub quick: bool,
}

#[cfg(test)]
impl Default for BenchOptions {
    fn default() -> Self {
        Self {
            figures: false,
            ops: Vec::new(),
            models: Vec::new(),
            cases: Vec::new(),
            kv_dtypes: Vec::new(),
            block_sizes: Vec::new(),
            batches: Vec::new(),
            contexts: Vec::new(),
            queries: 1,
            shared_prefix: None,
            variant: ScenarioVariant::PLAIN,
            lse: false,
            samples: None,
            lengths: Lengths::Uniform,
            seed: 1,
            time_budget: Duration::from_secs(100),
            quick: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_has_no_more_queries_than_tokens() {
        let lens = [300, 2, 0, 500];
        assert_eq!(Op::Append.queries(&lens, 1), [0; 4]);
        assert_eq!(Op::Decode.queries(&lens, 1), [1, 1, 0, 1]);
        assert_eq!(Op::Decode.queries(&lens, 4), [4, 2, 0, 4]);
        assert_eq!(Op::Prefill.queries(&lens, 4), lens);
        assert_eq!(Op::Mixed.queries(&lens, 1), [1, 1, 0, 128]);
        assert_eq!(Op::Mixed.queries(&[50], 1), [50]);
        assert!(Op::Mixed.queries(&[], 1).is_empty());
    }

    #[test]
    fn names_are_read_back() {
        for op in Op::ALL {
            assert_eq!(Op::from_str(op.name(), false), Ok(op));
        }
    }
}
