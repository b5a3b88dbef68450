//! What a manager does beyond handing out blocks.

use crate::blocks::KeyHash;
use crate::setters::options;

/// The most [`late_steps`](ManagerOptions::late_steps).
pub const MAX_LATE_STEPS: u32 = 4096;

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
    pub(crate) prefix_cache: bool,
    pub(crate) window_slack: u32,
    pub(crate) clear_freed: bool,
    pub(crate) events: bool,
    pub(crate) swap_from_tokens: Option<u32>,
    pub(crate) key_hash: Option<KeyHash>,
    pub(crate) late_steps: u32,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            prefix_cache: false,
            window_slack: 0,
            clear_freed: false,
            events: false,
            swap_from_tokens: None,
            key_hash: None,
            late_steps: 16,
        }
    }
}

impl ManagerOptions {
    options! {
        /// Whether full blocks are found again by their tokens. Needs a paged cache, and tokens in
        /// [`reserve_tokens`](crate::blocks::CacheManager::reserve_tokens).
        prefix_cache: bool, with_prefix_cache(bool);
        /// Tokens by which a sequence may be cut after blocks left the windows of its layers, for speculation: blocks are kept so
        /// much longer.
        window_slack: u32, with_window_slack(u32);
        /// Whether blocks with old data are listed so that the device can clear or poison them: those that a step hands out
        /// in [`StepPlan::clears`](crate::plan::StepPlan::clears), free ones in
        /// [`take_clears`](crate::blocks::CacheManager::take_clears).
        clear_freed: bool, with_clear_freed(bool);
        /// Whether changes of the prefix cache are kept for [`take_events`](crate::blocks::CacheManager::take_events).
        events: bool, with_events(bool);
        /// A preempted sequence of at least so many tokens is swapped out; shorter ones, and all where this is `None`, are
        /// computed again.
        swap_from_tokens: Option<u32>, with_swap_from_tokens(Option<u32>);
        /// The hash behind the keys of the prefix cache, [`sha256`](crate::blocks::sha256) where this is `None`. A weak one
        /// costs time, not correctness: hits are compared.
        key_hash: Option<KeyHash>, with_key_hash(KeyHash) => Some(key_hash);
        /// Steps of a sequence that may wait for their [token ids](crate::blocks::CacheManager::add_token_ids); 16 unless set,
        /// [`MAX_LATE_STEPS`](crate::blocks::MAX_LATE_STEPS) at the most.
        /// Ids of a step further back are refused, and from it on the sequence is not found in the prefix cache. The manager
        /// takes 16 bytes for each of them and of the cache's `max_sequences`.
        late_steps: u32, with_late_steps(u32);
    }
}
