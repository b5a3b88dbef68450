//! Sequences that share blocks: forks, and cuts into what is shared.

use crate::blocks::manager::Sequence;
use crate::blocks::manager::group::Group;
use crate::blocks::{CacheManager, RELEASED, SeqId};
use crate::config::MAX_GROUPS;
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
        let full = len / self.layout.block_size();
        // From the end: the keys of blocks that another sequence holds rest on all blocks before them.
        for column in (full.max(state.found)..state.registered).rev() {
            if self.others_hold(seq.index(), 0, column) {
                break;
            }
            self.withdraw(seq.index(), column);
        }
        self.give_back(seq.index(), |group| group.kept(seq.index(), len));
        self.groups.iter_mut().for_each(|group| group.cut(seq.index(), len));
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

    /// Gives back the blocks of a row behind those that each group keeps, the last one first and that of the first group last
    /// where several end alike: the others are found by it.
    pub(super) fn give_back(&mut self, row: u32, kept: impl Fn(&Group) -> u32) {
        let (mut first, mut left) = ([0; MAX_GROUPS], [0; MAX_GROUPS]);
        for (idx, group) in self.groups.iter().enumerate() {
            (first[idx], left[idx]) = (kept(group), group.state(row).num_blocks);
        }
        let end = |idx: usize, columns: u32| u64::from(columns) * u64::from(self.groups[idx].layout.block_size());
        let last = |left: &[u32]| {
            let more = (0..self.groups.len()).filter(|&idx| left[idx] > first[idx]);
            more.max_by_key(|&idx| (end(idx, left[idx]), idx))
        };
        while let Some(idx) = last(&left) {
            left[idx] -= 1;
            let block = self.groups[idx].used(row)[left[idx] as usize];
            if block != RELEASED {
                self.store.give_back(block);
            }
        }
    }

    /// Ends the registration of a column of the first group, and of those of the others that end in it. Blocks of these that
    /// another sequence holds stay, though none finds them but by a twin of that column.
    fn withdraw(&mut self, row: u32, column: u32) {
        let size = self.layout.block_size();
        for idx in 0..self.groups.len() {
            for column in self.groups[idx].columns_ending_in(column, size) {
                let block = self.groups[idx].tables.row(row)[column as usize];
                if block != RELEASED && (idx == 0 || !self.others_hold(row, idx, column)) {
                    self.store.withdraw(block);
                }
            }
        }
    }

    /// Whether another sequence has all tokens of a column, and not only its first ones, in the same block.
    fn others_hold(&self, row: u32, idx: usize, column: u32) -> bool {
        let (group, size) = (&self.groups[idx], self.layout.block_size());
        let block = group.tables.row(row)[column as usize];
        let end = u64::from(column + 1) * u64::from(group.layout.block_size());
        let holds = |(other, state): (u32, &Sequence)| {
            let full = state.live && u64::from(state.registered) * u64::from(size) >= end && other != row;
            full && group.tables.row(other)[column as usize] == block
        };
        block != RELEASED && self.store.owners(block) > 1 && (0..).zip(&self.sequences).any(holds)
    }
}
