//! The door for engines that keep their own block tables.

use crate::config::MAX_GROUPS;
use crate::error::{PlanError, TableError};
use crate::ids::BlockId;
use crate::layout::{KvLayout, SKIP_SLOT};
use crate::plan::{Append, Counts, StepPlan, TableSource, Tables, inline_tables_base};

/// Tables of one step, as engines with their own block manager hand them over.
///
/// [`engines`](crate::engines) says which field of which engine goes where.
#[derive(Clone, Copy, Debug)]
pub struct RawTables<'a> {
    /// Block tables and lengths.
    pub tables: Tables<'a>,
    /// `[num_seqs + 1]` offsets of each sequence's queries; `None` for one query per sequence.
    pub cu_seqlens_q: Option<&'a [u32]>,
    /// Where the K and V of each query token are written.
    pub append: Append<'a>,
}

impl<'a> RawTables<'a> {
    /// A decoding step: one query per sequence, the last of its tokens.
    pub fn new(tables: Tables<'a>) -> Self {
        Self { tables, cu_seqlens_q: None, append: Append::FromTables }
    }

    /// The queries of a sequence: their number, once [`check`](Self::check) has passed.
    fn queries(&self, seq: usize) -> u32 {
        match self.cu_seqlens_q {
            Some(offsets) => offsets[seq + 1] - offsets[seq],
            None => 1,
        }
    }

    /// The used blocks of a sequence that has queries.
    fn used(&self, layout: &KvLayout, seq: usize) -> &'a [u32] {
        if self.queries(seq) > 0 { self.tables.used(layout, seq) } else { &[] }
    }

    fn num_queries(&self) -> u64 {
        match self.cu_seqlens_q {
            Some(offsets) => offsets.last().copied().unwrap_or(0).into(),
            None => self.tables.num_seqs() as u64,
        }
    }

    fn check(&self, layout: &KvLayout) -> Result<(), TableError> {
        if let Some(offsets) = self.cu_seqlens_q {
            check_len("cu_seqlens_q", offsets.len(), self.tables.num_seqs() as u64 + 1)?;
            check_offsets("cu_seqlens_q", offsets)?;
        }
        self.tables.check(layout)?;
        self.append.check(layout, &self.tables, self.num_queries())
    }
}

pub(super) fn check_len(name: &'static str, actual: usize, expected: u64) -> Result<(), TableError> {
    let actual = actual as u64;
    if actual == expected { Ok(()) } else { Err(TableError::Length { name, expected, actual }) }
}

pub(super) fn check_offsets(name: &'static str, offsets: &[u32]) -> Result<(), TableError> {
    if let Some(&value) = offsets.first().filter(|&&value| value != 0) {
        return Err(TableError::OffsetStart { name, value });
    }
    match offsets.windows(2).position(|pair| pair[1] < pair[0]) {
        None => Ok(()),
        Some(at) => Err(TableError::OffsetOrder { name, index: at + 1, previous: offsets[at], value: offsets[at + 1] }),
    }
}

impl StepPlan {
    /// Plans a step from tables that the caller keeps; they travel with the step, used columns only.
    ///
    /// A query from before the first token of its sequence (more queries than tokens, or a padding row of length 0)
    /// sees no key where attention is causal, and with [`Append::FromTables`] nothing is appended for it. Sequences without
    /// queries add no row, but their tables are checked all the same.
    ///
    /// # Errors
    /// [`TableError`] names the array, the position, the value and the limit; [`TableError::Groups`] for a cache of several
    /// groups of layers. The plan is then empty, unless it holds an open step: that is left untouched.
    pub fn plan_tables(&mut self, layout: &KvLayout, tables: &RawTables<'_>) -> Result<(), TableError> {
        self.plan_group_tables(layout, std::slice::from_ref(tables))
    }

    /// As [`plan_tables`](Self::plan_tables), with the tables of every group of layers, in the order of
    /// [`KvLayout::groups`]. All are of the same sequences with the same lengths and queries, and padding is padding in all.
    ///
    /// Columns that left the window of their group may name any block of the pool. Otherwise a block belongs to one group: one
    /// that is written in a group may stand in no table of another.
    pub fn plan_group_tables(&mut self, layout: &KvLayout, tables: &[RawTables<'_>]) -> Result<(), TableError> {
        if self.is_step_open() == Some(true) {
            return Err(TableError::StepOpen);
        }
        self.clear();
        self.fill_from(layout, tables).inspect_err(|_| self.clear())
    }

    fn fill_from(&mut self, layout: &KvLayout, raw: &[RawTables<'_>]) -> Result<(), TableError> {
        let groups = layout.groups();
        if raw.len() != groups.len() {
            return Err(TableError::Groups { given: raw.len(), expected: groups.len() });
        }
        for (raw, group) in raw.iter().zip(groups) {
            raw.check(group)?;
        }
        let (requests, rows) = (raw[0].tables.num_seqs(), raw[0].num_queries());
        check_groups_agree(groups, raw)?;
        let columns = |(raw, group): (&RawTables<'_>, &KvLayout)| -> u64 {
            (0..requests).map(|seq| raw.used(group, seq).len() as u64).sum()
        };
        let columns = raw.iter().zip(groups).map(columns).max().unwrap_or(0);
        self.prepare(layout, &Counts { requests, rows, slots: rows, tables: columns, ..Counts::default() })?;
        self.source = TableSource::Inline;
        let first = inline_tables_base(rows, rows);

        for seq in 0..requests {
            let (seq_len, queries) = (raw[0].tables.seq_len(&groups[0], seq), raw[0].queries(seq));
            let mut bases = [(0, 0); MAX_GROUPS];
            for (base, part) in bases.iter_mut().zip(self.groups()) {
                // Below the words of the whole step, which `prepare` has checked.
                base.0 = first + part.tables.len() as u32;
            }
            self.push_rows(bases.into_iter(), seq_len, queries)?;
            for ((part, raw), group) in self.groups_mut().iter_mut().zip(raw).zip(groups) {
                part.tables.extend_from_slice(raw.used(group, seq));
            }
        }
        for (idx, (raw, group)) in raw.iter().zip(groups).enumerate() {
            raw.append.push_to(&mut self.groups_mut()[idx].slots, group, &raw.tables, |seq| raw.queries(seq));
            self.check_slots(idx)?;
            let tables = std::mem::take(&mut self.groups_mut()[idx].tables);
            self.finish(idx, group.block_size(), &tables, first);
            self.groups_mut()[idx].tables = tables;
        }
        self.check_apart(groups, raw)
    }

    /// Refuses a block that one group writes and another has in sight, and padding that is none in another group.
    fn check_apart(&mut self, groups: &[KvLayout], raw: &[RawTables<'_>]) -> Result<(), TableError> {
        if groups.len() == 1 {
            return Ok(());
        }
        // The blocks that are written, each with its group.
        let mut written = std::mem::take(&mut self.places);
        written.clear();
        let parts = &self.parts[..groups.len()];
        let rows = parts.iter().map(|part| part.slots.len()).sum();
        written.try_reserve(rows).map_err(|_| PlanError::HostMemory { rows: rows as u64 })?;
        for (idx, (part, group)) in parts.iter().zip(groups).enumerate() {
            let mut pairs = part.slots.iter().zip(&parts[0].slots);
            if let Some(row) = pairs.position(|(&own, &first)| (own == SKIP_SLOT) != (first == SKIP_SLOT)) {
                let [given, expected] = [part, &parts[0]].map(|part| u64::from(part.slots[row] == SKIP_SLOT));
                return Err(TableError::UnlikeGroups { group: idx, what: "the padding", row, given, expected });
            }
            let slots = part.slots.iter().filter(|&&slot| slot != SKIP_SLOT);
            written.extend(slots.map(|&slot| (slot / group.block_size(), idx as u32)));
        }
        written.sort_unstable();
        written.dedup();
        let shared = |block: u32, other: usize| {
            let at = written.partition_point(|&(known, _)| known < block);
            let mut groups = written[at..].iter().take_while(|&&(known, _)| known == block);
            groups.find(|&&(_, group)| group as usize != other).map(|&(_, group)| TableError::SharedBlock {
                block,
                group: group as usize,
                other,
            })
        };
        for (other, (raw, group)) in raw.iter().zip(groups).enumerate() {
            for seq in 0..raw.tables.num_seqs() {
                let first_query = raw.tables.seq_len(group, seq).saturating_sub(raw.queries(seq));
                let hidden = group.window().map_or(0, |window| (first_query + 1).saturating_sub(window));
                let seen = raw.used(group, seq).iter().skip((hidden / group.block_size()) as usize);
                if let Some(error) = seen.filter_map(|&block| shared(block, other)).next() {
                    return Err(error);
                }
            }
        }
        if let Some(error) = written.iter().find_map(|&(block, group)| shared(block, group as usize)) {
            return Err(error);
        }
        self.places = written;
        Ok(())
    }

    /// Refuses two tokens with one slot: their rows could be torn, each partly one's and partly the other's.
    fn check_slots(&mut self, group: usize) -> Result<(), TableError> {
        let slots = &self.parts[group].slots;
        let rows = slots.len();
        self.places.clear();
        self.places.try_reserve(rows).map_err(|_| PlanError::HostMemory { rows: rows as u64 })?;
        self.places.extend(slots.iter().copied().zip(0..).filter(|&(slot, _)| slot != SKIP_SLOT));
        self.places.sort_unstable();
        match self.places.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            None => Ok(()),
            Some(pair) => Err(TableError::SharedSlot { slot: pair[0].0, first: pair[0].1, second: pair[1].1 }),
        }
    }
}

/// Whether all groups have the same sequences, with the same lengths and queries.
fn check_groups_agree(groups: &[KvLayout], raw: &[RawTables<'_>]) -> Result<(), TableError> {
    let first = &raw[0];
    for (group, (raw, layout)) in raw.iter().zip(groups).enumerate().skip(1) {
        let count = |raw: &RawTables<'_>| raw.tables.num_seqs() as u64;
        let differs = |what, row, given: u64, expected: u64| match given == expected {
            true => Ok(()),
            false => Err(TableError::UnlikeGroups { group, what, row, given, expected }),
        };
        differs("the number of sequences", 0, count(raw), count(first))?;
        for row in 0..first.tables.num_seqs() {
            let lens = [raw.tables.seq_len(layout, row), first.tables.seq_len(&groups[0], row)].map(u64::from);
            differs("the length", row, lens[0], lens[1])?;
            differs("the number of queries", row, raw.queries(row).into(), first.queries(row).into())?;
        }
    }
    Ok(())
}

/// The slot of the token at `position` of the sequence that owns the block table `table`; [`SKIP_SLOT`] where the table
/// ends before that position or has no valid block there.
pub fn slot_at(layout: &KvLayout, table: &[u32], position: u32) -> u32 {
    let block = table.get((position / layout.block_size()) as usize).copied();
    block.and_then(BlockId::new).map_or(SKIP_SLOT, |block| layout.slot(block, position))
}

#[cfg(test)]
mod tests;
