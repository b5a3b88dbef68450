//! What a step takes: which blocks its sequences need, and how they get them.

use crate::blocks::manager::Sequence;
use crate::blocks::{BlockId, CacheManager, SeqId};
use crate::error::ReserveError;
use crate::plan::{BlockCopy, Counts, StepPlan, TableUpdate};

/// A sequence's part in the open step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension {
    pub(super) row: u32,
    /// Columns before the step.
    pub(super) old_blocks: u32,
    pub(super) new_tokens: u32,
    /// The block that was copied because the first new token goes into it. The sequence owns it until the commit.
    pub(super) source: Option<BlockId>,
}

/// What a request brings: how many tokens, and which if that is known.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) seq: SeqId,
    pub(super) new_tokens: u32,
    pub(super) tokens: &'a [u32],
}

impl CacheManager {
    /// Whether [`reserve`](Self::reserve) would find all handles valid, no sequence too long and enough free blocks, of
    /// which `headroom` stay free.
    ///
    /// It does not look for a sequence that is named twice.
    pub fn can_reserve(&self, requests: &[(SeqId, u32)], headroom: u32) -> bool {
        let mut needed = u64::from(headroom);
        for (request, &(seq, new_tokens)) in requests.iter().enumerate() {
            let Some(state) = self.sequence(seq) else {
                return false;
            };
            let Some((old, new)) = self.blocks_after(state, new_tokens) else {
                return false;
            };
            needed += u64::from(new - old);
            if let Some(block) = self.written_block(seq.index(), state, new_tokens) {
                let copied = self.store.must_copy(block)
                    && (self.store.is_registered(block)
                        || !self.writes_in_place(block, state.len, &requests[..request]));
                needed += u64::from(copied);
            }
        }
        !self.step.is_open() && needed <= self.store.pool().num_free().into()
    }

    /// Columns before and after an extension, or `None` if the sequence would be too long.
    fn blocks_after(&self, seq: &Sequence, new_tokens: u32) -> Option<(u32, u32)> {
        let len = seq.len.checked_add(new_tokens)?;
        (len <= self.layout.max_seq_len()).then(|| {
            // A contiguous sequence owns its block before it has a token.
            let blocks = self.layout.blocks_for(len).max(seq.num_blocks);
            (seq.num_blocks, blocks)
        })
    }

    /// The block that a sequence owns already and writes into when it grows.
    fn written_block(&self, row: u32, seq: &Sequence, new_tokens: u32) -> Option<BlockId> {
        let column = seq.len / self.layout.block_size();
        // Never a released one: the last token of a sequence is inside all windows.
        (new_tokens > 0 && column < seq.num_blocks).then(|| self.tables.row(row)[column as usize])
    }

    /// Whether a sequence of `len` tokens would write into a shared block of theirs after all other owners, which are
    /// among the `earlier` requests, and past their tokens.
    fn writes_in_place(&self, block: BlockId, len: u32, earlier: &[(SeqId, u32)]) -> bool {
        let leaving = earlier.iter().filter_map(|&(seq, new_tokens)| {
            let state = self.sequence(seq)?;
            (self.written_block(seq.index(), state, new_tokens) == Some(block)).then_some(state.len)
        });
        let (leaving, longest) = leaving.fold((0, 0), |(leaving, longest), len| (leaving + 1, len.max(longest)));
        leaving + 1 == self.store.pool().staying(block) && longest <= len
    }

    /// Whether a sequence with more than `len` tokens leaves the block in this step. If the step is abandoned, it gets the
    /// block back, and its tokens must still be there.
    fn longer_one_leaves(&self, block: BlockId, len: u32) -> bool {
        let longer =
            |extension: &Extension| extension.source == Some(block) && self.sequences[extension.row as usize].len > len;
        self.store.pool().leaving(block) > 0 && self.step.extensions.iter().any(longer)
    }

    /// Checks the requests and writes everything of the step that can fail; takes no block.
    pub(super) fn plan_extensions<'a>(
        &mut self,
        requests: impl ExactSizeIterator<Item = Request<'a>> + Clone,
        plan: &mut StepPlan,
    ) -> Result<(), ReserveError> {
        let (mut needed, mut tokens, mut updates, mut copies) = (0, 0, 0, 0);
        for (request, Request { seq, new_tokens, tokens: ids }) in requests.clone().enumerate() {
            let Some(&state) = self.sequence(seq) else {
                return Err(ReserveError::StaleSequence { request, seq });
            };
            if state.step == self.step.number {
                return Err(ReserveError::DuplicateSequence { request, seq });
            }
            let Some((old, new)) = self.blocks_after(&state, new_tokens) else {
                return Err(ReserveError::TooLong {
                    request,
                    len: state.len,
                    new_tokens,
                    max_seq_len: self.layout.max_seq_len(),
                });
            };
            let part = self.step.extensions.len() as u32;
            let named = &mut self.sequences[seq.index() as usize];
            (named.step, named.part) = (self.step.number, part);
            if new_tokens == 0 {
                continue;
            }
            let row = seq.index();
            let must_copy = |&block: &BlockId| self.store.must_copy(block) || self.longer_one_leaves(block, state.len);
            let source = self.written_block(row, &state, new_tokens).filter(must_copy);
            if let Some(source) = source {
                // So that the last owner finds itself alone, and writes in place if it can.
                self.store.leave(source);
                copies += 1;
            }
            needed += u64::from(new - old);
            tokens += u64::from(new_tokens);
            updates += u64::from(new - state.uploaded) + u64::from(source.is_some());
            self.step.extensions.push(Extension { row, old_blocks: old, new_tokens, source });
            if self.step.tokens_known {
                self.step.tokens.extend_from_slice(ids);
            }
        }
        let free = self.store.pool().num_free();
        if needed + copies > free.into() {
            return Err(ReserveError::OutOfBlocks {
                needed: needed + copies,
                free,
                total: self.store.pool().num_blocks(),
            });
        }
        let clears = if self.store.lists_clears() { needed + self.step.extensions.len() as u64 } else { 0 };
        let (requests_len, tables) = (requests.len(), 0);
        let counts = Counts { requests: requests_len, rows: tokens, slots: tokens, updates, copies, clears, tables };
        plan.prepare(&self.layout, &counts)?;
        for Request { seq, new_tokens, .. } in requests {
            let state = &self.sequences[seq.index() as usize];
            plan.push_rows(self.tables.base(seq.index()), state.era, state.len + new_tokens, new_tokens)?;
        }
        Ok(())
    }

    /// The part of a step that cannot fail, since [`plan_extensions`](Self::plan_extensions) has counted the blocks.
    pub(super) fn take_blocks(&mut self, plan: &mut StepPlan) {
        let block_size = self.layout.block_size();
        for extension in &self.step.extensions {
            let seq = &mut self.sequences[extension.row as usize];
            let seq_len = seq.len + extension.new_tokens;
            let num_blocks = self.layout.blocks_for(seq_len).max(seq.num_blocks);
            let base = self.tables.base(extension.row);
            let used = &mut self.tables.row_mut(extension.row)[..num_blocks as usize];
            let written = seq.len / block_size;
            if let Some(source) = extension.source {
                let target = &mut used[written as usize];
                self.store.allocate(std::slice::from_mut(target));
                plan.copies.push(BlockCopy { source, target: *target });
                // Stays so after a rollback, for the device may have seen the copy's number.
                seq.uploaded = seq.uploaded.min(written);
            }
            if num_blocks > extension.old_blocks {
                self.store.allocate(&mut used[extension.old_blocks as usize..]);
            }
            if self.store.lists_clears() {
                // Besides the new blocks, the one that a contiguous sequence took when it was created, unless it is copied.
                let first = if seq.len == 0 && extension.source.is_none() { 0 } else { extension.old_blocks };
                let fresh = used[first as usize..].iter().copied();
                plan.clears.extend(fresh.filter(|&block| self.store.needs_clear(block)));
            }
            seq.num_blocks = num_blocks;
            for column in seq.uploaded.max(seq.released)..num_blocks {
                plan.updates.push(TableUpdate { index: base + column, block: used[column as usize] });
            }
            for position in seq.len..seq_len {
                plan.slots.push(self.layout.slot(used[(position / block_size) as usize], position));
            }
        }
        plan.finish(block_size, bytemuck::cast_slice(self.tables.words()), 0);
    }
}
