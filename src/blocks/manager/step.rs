//! Steps: reserve, then commit or roll back.

use crate::blocks::manager::{Sequence, block_at};
use crate::blocks::{CacheManager, SeqId};
use crate::error::{ManagerError, ReserveError};
use crate::plan::{StepPlan, TableUpdate, Ticket, slot_at};

/// A sequence's part in the open step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    row: u32,
    /// Blocks before the step.
    old_blocks: u32,
    new_tokens: u32,
}

impl CacheManager {
    /// Whether [`reserve`](Self::reserve) would find all handles valid, no sequence too long and enough free blocks.
    ///
    /// It does not look for a sequence that is named twice.
    pub fn can_reserve(&self, requests: &[(SeqId, u32)]) -> bool {
        let mut needed = 0;
        for &(seq, new_tokens) in requests {
            match self.sequence(seq).and_then(|state| self.blocks_after(state, new_tokens)) {
                Some((old, new)) => needed += u64::from(new - old),
                None => return false,
            }
        }
        !self.open && needed <= self.pool.num_free().into()
    }

    /// Takes the blocks for `new_tokens` more tokens of each sequence and describes the step in `plan`.
    ///
    /// A request for no tokens adds nothing to the step. The sequences become longer at [`commit`](Self::commit) only.
    ///
    /// # Errors
    /// [`ReserveError`]; counts, tables and the order of the free blocks are then as before, and `plan` is empty. Only
    /// [`ReserveError::StepOpen`] leaves `plan` alone if it is the plan of the open step.
    pub fn reserve(&mut self, requests: &[(SeqId, u32)], plan: &mut StepPlan) -> Result<(), ReserveError> {
        if self.open {
            if plan.ticket() != Some(self.ticket()) {
                plan.clear();
            }
            return Err(ReserveError::StepOpen);
        }
        plan.clear();
        self.growth.clear();
        self.step += 1;
        self.plan_growth(requests, plan).inspect_err(|_| plan.clear())?;
        self.take_blocks(plan);
        self.open = true;
        plan.set_ticket(Some(self.ticket()));
        Ok(())
    }

    /// Closes the open step: its sequences are now longer, and the device is taken to know their tables.
    ///
    /// What the plan holds stays readable.
    ///
    /// # Errors
    /// [`ManagerError::NoOpenStep`] or [`ManagerError::WrongPlan`]; nothing has changed.
    pub fn commit(&mut self, plan: &mut StepPlan) -> Result<(), ManagerError> {
        self.check_open(plan)?;
        for growth in &self.growth {
            let seq = &mut self.sequences[growth.row as usize];
            // Checked against max_seq_len when the step was reserved.
            seq.len += growth.new_tokens;
            seq.uploaded = seq.num_blocks;
        }
        self.open = false;
        plan.set_ticket(None);
        Ok(())
    }

    /// Undoes the open step: the blocks it took are free again, in the order they had before. Empties the plan.
    ///
    /// # Errors
    /// [`ManagerError::NoOpenStep`] or [`ManagerError::WrongPlan`]; nothing has changed.
    pub fn rollback(&mut self, plan: &mut StepPlan) -> Result<(), ManagerError> {
        self.check_open(plan)?;
        plan.clear();
        self.abandon();
        Ok(())
    }

    /// Rolls back whatever step is open, for callers that have lost its plan. Returns whether there was one.
    pub fn abandon(&mut self) -> bool {
        if !self.open {
            return false;
        }
        for growth in self.growth.iter().rev() {
            let seq = &mut self.sequences[growth.row as usize];
            for column in (growth.old_blocks as usize..seq.num_blocks as usize).rev() {
                self.pool
                    .unallocate(block_at(&self.tables, growth.row, column))
                    .expect("a block of the open step has one owner");
            }
            seq.num_blocks = growth.old_blocks;
        }
        self.open = false;
        true
    }

    fn ticket(&self) -> Ticket {
        Ticket { manager: self.id, step: self.step }
    }

    fn check_open(&self, plan: &StepPlan) -> Result<(), ManagerError> {
        if !self.open {
            return Err(ManagerError::NoOpenStep);
        }
        if plan.ticket() != Some(self.ticket()) {
            return Err(ManagerError::WrongPlan);
        }
        Ok(())
    }

    /// Blocks before and after a growth, or `None` if the sequence would be too long.
    fn blocks_after(&self, seq: &Sequence, new_tokens: u32) -> Option<(u32, u32)> {
        let len = seq.len.checked_add(new_tokens)?;
        (len <= self.layout.max_seq_len()).then(|| {
            // A contiguous sequence owns its block before it has a token.
            let blocks = self.layout.blocks_for(len).max(seq.num_blocks);
            (seq.num_blocks, blocks)
        })
    }

    /// Checks the requests and writes everything of the step that can fail; takes no block.
    fn plan_growth(&mut self, requests: &[(SeqId, u32)], plan: &mut StepPlan) -> Result<(), ReserveError> {
        let (mut needed, mut tokens, mut updates) = (0, 0, 0);
        for (request, &(seq, new_tokens)) in requests.iter().enumerate() {
            let Some(&state) = self.sequence(seq) else {
                return Err(ReserveError::StaleSequence { request, seq });
            };
            if state.step == self.step {
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
            self.sequences[seq.index() as usize].step = self.step;
            if new_tokens == 0 {
                continue;
            }
            needed += u64::from(new - old);
            tokens += u64::from(new_tokens);
            updates += u64::from(new - state.uploaded);
            self.growth.push(Growth { row: seq.index(), old_blocks: old, new_tokens });
        }
        let free = self.pool.num_free();
        if needed > free.into() {
            return Err(ReserveError::OutOfBlocks { needed, free, total: self.pool.num_blocks() });
        }
        plan.prepare(&self.layout, tokens, tokens, updates, 0)?;
        for growth in &self.growth {
            let seq_len = self.sequences[growth.row as usize].len + growth.new_tokens;
            plan.push_rows(self.tables.base(growth.row), seq_len, growth.new_tokens)?;
        }
        Ok(())
    }

    /// The part of a step that cannot fail, since [`plan_growth`](Self::plan_growth) has counted the blocks.
    fn take_blocks(&mut self, plan: &mut StepPlan) {
        for growth in &self.growth {
            let seq = &mut self.sequences[growth.row as usize];
            let seq_len = seq.len + growth.new_tokens;
            let num_blocks = self.layout.blocks_for(seq_len).max(seq.num_blocks);
            let base = self.tables.base(growth.row);
            let used = &mut self.tables.row_mut(growth.row)[..num_blocks as usize];
            self.pool
                .allocate_into(&mut used[growth.old_blocks as usize..])
                .expect("the step needs no more blocks than were free");
            seq.num_blocks = num_blocks;
            for column in seq.uploaded..num_blocks {
                plan.push_update(TableUpdate { index: base + column, block: used[column as usize] });
            }
            for position in seq.len..seq_len {
                plan.push_slot(slot_at(&self.layout, used, position));
            }
        }
        plan.finish(self.layout.block_size(), self.tables.words(), 0);
    }
}
