//! What a manager does beyond handing out blocks.

use crate::blocks::{KeyHash, sha256};
use crate::setters::setters;

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
    /// [`take_clears`](crate::blocks::CacheManager::take_clears).
    pub clear_freed: bool,
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
            clear_freed: false,
            events: false,
            swap_from_tokens: None,
            key_hash: sha256,
        }
    }
}

impl ManagerOptions {
    setters! {
        /// Sets [`prefix_cache`](Self::prefix_cache).
        with_prefix_cache(prefix_cache: bool);
        /// Sets [`windows`](Self::windows).
        with_windows(windows: &[Option<u32>]) => windows.to_vec();
        /// Sets [`window_slack`](Self::window_slack).
        with_window_slack(window_slack: u32);
        /// Sets [`clear_freed`](Self::clear_freed).
        with_clear_freed(clear_freed: bool);
        /// Sets [`events`](Self::events).
        with_events(events: bool);
        /// Sets [`swap_from_tokens`](Self::swap_from_tokens).
        with_swap_from_tokens(swap_from_tokens: Option<u32>);
        /// Sets [`key_hash`](Self::key_hash).
        with_key_hash(key_hash: KeyHash);
    }
}
