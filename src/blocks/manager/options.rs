//! What a manager does beyond handing out blocks.

use crate::blocks::{KeyHash, sha256};

/// How a [`CacheManager`](crate::blocks::CacheManager) works; by default it does nothing that is not asked for.
///
/// ```
/// use wgpu_paged_attention::blocks::{CacheManager, Domain, ManagerOptions};
/// use wgpu_paged_attention::{config::CacheConfig, plan::{Schedule, StepPlan}};
///
/// let layout = CacheConfig::new(1, 2, 64).with_num_blocks(8).layout()?;
/// let mut cache = CacheManager::with_options(&layout, &ManagerOptions::default().with_prefix_cache(true))?;
/// let mut plan = StepPlan::new(Schedule::default());
/// let prompt: Vec<u32> = (0..40).collect();
///
/// let (first, cached) = cache.create_sequence_with_tokens(&prompt, &Domain::default())?;
/// assert_eq!(cached, 0);
/// cache.reserve_tokens(&[(first, &prompt)], &mut plan)?;
/// cache.commit(&mut plan)?;
///
/// let (second, cached) = cache.create_sequence_with_tokens(&prompt, &Domain::default())?;
/// assert_eq!(cached, 32); // two blocks of 16; the third is not full
/// cache.reserve_tokens(&[(second, &prompt[32..])], &mut plan)?;
/// assert_eq!(plan.num_rows(), 8);
/// cache.commit(&mut plan)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ManagerOptions {
    /// Full blocks are found again by their tokens. Needs a paged cache, and tokens in
    /// [`reserve_tokens`](crate::blocks::CacheManager::reserve_tokens).
    pub prefix_cache: bool,
    /// The window of every group of layers, `None` for layers that see everything. Where all have one, blocks that left
    /// the widest return to the pool; no groups are like one without a window.
    pub windows: Vec<Option<u32>>,
    /// Tokens by which a sequence may be cut after blocks left its windows, for speculation: blocks are kept so much
    /// longer.
    pub window_slack: u32,
    /// Blocks with old data are listed so that the device can clear or poison them: those that a step hands out in
    /// [`StepPlan::clears`](crate::plan::StepPlan::clears), free ones in
    /// [`take_scrubs`](crate::blocks::CacheManager::take_scrubs).
    pub scrub: bool,
    /// Changes of the prefix cache are kept for [`take_events`](crate::blocks::CacheManager::take_events).
    pub events: bool,
    /// A preempted sequence of at least so many tokens is swapped out; shorter ones, and all where this is `None`, are
    /// computed again.
    pub swap_from_tokens: Option<u32>,
    /// The hash behind the keys of the prefix cache. A weak one costs time, not correctness: hits are compared.
    pub key_hash: KeyHash,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            prefix_cache: false,
            windows: Vec::new(),
            window_slack: 0,
            scrub: false,
            events: false,
            swap_from_tokens: None,
            key_hash: sha256,
        }
    }
}

impl ManagerOptions {
    /// Sets [`prefix_cache`](Self::prefix_cache).
    #[must_use]
    pub fn with_prefix_cache(mut self, prefix_cache: bool) -> Self {
        self.prefix_cache = prefix_cache;
        self
    }

    /// Sets [`windows`](Self::windows).
    #[must_use]
    pub fn with_windows(mut self, windows: &[Option<u32>]) -> Self {
        self.windows = windows.to_vec();
        self
    }

    /// Sets [`window_slack`](Self::window_slack).
    #[must_use]
    pub fn with_window_slack(mut self, window_slack: u32) -> Self {
        self.window_slack = window_slack;
        self
    }

    /// Sets [`scrub`](Self::scrub).
    #[must_use]
    pub fn with_scrub(mut self, scrub: bool) -> Self {
        self.scrub = scrub;
        self
    }

    /// Sets [`events`](Self::events).
    #[must_use]
    pub fn with_events(mut self, events: bool) -> Self {
        self.events = events;
        self
    }

    /// Sets [`swap_from_tokens`](Self::swap_from_tokens).
    #[must_use]
    pub fn with_swap_from_tokens(mut self, swap_from_tokens: Option<u32>) -> Self {
        self.swap_from_tokens = swap_from_tokens;
        self
    }

    /// Sets [`key_hash`](Self::key_hash).
    #[must_use]
    pub fn with_key_hash(mut self, key_hash: KeyHash) -> Self {
        self.key_hash = key_hash;
        self
    }
}
