//! What came of serving a log.

use serde::{Deserialize, Serialize};

use super::Spread;

/// One side of a replay: a log served by one kind of cache.
/// Shares are weighted by the time that they held; latencies count every request or token once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServeRecord {
    pub paged: bool,
    pub capacity_tokens: u64,
    pub finished: u64,
    pub cut: u64,
    /// Requests that could not be served: their prompt alone is longer than a sequence may be, or than the pool.
    pub refused: u64,
    pub empty: u64,
    pub unfinished: u64,
    pub steps: u64,
    pub elapsed_s: f64,
    pub busy_s: f64,
    /// Prompt tokens of the finished requests, those found in the prefix cache included.
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub requests_per_s: f64,
    pub output_tokens_per_s: f64,
    pub total_tokens_per_s: f64,
    pub utilisation: Option<Spread>,
    pub internal_fragmentation: Option<Spread>,
    pub concurrency: Option<Spread>,
    pub waiting: Option<Spread>,
    /// From arrival until a request is let in for the first time.
    pub queueing_s: Option<Spread>,
    pub time_to_first_token_s: Option<Spread>,
    pub time_between_tokens_s: Option<Spread>,
    /// Per request: from the first token to the last, over the tokens between.
    pub time_per_output_token_s: Option<Spread>,
    pub latency_s: Option<Spread>,
    pub preemptions: u64,
    /// Tokens that had been in the cache for them, and were computed again.
    pub recomputed_tokens: u64,
    pub prefix: Option<PrefixRecord>,
    /// The course, in at most 1,024 points.
    pub timeline: Vec<TimelinePoint>,
}

impl ServeRecord {
    pub const fn name(&self) -> &'static str {
        if self.paged { "paged" } else { "contiguous" }
    }
}

/// How prompts met the prefix cache. A sequence that comes back after a preemption is not counted again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PrefixRecord {
    pub prompt_tokens: u64,
    pub hit_tokens: u64,
    /// Found over looked up.
    pub hit_share: f64,
    pub infinite_share: f64,
    pub evictions: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelinePoint {
    pub time_s: f64,
    pub utilisation: f64,
    /// Tokens that used blocks have room for.
    pub reserved_tokens: u64,
    pub filled_tokens: u64,
    pub running: u32,
    pub waiting: u32,
}
