//! The state of a manager in numbers.

use serde::{Deserialize, Serialize};

use crate::blocks::manager::group::Group;
use crate::blocks::{BlockId, CacheManager};

/// The state of a cache in numbers. Those of tokens and bytes are exact between steps; in an open one its blocks count as
/// not filled yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheStats {
    /// Blocks in the pool.
    pub num_blocks: u32,
    /// Blocks with an owner.
    pub used_blocks: u32,
    /// Blocks without one.
    pub free_blocks: u32,
    /// Of these, blocks that the prefix cache can still find; in groups behind the first, those that it could find before the
    /// block of the first group beside them was reused.
    pub cached_blocks: u32,
    /// Blocks with several owners.
    pub shared_blocks: u32,
    /// The most blocks that were ever in use at the end of a step.
    pub peak_used_blocks: u32,
    /// Living sequences.
    pub num_sequences: u32,
    /// Tokens that the used blocks have room for; blocks of all groups of layers count as many as those of the first.
    pub reserved_tokens: u64,
    /// Tokens in them, those in shared blocks counted once.
    pub filled_tokens: u64,
    /// The difference: internal fragmentation.
    pub wasted_tokens: u64,
    /// The same in bytes of K and V, all layers.
    pub wasted_bytes: u64,
    /// Filled over reserved tokens; 1 where nothing is reserved.
    pub utilisation: f64,
    /// Tokens that were looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Tokens that were found there.
    pub prefix_hits: u64,
    /// Cached blocks that were reused for something else, or lost when the pool shrank.
    pub evictions: u64,
    /// Blocks that were copied because their writer shared them.
    pub copies: u64,
    /// Sequences that were preempted.
    pub preemptions: u64,
}

impl CacheManager {
    /// A record of the state and of what has happened so far; takes time in proportion to the sequences.
    pub fn stats(&self) -> CacheStats {
        let pool = self.store.pool();
        let used_blocks = pool.num_blocks() - pool.num_free();
        let reserved_tokens = u64::from(used_blocks) * u64::from(self.layout.block_size());
        let wasted_bytes: u64 = self.groups.iter().map(|group| self.wasted_tokens(group) * group.token_bytes()).sum();
        let wasted_tokens = wasted_bytes / self.groups[0].token_bytes();
        let filled_tokens = reserved_tokens - wasted_tokens;
        CacheStats {
            num_blocks: pool.num_blocks(),
            used_blocks,
            free_blocks: pool.num_free(),
            cached_blocks: self.store.num_cached(),
            shared_blocks: pool.num_shared(),
            num_sequences: self.num_sequences,
            reserved_tokens,
            filled_tokens,
            wasted_tokens,
            wasted_bytes,
            utilisation: if used_blocks == 0 { 1.0 } else { filled_tokens as f64 / reserved_tokens as f64 },
            ..self.tally
        }
    }

    pub(super) fn note_peak(&mut self) {
        let used = self.store.pool().num_blocks() - self.store.pool().num_free();
        self.tally.peak_used_blocks = self.tally.peak_used_blocks.max(used);
    }

    /// Places in used blocks of a group that hold no token of any owner.
    fn wasted_tokens(&self, group: &Group) -> u64 {
        let block_size = group.layout.block_size();
        let mut wasted = 0;
        // Shared blocks that some owner does not fill: (block, tokens).
        let mut shared: Vec<(BlockId, u32)> = Vec::new();
        for (row, state) in (0..).zip(&self.sequences).filter(|(_, state)| state.live) {
            let full = state.len / block_size;
            for (column, &block) in (full..).zip(group.used(row).iter().skip(full as usize)) {
                let filled = state.len.saturating_sub(column * block_size);
                match self.store.pool().staying(block) {
                    0 | 1 => wasted += u64::from(block_size - filled),
                    _ => shared.push((block, filled)),
                }
            }
        }
        shared.sort_unstable();
        for owners in shared.chunk_by(|a, b| a.0 == b.0) {
            let (block, most_filled) = owners[owners.len() - 1];
            // An owner that is not here has filled it.
            if self.store.pool().staying(block) as usize == owners.len() {
                wasted += u64::from(block_size - most_filled);
            }
        }
        wasted
    }
}
