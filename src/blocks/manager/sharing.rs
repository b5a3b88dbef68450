//! Sequences that share blocks: forks, and cuts into what is shared.

use crate::blocks::manager::Sequence;
use crate::blocks::{BlockId, CacheManager, RELEASED, SeqId};
use crate::error::ManagerError;

impl CacheManager {
    /// A new sequence with the tokens of `seq`, in the same blocks.
    ///
    /// Nothing is copied now. The first of them that writes into a shared block, the last one if it is not full, gets a
    /// copy in that step; see [`StepPlan::copies`](crate::plan::StepPlan::copies).
    ///
    /// # Errors
    /// As [`create_sequence`](Self::create_sequence): the fork of a sequence without tokens shares nothing.
    pub fn fork(&mut self, seq: SeqId) -> Result<SeqId, ManagerError> {
        let parent = *self.idle(seq)?;
        // The block of an empty contiguous sequence holds nothing but what earlier owners left there.
        let child = if parent.len == 0 { self.create_sequence()? } else { self.add_row()? };
        let row = child.index();
        self.domains[row as usize] = self.domains[seq.index() as usize].clone();
        self.sequences[row as usize].rank.priority = parent.rank.priority;
        if parent.len == 0 {
            return Ok(child);
        }
        self.groups.iter_mut().for_each(|group| group.share(seq.index(), row, &mut self.store));
        if let Some(late) = &mut self.late {
            late.copy(seq.index(), row);
        }
        let state = &mut self.sequences[row as usize];
        state.len = parent.len;
        state.known = parent.known;
        state.registered = parent.registered;
        state.found = parent.found;
        Ok(child)
    }

    /// Cuts a sequence back to its first `len` tokens and gives back the blocks past them, the last one first.
    ///
    /// What was cut off, rejected drafts for instance, can no longer be found in the prefix cache, unless another sequence
    /// has these tokens as well, or they were found there. A cut may end inside such a block: the next append copies it first.
    ///
    /// # Errors
    /// [`ManagerError::TruncateBeyond`], or [`ManagerError::Released`] where the next token would see keys that left the
    /// window.
    pub fn truncate(&mut self, seq: SeqId, len: u32) -> Result<(), ManagerError> {
        let state = *self.idle(seq)?;
        if len > state.len {
            return Err(ManagerError::TruncateBeyond { seq, len, seq_len: state.len });
        }
        let shortest = self.groups.iter().map(|group| group.shortest(seq.index(), len)).max().unwrap_or(0);
        if len > 0 && shortest > len {
            return Err(ManagerError::Released { seq, len, shortest });
        }
        let block_size = self.layout.block_size();
        let full = len / block_size;
        // From the end: the keys of blocks that another sequence holds rest on all blocks before them.
        for column in (full.max(state.found)..state.registered).rev() {
            let block = self.groups[0].tables.row(seq.index())[column as usize];
            if block != RELEASED && self.others_hold(seq.index(), column, block) {
                break;
            }
            if block != RELEASED {
                self.store.withdraw(block);
            }
        }
        self.groups.iter_mut().for_each(|group| group.cut(seq.index(), len, &mut self.store));
        self.change_tables(seq.index());
        if let Some(late) = &mut self.late {
            late.cut(seq.index(), len);
        }
        let state = &mut self.sequences[seq.index() as usize];
        state.len = len;
        state.known = state.known.min(len);
        state.taken = state.taken.min(len);
        state.registered = state.registered.min(full);
        state.found = state.found.min(full);
        Ok(())
    }

    /// Whether another sequence has all tokens of a block, and not only its first ones.
    fn others_hold(&self, row: u32, column: u32, block: BlockId) -> bool {
        let holds = |(other, state): (u32, &Sequence)| {
            let full = state.live && state.registered > column && other != row;
            full && self.groups[0].tables.row(other)[column as usize] == block
        };
        self.store.owners(block) > 1 && (0..).zip(&self.sequences).any(holds)
    }
}
