//! What came of serving a log.

use serde::{Deserialize, Serialize};

use super::spread::Spread;

/// One side of a replay: a log served by one kind of cache.
///
/// Shares are weighted by the time that they held; latencies count every request or token once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ServeRecord {
    pub paged: bool,
    pub capacity_tokens: u64,
    /// Requests that were answered.
    pub finished: u64,
    /// Of these, requests whose answer was cut at the longest sequence.
    pub cut: u64,
    /// Requests that could not be served: their prompt alone is longer than a sequence may be, or than the pool.
    pub refused: u64,
    /// Requests without output tokens, which failed when the log was taken.
    pub empty: u64,
    /// Requests not answered when the replay was interrupted.
    pub unfinished: u64,
    pub steps: u64,
    /// Seconds from the first arrival to the end of the last step, on the replay's clock.
    pub elapsed_s: f64,
    /// Of these, seconds in steps.
    pub busy_s: f64,
    /// Prompt tokens of the finished requests, those found in the prefix cache included.
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Finished requests over elapsed time.
    pub requests_per_s: f64,
    /// Generated tokens over elapsed time.
    pub output_tokens_per_s: f64,
    /// Prompt and generated tokens over elapsed time.
    pub total_tokens_per_s: f64,
    /// Filled over reserved tokens of the cache while there was work.
    pub utilisation: Option<Spread>,
    /// The rest: reserved, but not filled.
    pub internal_fragmentation: Option<Spread>,
    /// Requests in the batch while there was work.
    pub concurrency: Option<Spread>,
    /// Requests that waited while there was work.
    pub waiting: Option<Spread>,
    /// From arrival until a request is let in for the first time.
    pub queueing_s: Option<Spread>,
    pub time_to_first_token_s: Option<Spread>,
    /// From one token to the next, preemptions included.
    pub time_between_tokens_s: Option<Spread>,
    /// Per request: from the first token to the last, over the tokens between.
    pub time_per_output_token_s: Option<Spread>,
    /// From arrival to the last token.
    pub latency_s: Option<Spread>,
    /// Sequences that had to give way.
    pub preemptions: u64,
    /// Tokens that had been in the cache for them, and were computed again.
    pub recomputed_tokens: u64,
    /// The prefix cache, where the log tells what prompts begin with.
    pub prefix: Option<PrefixRecord>,
    /// The course, in at most 1,024 points.
    pub timeline: Vec<TimelinePoint>,
}

impl ServeRecord {
    /// The name in tables and plots.
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
    /// The same of a cache that forgets nothing and computes prompts at once.
    pub infinite_share: f64,
    /// Cached blocks that were reused for something else.
    pub evictions: u64,
}

/// The state at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelinePoint {
    /// Seconds since the first arrival.
    pub time_s: f64,
    /// Filled over reserved tokens.
    pub utilisation: f64,
    /// Tokens that used blocks have room for.
    pub reserved_tokens: u64,
    pub filled_tokens: u64,
    /// Requests in the batch.
    pub running: u32,
    pub waiting: u32,
}
