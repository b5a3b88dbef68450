//! Steps: reserve, then commit or roll back.

use crate::blocks::manager::reserve::{Growth, Request};
use crate::blocks::{CacheManager, SeqId};
use crate::error::{ManagerError, ReserveError};
use crate::plan::{StepPlan, Ticket};

/// The open step; kept when it closes, for its memory only.
#[derive(Debug, Default)]
pub(super) struct OpenStep {
    pub(super) open: bool,
    /// Counts the calls of `reserve`, so that no step is mistaken for another.
    pub(super) number: u64,
    pub(super) growth: Vec<Growth>,
    /// The new tokens of all growths, if their ids are known.
    pub(super) tokens: Vec<u32>,
    pub(super) tokens_known: bool,
}

impl OpenStep {
    /// `count` of the new tokens, from the one numbered `first`.
    pub(super) fn new_tokens(&self, first: usize, count: u32) -> &[u32] {
        &self.tokens[first..first + count as usize]
    }
}

impl CacheManager {
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
                self.copy_tokens(&growth, source);
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
}
