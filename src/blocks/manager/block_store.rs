//! The pool together with what is remembered of its blocks' content: the one place where blocks change hands.

use crate::blocks::events::{BlockEvent, EventLog};
use crate::blocks::manager::clear::Clears;
use crate::blocks::prefix::PrefixIndex;
use crate::blocks::{BlockId, BlockPool};

/// Blocks and their content.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) pool: BlockPool,
    /// Absent where prefixes are not cached.
    pub(super) prefix: Option<PrefixIndex>,
    /// Absent where freed blocks are not cleared.
    pub(super) clears: Option<Clears>,
    pub(super) events: EventLog,
    /// Free blocks that can still be found by what they hold.
    pub(super) cached: u32,
    /// Blocks whose registration the open step has ended, in this order; the index forgets them at the commit.
    pub(super) evicted: Vec<BlockId>,
}

impl Store {
    pub(super) fn is_registered(&self, block: BlockId) -> bool {
        self.prefix.as_ref().is_some_and(|prefix| prefix.is_registered(block))
    }

    pub(super) fn owners(&self, block: BlockId) -> u32 {
        self.pool.ref_count(block).expect("a block of the pool")
    }

    pub(super) fn is_free(&self, block: BlockId) -> bool {
        self.owners(block) == 0
    }

    /// Whether a writer has to copy the block: somebody else owns it, or may find it by what it holds.
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
                self.events.push(|| BlockEvent::Removed { block, key: prefix.key(block) });
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

    /// Ends the registration of a block in use, whose tokens were truncated away.
    pub(super) fn withdraw(&mut self, block: BlockId) {
        if let Some(prefix) = &mut self.prefix
            && prefix.is_registered(block)
        {
            self.events.push(|| BlockEvent::Removed { block, key: prefix.key(block) });
            prefix.withdraw(block);
        }
    }

    /// Appends the blocks that were given back since the last call, are free and cannot be found by what they hold.
    pub(super) fn take_clears(&mut self, out: &mut Vec<BlockId>) {
        let found = |block| self.prefix.as_ref().is_some_and(|prefix| prefix.is_registered(block));
        if let Some(clears) = &mut self.clears {
            clears.take(out, |block| self.pool.ref_count(block) == Ok(0) && !found(block));
        }
    }

    /// Ends all registrations; every block is free.
    pub(super) fn reset(&mut self) {
        let Some(prefix) = &mut self.prefix else {
            return;
        };
        for block in (0..self.pool.num_blocks()).map(BlockId::of_pool) {
            if prefix.is_registered(block) {
                prefix.unlink(block);
                prefix.forget(block);
                if let Some(clears) = &mut self.clears {
                    clears.released(block);
                }
            }
        }
        self.cached = 0;
    }
}
