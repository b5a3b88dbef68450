//! The door for engines that keep their own block tables.

use crate::blocks::BlockId;
use crate::error::TableError;
use crate::layout::{KvLayout, SKIP_SLOT};
use crate::plan::{HEADER_WORDS, ROW_WORDS, StepPlan, TableSource};

/// Tables of one step, as engines with their own block manager hand them over.
#[derive(Clone, Copy, Debug)]
pub struct RawTables<'a> {
    /// `[num_seqs, max_blocks]` block ids, row-major. Columns behind `ceil(seq_len / block_size)` may hold anything.
    pub block_table: &'a [u32],
    /// Columns of `block_table`.
    pub max_blocks: u32,
    /// `[num_seqs]` tokens in the cache, those of this step included.
    pub seq_lens: &'a [u32],
    /// `[num_seqs + 1]` offsets of each sequence's queries; `None` for one query per sequence.
    pub cu_seqlens_q: Option<&'a [u32]>,
    /// One slot per query token, -1 for padding; `None` to take the slots from the tables.
    ///
    /// Two tokens with one slot overwrite each other in no certain order; that is for the engine to avoid.
    pub slot_mapping: Option<&'a [i64]>,
}

impl RawTables<'_> {
    /// The queries of a sequence: their number, once [`check`](Self::check) has passed.
    fn queries(&self, seq: usize) -> u32 {
        match self.cu_seqlens_q {
            Some(offsets) => offsets[seq + 1] - offsets[seq],
            None => 1,
        }
    }

    /// The used columns of a sequence, once [`check`](Self::check) has passed.
    fn used(&self, layout: &KvLayout, seq: usize) -> &[u32] {
        let base = seq * self.max_blocks as usize;
        &self.block_table[base..base + layout.blocks_for(self.seq_lens[seq]) as usize]
    }

    fn num_queries(&self) -> u64 {
        match self.cu_seqlens_q {
            Some(offsets) => offsets.last().copied().unwrap_or(0).into(),
            None => self.seq_lens.len() as u64,
        }
    }

    fn check(&self, layout: &KvLayout) -> Result<(), TableError> {
        let num_seqs = self.seq_lens.len() as u64;
        let entries = num_seqs.saturating_mul(self.max_blocks.into());
        check_len("block_table", self.block_table.len(), entries)?;
        if let Some(offsets) = self.cu_seqlens_q {
            check_len("cu_seqlens_q", offsets.len(), num_seqs + 1)?;
            check_offsets(offsets)?;
        }
        if let Some(slots) = self.slot_mapping {
            check_len("slot_mapping", slots.len(), self.num_queries())?;
            check_slots(slots, layout.num_slots())?;
        }
        let columns = u64::from(self.max_blocks) * u64::from(layout.block_size());
        let limit = columns.min(layout.max_seq_len().into());
        for (row, &seq_len) in self.seq_lens.iter().enumerate() {
            if u64::from(seq_len) > limit {
                return Err(TableError::SeqTooLong { row, seq_len, limit });
            }
            let num_blocks = layout.num_blocks();
            let used = self.used(layout, row);
            if let Some(col) = used.iter().position(|&id| id >= num_blocks) {
                return Err(TableError::InvalidBlock { row, col, id: used[col], num_blocks });
            }
        }
        Ok(())
    }
}

fn check_len(name: &'static str, actual: usize, expected: u64) -> Result<(), TableError> {
    let actual = actual as u64;
    if actual == expected { Ok(()) } else { Err(TableError::Length { name, expected, actual }) }
}

fn check_offsets(offsets: &[u32]) -> Result<(), TableError> {
    if let Some(&value) = offsets.first().filter(|&&value| value != 0) {
        return Err(TableError::QueryStart { value });
    }
    match offsets.windows(2).position(|pair| pair[1] < pair[0]) {
        None => Ok(()),
        Some(index) => {
            Err(TableError::QueryOrder { index: index + 1, previous: offsets[index], value: offsets[index + 1] })
        }
    }
}

fn check_slots(slots: &[i64], num_slots: u64) -> Result<(), TableError> {
    let valid = |slot: i64| slot == -1 || u64::try_from(slot).is_ok_and(|slot| slot < num_slots);
    match slots.iter().position(|&slot| !valid(slot)) {
        None => Ok(()),
        Some(index) => Err(TableError::InvalidSlot { index, slot: slots[index], num_slots }),
    }
}

impl StepPlan {
    /// Plans a step from tables that the caller keeps; they travel with the step, used columns only.
    ///
    /// A query from before the first token of its sequence (more queries than tokens, or a padding row of length 0)
    /// sees no key, and without a `slot_mapping` nothing is appended for it. Sequences without queries add no row, but
    /// their tables are checked all the same.
    ///
    /// # Errors
    /// [`TableError`] names the array, the position, the value and the limit. The plan is then empty, unless it holds
    /// an open step: that is left untouched.
    pub fn plan_tables(&mut self, layout: &KvLayout, tables: &RawTables<'_>) -> Result<(), TableError> {
        if self.ticket().is_some() {
            return Err(TableError::StepOpen);
        }
        self.clear();
        self.fill_from(layout, tables).inspect_err(|_| self.clear())
    }

    fn fill_from(&mut self, layout: &KvLayout, tables: &RawTables<'_>) -> Result<(), TableError> {
        tables.check(layout)?;
        let seqs = || (0..tables.seq_lens.len()).filter(|&seq| tables.queries(seq) > 0);
        let rows = tables.num_queries();
        let columns = seqs().map(|seq| u64::from(layout.blocks_for(tables.seq_lens[seq]))).sum();
        self.prepare(layout, rows, rows, 0, columns)?;
        self.source = TableSource::Inline;
        let first = u64::from(HEADER_WORDS) + rows * u64::from(ROW_WORDS + 1);

        for seq in seqs() {
            // Below the words of the whole step, which `prepare` has checked.
            let table_base = (first + self.tables.len() as u64) as u32;
            let (seq_len, queries) = (tables.seq_lens[seq], tables.queries(seq));
            self.push_rows(table_base, seq_len, queries)?;
            let used = tables.used(layout, seq);
            self.tables.extend_from_slice(used);
            if tables.slot_mapping.is_some() {
                continue;
            }
            for query in 0..queries {
                let position = (u64::from(seq_len) + u64::from(query)).checked_sub(queries.into());
                self.push_slot(match position {
                    Some(position) => slot_at(layout, used, position as u32),
                    None => SKIP_SLOT,
                });
            }
        }
        // Checked: -1 or a slot of the pool, which are fewer than 2^32.
        let mapped = tables.slot_mapping.unwrap_or_default();
        self.slots.extend(mapped.iter().map(|&slot| slot.max(-1) as u32));
        Ok(())
    }
}

/// The slot of a position, by way of its sequence's table.
pub(crate) fn slot_at(layout: &KvLayout, table: &[u32], position: u32) -> u32 {
    let block = table[(position / layout.block_size()) as usize];
    BlockId::new(block).map_or(SKIP_SLOT, |block| layout.slot(block, position))
}

#[cfg(test)]
mod tests;
