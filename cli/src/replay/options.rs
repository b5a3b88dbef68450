//! How a log is served, and why it could not be.

use wgpu_paged_attention::blocks::ManagerOptions;
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::{ConfigError, ManagerError, ReserveError};
use wgpu_paged_attention::plan::Schedule;
use wgpu_paged_attention::testkit::changed;

use super::ObserverError;

#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The cache. [`paged`](CacheConfig::paged) is set by [`serve`](super::serve), `max_sequences` is the most
    /// concurrent requests, and requests are cut at `max_seq_len`.
    pub cache: CacheConfig,
    /// The narrowest window of any layer, by which attention is counted. Blocks leave the window of the cache, which all layers
    /// have.
    pub window: Option<u32>,
    pub step_tokens: u32,
    /// Whether equal beginnings are shared, where the log tells what prompts begin with.
    pub prefix_cache: bool,
    pub schedule: Schedule,
}

impl ServeOptions {
    pub fn new(cache: CacheConfig) -> Self {
        // No device looks for shared runs here, so no time is spent on it.
        let schedule = changed(&Schedule::default(), |it| it.share_prefixes = false);
        Self { cache, window: None, step_tokens: 2048, prefix_cache: true, schedule }
    }

    pub(super) fn manager(&self, prefix_cache: bool) -> ManagerOptions {
        ManagerOptions::default().with_prefix_cache(prefix_cache)
    }
}

/// A replay that could not begin or go on. Requests that do not fit are counted, not errors.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Manager(#[from] ManagerError),
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    #[error("step_tokens is 0; a step takes at least 1 token")]
    ZeroStepTokens,
    #[error("the clock gives {seconds} s for a step of {tokens} tokens; a step takes 1e-9 to 1e9 s")]
    Clock { seconds: f64, tokens: u32 },
    #[error("the replay is longer than 584 years at step {step}; give a clock with shorter steps")]
    EndOfTime { step: u64 },
    #[error("step {step}: {source}")]
    Observer { step: u64, source: ObserverError },
}
