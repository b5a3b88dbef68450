//! The pool together with what is remembered of its blocks' content: the one place where blocks change hands.

use crate::blocks::events::{BlockEvent, EventLog};
use crate::blocks::manager::scrub::Scrubs;
use crate::blocks::prefix::PrefixIndex;
use crate::blocks::{BlockId, BlockPool};

/// Blocks and their content.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) pool: BlockPool,
    /// Absent where prefixes are not cached.
    pub(super) prefix: Option<PrefixIndex>,
    /// Absent where nothing is scrubbed.
    pub(super) scrubs: Option<Scrubs>,
    pub(super) events: EventLog,
    /// Free blocks that can still be found by what they hold.
    pub(super) cached: u32,
    /// Blocks whose registration the open step has ended, in this order; the index forgets them at the commit.
    pub(super) evicted: Vec<u32>,
}

/// An id that came out of a table or the pool.
pub(super) fn id(block: u32) -> BlockId {
    BlockId::new(block).expect("tables and free list hold block ids only")
}

impl Store {
    pub(super) fn is_registered(&self, block: u32) -> bool {
        self.prefix.as_ref().is_some_and(|prefix| prefix.is_registered(block))
    }

    pub(super) fn owners(&self, block: u32) -> u32 {
        self.pool.ref_count(id(block)).expect("a block of the pool")
    }

    pub(super) fn is_free(&self, block: u32) -> bool {
        self.owners(block) == 0
    }

    /// Whether a writer has to copy the block: somebody else owns it, or may find it by what it holds.
    pub(super) fn must_copy(&self, block: u32) -> bool {
        self.pool.staying(block) > 1 || self.is_registered(block)
    }

    /// The free block that was used least recently; what it held can no longer be found.
    ///
    /// The caller has seen that there is a free block.
    pub(super) fn allocate(&mut self) -> u32 {
        let block = self.pool.allocate().expect("there are as many free blocks as were counted").get();
        if let Some(prefix) = self.prefix.as_mut().filter(|prefix| prefix.is_registered(block)) {
            prefix.unlink(block);
            self.cached -= 1;
            self.evicted.push(block);
        }
        block
    }

    /// Undoes the latest [`allocate`](Self::allocate) that was not undone yet.
    pub(super) fn unallocate(&mut self, block: u32) {
        self.pool.unallocate(id(block)).expect("a block of the open step has one owner");
        if self.evicted.last() == Some(&block) {
            self.evicted.pop();
            self.prefix.as_mut().expect("only an index evicts").relink(block);
            self.cached += 1;
        }
        if let Some(scrubs) = &mut self.scrubs {
            // The device may have written to it.
            scrubs.released(block);
        }
    }

    /// Makes evictions final. Returns how many there were.
    pub(super) fn settle_evictions(&mut self) -> u64 {
        let evictions = self.evicted.len() as u64;
        if let Some(prefix) = &mut self.prefix {
            for &block in &self.evicted {
                self.events.push(|| BlockEvent::Removed { block, key: prefix.key(block) });
                prefix.forget(block);
            }
        }
        self.evicted.clear();
        evictions
    }

    /// Adds an owner to a block that was found by what it holds.
    pub(super) fn pin(&mut self, block: u32) {
        if self.pool.retain(id(block)).is_err() {
            self.pool.take(id(block)).expect("a block of the pool is free or in use");
            self.cached -= 1;
        }
    }

    /// Drops an owner. What a registered block holds stays until the block is reused.
    pub(super) fn give_back(&mut self, block: u32) {
        if !self.pool.free(id(block)).expect("owned blocks are in use") {
            return;
        }
        if self.is_registered(block) {
            self.cached += 1;
        }
        if let Some(scrubs) = &mut self.scrubs {
            scrubs.released(block);
        }
    }

    /// Ends all registrations; every block is free.
    pub(super) fn reset(&mut self) {
        let Some(prefix) = &mut self.prefix else {
            return;
        };
        for block in 0..self.pool.num_blocks() {
            if prefix.is_registered(block) {
                prefix.unlink(block);
                prefix.forget(block);
                if let Some(scrubs) = &mut self.scrubs {
                    scrubs.released(block);
                }
            }
        }
        self.cached = 0;
    }
}
