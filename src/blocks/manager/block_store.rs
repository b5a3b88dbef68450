//! The pool together with what is remembered of its blocks' content: the one place where blocks change hands.

use std::sync::Arc;

use crate::blocks::events::{BlockEvent, EventLog};
use crate::blocks::manager::clear::Clears;
use crate::blocks::prefix::{PrefixIndex, Seat};
use crate::blocks::{BlockId, BlockPool, Domain, ManagerOptions, sha256};
use crate::error::{ManagerError, PoolError};
use crate::layout::KvLayout;

/// Blocks and their content.
#[derive(Debug)]
pub(super) struct Store {
    pool: BlockPool,
    /// Absent where prefixes are not cached.
    prefix: Option<PrefixIndex>,
    /// Absent where freed blocks are not cleared.
    clears: Option<Clears>,
    events: EventLog,
    /// Free blocks that can still be found by what they hold.
    cached: u32,
    /// Blocks whose registration the open step has ended, in this order; the index forgets them at the commit.
    evicted: Vec<BlockId>,
}

impl Store {
    /// All blocks are free, and hold nothing that can be found.
    pub(super) fn new(layout: &KvLayout, options: &ManagerOptions) -> Result<Self, ManagerError> {
        let (num_blocks, most) = (layout.num_blocks(), layout.max_num_blocks());
        let no_memory = |bytes| ManagerError::HostMemory { bytes };
        let index = || PrefixIndex::new(num_blocks, most, layout.block_size(), options.key_hash.unwrap_or(sha256));
        Ok(Self {
            pool: BlockPool::growing(num_blocks, most)?,
            prefix: options.prefix_cache.then(index).transpose().map_err(no_memory)?,
            clears: options.clear_freed.then(|| Clears::new(num_blocks, most)).transpose().map_err(no_memory)?,
            events: EventLog::new(options.events),
            cached: 0,
            evicted: Vec::new(),
        })
    }

    /// For reading; owners change only here.
    pub(super) fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// For reading; registrations and tokens change only here.
    pub(super) fn prefix(&self) -> Option<&PrefixIndex> {
        self.prefix.as_ref()
    }

    pub(super) fn num_cached(&self) -> u32 {
        self.cached
    }

    pub(super) fn evicted(&self) -> &[BlockId] {
        &self.evicted
    }

    pub(super) fn is_registered(&self, block: BlockId) -> bool {
        self.prefix.as_ref().is_some_and(|prefix| prefix.is_registered(block))
    }

    pub(super) fn owners(&self, block: BlockId) -> u32 {
        self.pool.ref_count(block).expect("a block of the pool")
    }

    pub(super) fn is_free(&self, block: BlockId) -> bool {
        self.owners(block) == 0
    }

    /// Whether a writer has to copy the block: another sequence owns it, or can find it by what it holds.
    pub(super) fn must_copy(&self, block: BlockId) -> bool {
        self.pool.staying(block) > 1 || self.is_registered(block)
    }

    /// Fills `out` with the free blocks that were used least recently; what they held can no longer be found.
    ///
    /// The caller has seen that there are so many.
    pub(super) fn allocate(&mut self, out: &mut [BlockId]) {
        self.pool.allocate_into(out).expect("there are as many free blocks as were counted");
        let Some(prefix) = &mut self.prefix else {
            return;
        };
        for &mut block in out {
            if prefix.is_registered(block) {
                prefix.unlink(block);
                self.cached -= 1;
                self.evicted.push(block);
            }
        }
    }

    /// Undoes the latest allocation that was not undone yet.
    pub(super) fn unallocate(&mut self, block: BlockId) {
        self.pool.unallocate(block);
        if self.evicted.last() == Some(&block) {
            self.evicted.pop();
            self.prefix.as_mut().expect("only an index evicts").relink(block);
            self.cached += 1;
        }
        if let Some(clears) = &mut self.clears {
            // The device may have written to it.
            clears.released(block);
        }
    }

    /// Makes evictions final. Returns how many there were.
    pub(super) fn settle_evictions(&mut self) -> u64 {
        let evictions = self.evicted.len() as u64;
        if let Some(prefix) = &mut self.prefix {
            for &block in &self.evicted {
                self.events.push(|| removed(prefix, block));
                prefix.forget(block);
            }
        }
        self.evicted.clear();
        evictions
    }

    /// Adds an owner to blocks that were found by what they hold.
    pub(super) fn pin(&mut self, blocks: &[BlockId]) {
        self.cached -=
            self.pool.touch(blocks.iter().copied()).expect("found blocks are blocks of the pool, each with few owners");
    }

    /// Drops an owner. What a registered block holds stays until the block is reused.
    pub(super) fn give_back(&mut self, block: BlockId) {
        if !self.pool.free(block).expect("owned blocks are in use") {
            return;
        }
        if self.is_registered(block) {
            self.cached += 1;
        }
        if let Some(clears) = &mut self.clears {
            clears.released(block);
        }
    }

    /// Adds an owner to blocks in use.
    pub(super) fn retain_all(&mut self, blocks: &[BlockId]) {
        self.pool.retain_all(blocks);
    }

    /// Notes that an owner of a block lets go of it when the open step is committed.
    pub(super) fn leave(&mut self, block: BlockId) {
        self.pool.leave(block);
    }

    /// Takes back [`leave`](Self::leave).
    pub(super) fn stay(&mut self, block: BlockId) {
        self.pool.stay(block);
    }

    /// Notes the tokens of a block from `within` on; those of a registered block are known already.
    pub(super) fn note_tokens(&mut self, block: BlockId, within: usize, ids: &[u32]) {
        if let Some(prefix) = self.prefix.as_mut().filter(|prefix| !prefix.is_registered(block)) {
            prefix.tokens_mut(block)[within..][..ids.len()].copy_from_slice(ids);
        }
    }

    /// Gives a copy of a block the first tokens of its source.
    pub(super) fn copy_tokens(&mut self, source: BlockId, target: BlockId, count: usize) {
        if let Some(prefix) = &mut self.prefix {
            prefix.copy_tokens(source, target, count);
        }
    }

    /// Makes a full block findable behind the block `before`.
    pub(super) fn register(&mut self, block: BlockId, before: Option<BlockId>, domain: &Arc<Domain>) {
        if let Some(prefix) = self.prefix.as_mut().filter(|prefix| !prefix.is_registered(block)) {
            prefix.register(block, before, domain);
            let parent = before.map(|before| prefix.key(before));
            self.events.push(|| BlockEvent::Stored { block, group: 0, key: prefix.key(block), parent });
        }
    }

    /// Makes a full block of another group findable, beside the registered block `reference`, which stands behind `before`.
    pub(super) fn attach(&mut self, block: BlockId, seat: Seat, reference: BlockId, before: Option<BlockId>) {
        if let Some(prefix) = self.prefix.as_mut().filter(|prefix| !prefix.is_registered(block)) {
            prefix.attach(block, reference, seat);
            let parent = before.map(|before| prefix.key(before));
            self.events.push(|| BlockEvent::Stored { block, group: seat.group, key: prefix.key(block), parent });
        }
    }

    /// Ends the registration of a block in use, whose tokens were truncated away.
    pub(super) fn withdraw(&mut self, block: BlockId) {
        if let Some(prefix) = &mut self.prefix
            && prefix.is_registered(block)
        {
            self.events.push(|| removed(prefix, block));
            prefix.withdraw(block);
        }
    }

    pub(super) fn take_events(&mut self) -> Vec<BlockEvent> {
        self.events.take()
    }

    /// Whether blocks to clear are listed at all.
    pub(super) fn lists_clears(&self) -> bool {
        self.clears.is_some()
    }

    /// Whether a block that is handed out holds what an earlier owner left there.
    pub(super) fn needs_clear(&self, block: BlockId) -> bool {
        self.clears.as_ref().is_some_and(|clears| clears.is_stale(block)) && self.pool.leaving(block) == 0
    }

    /// Appends the blocks that were given back since the last call, are free and cannot be found by what they hold.
    pub(super) fn take_clears(&mut self, out: &mut Vec<BlockId>) {
        let found = |block| self.prefix.as_ref().is_some_and(|prefix| prefix.is_registered(block));
        if let Some(clears) = &mut self.clears {
            clears.take(out, |block| self.pool.ref_count(block) == Ok(0) && !found(block));
        }
    }

    /// Gives the pool another size. Returns how many cached blocks are lost with its end; no step is open.
    pub(super) fn resize(&mut self, num_blocks: u32) -> Result<u32, PoolError> {
        let old = self.pool.num_blocks();
        self.pool.resize(num_blocks)?;
        let cached = self.cached;
        for block in (num_blocks..old).map(BlockId::of_pool) {
            if let Some(prefix) = self.prefix.as_mut().filter(|prefix| prefix.is_registered(block)) {
                self.events.push(|| removed(prefix, block));
                prefix.unlink(block);
                prefix.forget(block);
                self.cached -= 1;
            }
        }
        if let Some(prefix) = &mut self.prefix {
            prefix.resize(num_blocks);
        }
        if let Some(clears) = &mut self.clears {
            clears.resize(num_blocks);
        }
        Ok(cached - self.cached)
    }

    /// Ends all registrations; every block is free.
    pub(super) fn reset(&mut self) {
        for block in (0..self.pool.num_blocks()).map(BlockId::of_pool) {
            if let Some(prefix) = self.prefix.as_mut().filter(|prefix| prefix.is_registered(block)) {
                prefix.unlink(block);
                prefix.forget(block);
                if let Some(clears) = &mut self.clears {
                    clears.released(block);
                }
            }
        }
        self.cached = 0;
        self.events.push(|| BlockEvent::Cleared);
    }

    /// What the tests of the checks spoil.
    #[cfg(test)]
    pub(super) fn parts(&mut self) -> (&mut Option<PrefixIndex>, &mut u32, &mut Vec<BlockId>) {
        (&mut self.prefix, &mut self.cached, &mut self.evicted)
    }
}

/// The event of a block that is registered and will not be.
fn removed(prefix: &PrefixIndex, block: BlockId) -> BlockEvent {
    BlockEvent::Removed { block, group: prefix.seat(block).map_or(0, |seat| seat.group), key: prefix.key(block) }
}
