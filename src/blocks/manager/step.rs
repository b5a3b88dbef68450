//! Steps: reserve, then commit or roll back.

use crate::blocks::manager::Sequence;
use crate::blocks::{CacheManager, SeqId};
use crate::error::{ManagerError, ReserveError};
use crate::plan::{BlockCopy, Counts, StepPlan, TableUpdate, Ticket, slot_at};

/// A sequence's part in the open step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    pub(super) row: u32,
    /// Columns before the step.
    pub(super) old_blocks: u32,
    pub(super) new_tokens: u32,
    /// The block that was copied because the first new token goes into it. The sequence owns it until the commit.
    pub(super) source: Option<u32>,
}

/// The open step; kept when it closes, for its memory only.
#[derive(Debug, Default)]
pub(super) struct OpenStep {
    pub(super) open: bool,
    /// Counts the calls of `reserve`, so that no step is mistaken for another.
    pub(super) number: u64,
    pub(super) growth: Vec<Growth>,
    /// The new tokens of all growths, if their ids are known.
    tokens: Vec<u32>,
    tokens_known: bool,
}

impl OpenStep {
    /// `count` of the new tokens, from the one numbered `first`.
    pub(super) fn new_tokens(&self, first: usize, count: u32) -> &[u32] {
        &self.tokens[first..first + count as usize]
    }
}

/// What a request brings: how many tokens, and which if that is known.
#[derive(Clone, Copy)]
struct Request<'a> {
    seq: SeqId,
    new_tokens: u32,
    tokens: &'a [u32],
}

impl CacheManager {
    /// Whether [`reserve`](Self::reserve) would find all handles valid, no sequence too long and enough free blocks.
    ///
    /// It does not look for a sequence that is named twice.
    pub fn can_reserve(&self, requests: &[(SeqId, u32)]) -> bool {
        let mut needed = 0;
        for (request, &(seq, new_tokens)) in requests.iter().enumerate() {
            let Some(state) = self.sequence(seq) else {
                return false;
            };
            let Some((old, new)) = self.blocks_after(state, new_tokens) else {
                return false;
            };
            needed += u64::from(new - old);
            if let Some(block) = self.written_block(seq.index(), state, new_tokens) {
                // Of the owners that write, the last one writes in place unless others stay or the prefix cache does.
                let written = |&&(seq, new_tokens): &&(SeqId, u32)| {
                    self.sequence(seq).and_then(|state| self.written_block(seq.index(), state, new_tokens))
                        == Some(block)
                };
                let staying = self.store.pool.staying(block);
                let copied = self.store.is_registered(block)
                    || staying > 1 && requests[..request].iter().filter(written).count() as u32 + 1 < staying;
                needed += u64::from(copied);
            }
        }
        !self.step.open && needed <= self.store.pool.num_free().into()
    }

    /// Takes the blocks for `new_tokens` more tokens of each sequence and describes the step in `plan`.
    ///
    /// A request for no tokens adds nothing to the step. The sequences become longer at [`commit`](Self::commit) only.
    ///
    /// # Errors
    /// [`ReserveError`]; counts, tables and the order of the free blocks are then as before, and `plan` is empty. Only
    /// [`ReserveError::StepOpen`] leaves `plan` alone if it is the plan of the open step.
    pub fn reserve(&mut self, requests: &[(SeqId, u32)], plan: &mut StepPlan) -> Result<(), ReserveError> {
        let requests = requests.iter().map(|&(seq, new_tokens)| Request { seq, new_tokens, tokens: &[] });
        self.begin(requests, false, plan)
    }

    /// As [`reserve`](Self::reserve), for tokens whose ids are given: blocks that they fill can be found in the prefix
    /// cache once the step is committed.
    ///
    /// A sequence that has grown without ids is not cached from there on.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub fn reserve_tokens(&mut self, requests: &[(SeqId, &[u32])], plan: &mut StepPlan) -> Result<(), ReserveError> {
        let requests = requests.iter().map(|&(seq, tokens)| {
            // More than u32::MAX tokens are too many as well.
            Request { seq, new_tokens: tokens.len().try_into().unwrap_or(u32::MAX), tokens }
        });
        self.begin(requests, true, plan)
    }

    fn begin<'a>(
        &mut self,
        requests: impl Iterator<Item = Request<'a>>,
        tokens_known: bool,
        plan: &mut StepPlan,
    ) -> Result<(), ReserveError> {
        let _span = tracing::trace_span!("paged.reserve", step = self.step.number + 1).entered();
        if self.step.open {
            if plan.ticket() != Some(self.ticket()) {
                plan.clear();
            }
            return Err(ReserveError::StepOpen);
        }
        plan.clear();
        self.step.growth.clear();
        self.step.tokens.clear();
        self.step.tokens_known = tokens_known && self.store.prefix.is_some();
        self.step.number += 1;
        if let Err(error) = self.plan_growth(requests, plan) {
            tracing::debug!(%error, "refused");
            for source in self.step.growth.iter().filter_map(|growth| growth.source) {
                self.store.pool.stay(source);
            }
            plan.clear();
            return Err(error);
        }
        self.take_blocks(plan);
        self.step.open = true;
        plan.set_ticket(Some(self.ticket()));
        Ok(())
    }

    /// Closes the open step: its sequences are now longer, and the device is taken to know their tables.
    ///
    /// Full blocks of known tokens enter the prefix cache, and blocks that left the windows return to the pool. What the
    /// plan holds stays readable.
    ///
    /// # Errors
    /// [`ManagerError::NoOpenStep`] or [`ManagerError::WrongPlan`]; nothing has changed.
    pub fn commit(&mut self, plan: &mut StepPlan) -> Result<(), ManagerError> {
        self.check_open(plan)?;
        let _span = tracing::trace_span!("paged.commit", step = self.step.number).entered();
        self.note_peak();
        self.tally.evictions += self.store.settle_evictions();
        let mut first_token = 0;
        for at in 0..self.step.growth.len() {
            let growth = self.step.growth[at];
            if self.step.tokens_known {
                self.note_tokens(&growth, first_token);
                first_token += growth.new_tokens as usize;
            }
            if let Some(source) = growth.source {
                self.store.pool.stay(source);
                self.store.give_back(source);
                self.tally.copies += 1;
            }
            let seq = &mut self.sequences[growth.row as usize];
            // Checked against max_seq_len when the step was reserved.
            seq.len += growth.new_tokens;
            seq.uploaded = seq.num_blocks;
            self.register_full(growth.row);
            self.release_outside(growth.row);
        }
        self.step.open = false;
        plan.set_ticket(None);
        Ok(())
    }

    /// Undoes the open step: the blocks it took are free again, in the order they had before, and those that were cached
    /// can be found again. Empties the plan.
    ///
    /// The step's work must not have been submitted, for it may have overwritten what was cached; if it was,
    /// [`abandon`](Self::abandon) the step.
    ///
    /// # Errors
    /// [`ManagerError::NoOpenStep`] or [`ManagerError::WrongPlan`]; nothing has changed.
    pub fn rollback(&mut self, plan: &mut StepPlan) -> Result<(), ManagerError> {
        self.check_open(plan)?;
        plan.clear();
        self.undo(true);
        Ok(())
    }

    /// Undoes whatever step is open, for callers that have lost its plan or do not know what the device has done of it.
    /// Returns whether there was one.
    ///
    /// As [`rollback`](Self::rollback), but cached blocks that the step took are not found again.
    pub fn abandon(&mut self) -> bool {
        if !self.step.open {
            return false;
        }
        self.undo(false);
        true
    }

    /// Undoes the open step. Its evictions are final unless they can be `restored`.
    fn undo(&mut self, restored: bool) {
        if !restored {
            self.tally.evictions += self.store.settle_evictions();
        }
        let _span = tracing::trace_span!("paged.rollback", step = self.step.number).entered();
        for growth in self.step.growth.iter().rev() {
            let seq = &mut self.sequences[growth.row as usize];
            let used = &mut self.tables.row_mut(growth.row)[..seq.num_blocks as usize];
            for &block in used[growth.old_blocks as usize..].iter().rev() {
                self.store.unallocate(block);
            }
            seq.num_blocks = growth.old_blocks;
            if let Some(source) = growth.source {
                let entry = &mut used[(seq.len / self.layout.block_size()) as usize];
                self.store.unallocate(std::mem::replace(entry, source));
                self.store.pool.stay(source);
            }
        }
        self.step.open = false;
    }

    fn ticket(&self) -> Ticket {
        Ticket { manager: self.id, step: self.step.number }
    }

    fn check_open(&self, plan: &StepPlan) -> Result<(), ManagerError> {
        if !self.step.open {
            return Err(ManagerError::NoOpenStep);
        }
        if plan.ticket() != Some(self.ticket()) {
            return Err(ManagerError::WrongPlan);
        }
        Ok(())
    }

    /// Columns before and after a growth, or `None` if the sequence would be too long.
    fn blocks_after(&self, seq: &Sequence, new_tokens: u32) -> Option<(u32, u32)> {
        let len = seq.len.checked_add(new_tokens)?;
        (len <= self.layout.max_seq_len()).then(|| {
            // A contiguous sequence owns its block before it has a token.
            let blocks = self.layout.blocks_for(len).max(seq.num_blocks);
            (seq.num_blocks, blocks)
        })
    }

    /// The block that a sequence owns already and writes into when it grows.
    fn written_block(&self, row: u32, seq: &Sequence, new_tokens: u32) -> Option<u32> {
        let column = seq.len / self.layout.block_size();
        // Never a released one: the last token of a sequence is inside all windows.
        (new_tokens > 0 && column < seq.num_blocks).then(|| self.tables.row(row)[column as usize])
    }

    /// Checks the requests and writes everything of the step that can fail; takes no block.
    fn plan_growth<'a>(
        &mut self,
        requests: impl Iterator<Item = Request<'a>>,
        plan: &mut StepPlan,
    ) -> Result<(), ReserveError> {
        let (mut needed, mut tokens, mut updates, mut copies) = (0, 0, 0, 0);
        for (request, Request { seq, new_tokens, tokens: ids }) in requests.enumerate() {
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
            self.sequences[seq.index() as usize].step = self.step.number;
            if new_tokens == 0 {
                continue;
            }
            let row = seq.index();
            let source = self.written_block(row, &state, new_tokens).filter(|&block| self.store.must_copy(block));
            if let Some(source) = source {
                // So that the last owner finds itself alone, and writes in place.
                self.store.pool.leave(source);
                copies += 1;
            }
            needed += u64::from(new - old);
            tokens += u64::from(new_tokens);
            updates += u64::from(new - state.uploaded) + u64::from(source.is_some());
            self.step.growth.push(Growth { row, old_blocks: old, new_tokens, source });
            if self.step.tokens_known {
                self.step.tokens.extend_from_slice(ids);
            }
        }
        let free = self.store.pool.num_free();
        if needed + copies > free.into() {
            return Err(ReserveError::OutOfBlocks {
                needed: needed + copies,
                free,
                total: self.store.pool.num_blocks(),
            });
        }
        let clears = if self.store.scrubs.is_some() { needed + self.step.growth.len() as u64 } else { 0 };
        plan.prepare(&self.layout, &Counts { rows: tokens, slots: tokens, updates, copies, clears, tables: 0 })?;
        for growth in &self.step.growth {
            let seq_len = self.sequences[growth.row as usize].len + growth.new_tokens;
            plan.push_rows(self.tables.base(growth.row), seq_len, growth.new_tokens)?;
        }
        Ok(())
    }

    /// The part of a step that cannot fail, since [`plan_growth`](Self::plan_growth) has counted the blocks.
    fn take_blocks(&mut self, plan: &mut StepPlan) {
        let block_size = self.layout.block_size();
        for growth in &self.step.growth {
            let seq = &mut self.sequences[growth.row as usize];
            let seq_len = seq.len + growth.new_tokens;
            let num_blocks = self.layout.blocks_for(seq_len).max(seq.num_blocks);
            let base = self.tables.base(growth.row);
            let used = &mut self.tables.row_mut(growth.row)[..num_blocks as usize];
            let written = seq.len / block_size;
            if let Some(source) = growth.source {
                let target = self.store.allocate();
                plan.push_copy(BlockCopy { source, target });
                used[written as usize] = target;
                // Stays so after a rollback, for the device may have seen the copy's number.
                seq.uploaded = seq.uploaded.min(written);
            }
            used[growth.old_blocks as usize..].iter_mut().for_each(|entry| *entry = self.store.allocate());
            if let Some(scrubs) = &self.store.scrubs {
                // Besides the new blocks, the one that a contiguous sequence took when it was created, unless it is copied.
                let first = if seq.len == 0 && growth.source.is_none() { 0 } else { growth.old_blocks };
                let needed = |block| scrubs.is_stale(block) && self.store.pool.leaving(block) == 0;
                used[first as usize..].iter().filter(|&&block| needed(block)).for_each(|&block| plan.push_clear(block));
            }
            seq.num_blocks = num_blocks;
            for column in seq.uploaded.max(seq.released)..num_blocks {
                plan.push_update(TableUpdate { index: base + column, block: used[column as usize] });
            }
            for position in seq.len..seq_len {
                plan.push_slot(slot_at(&self.layout, used, position));
            }
        }
        plan.finish(block_size, self.tables.words(), 0);
    }
}
