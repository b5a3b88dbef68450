//! What a step takes: which blocks its sequences need, and how they get them.

use crate::blocks::manager::Sequence;
use crate::blocks::manager::block_store::Store;
use crate::blocks::manager::group::Group;
use crate::blocks::manager::step::OpenStep;
use crate::blocks::{BlockId, CacheManager, SeqId};
use crate::error::ReserveError;
use crate::plan::{BlockCopy, Counts, GroupPlan, StepPlan, TableUpdate};

/// A sequence's part in the open step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension {
    pub(super) row: u32,
    pub(super) new_tokens: u32,
}

/// What the open step does to one table of a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Columns before the step, and after it.
    pub(super) old_blocks: u32,
    new_blocks: u32,
    /// The column of the first new token.
    written: u32,
    /// The block that was copied because the first new token goes into it. The sequence owns it until the commit.
    pub(super) source: Option<BlockId>,
}

impl Part {
    /// Whether the new tokens go into the block that is there.
    fn is_plain(&self) -> bool {
        self.new_blocks == self.old_blocks && self.source.is_none()
    }
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
            let Some(len) = self.len_after(state, new_tokens) else {
                return false;
            };
            for group in self.groups.iter().filter(|_| new_tokens > 0) {
                needed += u64::from(group.columns_at(seq.index(), len) - group.state(seq.index()).num_blocks);
                if let Some(block) = group.written_block(seq.index(), state.len) {
                    let copied = self.store.must_copy(block)
                        && (self.store.is_registered(block)
                            || !self.writes_in_place(group, block, state.len, &requests[..request]));
                    needed += u64::from(copied);
                }
            }
        }
        !self.step.is_open() && needed <= self.store.pool().num_free().into()
    }

    /// Tokens after an extension, or `None` if the sequence would be too long.
    fn len_after(&self, seq: &Sequence, new_tokens: u32) -> Option<u32> {
        seq.len.checked_add(new_tokens).filter(|&len| len <= self.layout.max_seq_len())
    }

    /// Whether a sequence of `len` tokens would write into a shared block of theirs after all other owners, which are
    /// among the `earlier` requests, and past their tokens.
    fn writes_in_place(&self, group: &Group, block: BlockId, len: u32, earlier: &[(SeqId, u32)]) -> bool {
        let leaving = earlier.iter().filter(|&&(_, new_tokens)| new_tokens > 0).filter_map(|&(seq, _)| {
            let state = self.sequence(seq)?;
            (group.written_block(seq.index(), state.len) == Some(block)).then_some(state.len)
        });
        let (leaving, longest) = leaving.fold((0, 0), |(leaving, longest), len| (leaving + 1, len.max(longest)));
        leaving + 1 == self.store.pool().staying(block) && longest <= len
    }

    /// Whether a sequence with more than `len` tokens leaves the block in this step. If the step is abandoned, it gets the
    /// block back, and its tokens must still be there.
    fn longer_one_leaves(&self, block: BlockId, len: u32) -> bool {
        let longer = |(extension, parts): (&Extension, &[Part])| {
            parts.iter().any(|part| part.source == Some(block)) && self.sequences[extension.row as usize].len > len
        };
        self.store.pool().leaving(block) > 0 && self.step.extensions(self.groups.len()).any(longer)
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
            let Some(len) = self.len_after(&state, new_tokens) else {
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
            for group in &self.groups {
                let (table, new_blocks) = (group.state(row), group.columns_at(row, len));
                let written = group.column_of(row, state.len);
                let must_copy =
                    |&block: &BlockId| self.store.must_copy(block) || self.longer_one_leaves(block, state.len);
                let source = group.used(row).get(written as usize).copied().filter(must_copy);
                if let Some(source) = source {
                    // So that the last owner finds itself alone, and writes in place if it can.
                    self.store.leave(source);
                    copies += 1;
                }
                needed += u64::from(new_blocks - table.num_blocks);
                updates += u64::from(new_blocks - table.uploaded) + u64::from(source.is_some());
                self.step.parts.push(Part { old_blocks: table.num_blocks, new_blocks, written, source });
            }
            tokens += u64::from(new_tokens);
            self.step.extensions.push(Extension { row, new_tokens });
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
            let row = seq.index();
            let tables = self.groups.iter().map(|group| (group.tables.base(row), group.state(row).era));
            plan.push_rows(tables, state.len + new_tokens, new_tokens)?;
        }
        Ok(())
    }

    /// The part of a step that cannot fail, since [`plan_extensions`](Self::plan_extensions) has counted the blocks.
    pub(super) fn take_blocks(&mut self, plan: &mut StepPlan) {
        let OpenStep { extensions, parts, .. } = &self.step;
        let (plans, copies, clears) = plan.split();
        for (extension, parts) in extensions.iter().zip(parts.chunks_exact(self.groups.len())) {
            let len = self.sequences[extension.row as usize].len;
            for ((group, part), plan) in self.groups.iter_mut().zip(parts).zip(&mut *plans) {
                if part.is_plain() && !self.store.lists_clears() {
                    group.append(extension, part, len, plan);
                    continue;
                }
                group.take(extension.row, part, &mut self.store, copies);
                if self.store.lists_clears() {
                    group.list_clears(extension.row, part, len, &self.store, clears);
                }
                group.append(extension, part, len, plan);
            }
        }
        for (idx, group) in self.groups.iter().enumerate() {
            plan.finish(idx, group.layout.block_size(), bytemuck::cast_slice(group.tables.words()), 0);
        }
    }
}

impl Group {
    /// Gives a sequence the blocks of its new tokens, its own copy of a shared one included.
    fn take(&mut self, row: u32, part: &Part, store: &mut Store, copies: &mut Vec<BlockCopy>) {
        let state = &mut self.states[row as usize];
        let used = &mut self.tables.row_mut(row)[..part.new_blocks as usize];
        if let Some(source) = part.source {
            let target = &mut used[part.written as usize];
            store.allocate(std::slice::from_mut(target));
            copies.push(BlockCopy { source, target: *target });
            // Stays so after a rollback, for the device may have seen the copy's number.
            state.uploaded = state.uploaded.min(part.written);
        }
        if part.new_blocks > part.old_blocks {
            store.allocate(&mut used[part.old_blocks as usize..]);
        }
        state.num_blocks = part.new_blocks;
    }

    /// Lists what a sequence of `len` tokens was given and still holds what earlier owners left there.
    fn list_clears(&self, row: u32, part: &Part, len: u32, store: &Store, clears: &mut Vec<BlockId>) {
        // Besides the new blocks, the one that a contiguous sequence took when it was created, unless it is copied.
        let first = if len == 0 && part.source.is_none() { 0 } else { part.old_blocks };
        let fresh = self.used(row)[first as usize..].iter().copied();
        clears.extend(fresh.filter(|&block| store.needs_clear(block)));
    }

    /// Writes the slots of new tokens behind the first `len`, and what changes in the table.
    fn append(&self, extension: &Extension, part: &Part, len: u32, plan: &mut GroupPlan) {
        let (row, block_size) = (extension.row, self.layout.block_size());
        let (base, state, used) = (self.tables.base(row), self.state(row), self.used(row));
        for column in state.uploaded.max(state.released)..part.new_blocks {
            plan.updates.push(TableUpdate { index: base + column, block: used[column as usize] });
        }
        // From block to block, which saves a quotient and a remainder for every token.
        let (mut column, mut position, end) = (part.written, len, len + extension.new_tokens);
        while position < end {
            let first = column * block_size;
            let next = (first + block_size).min(end);
            // Blocks of the pool: their slots are below SKIP_SLOT.
            let slot = used[column as usize].get() * block_size;
            plan.slots.extend(slot + (position - first)..slot + (next - first));
            (column, position) = (column + 1, next);
        }
    }

    /// Takes back what [`take`](Self::take) gave, the last block first.
    pub(super) fn give_up(&mut self, row: u32, part: &Part, store: &mut Store) {
        let state = &mut self.states[row as usize];
        let used = &mut self.tables.row_mut(row)[..state.num_blocks as usize];
        for &block in used[part.old_blocks as usize..].iter().rev() {
            store.unallocate(block);
        }
        state.num_blocks = part.old_blocks;
        if let Some(source) = part.source {
            store.unallocate(std::mem::replace(&mut used[part.written as usize], source));
            store.stay(source);
        }
    }
}
