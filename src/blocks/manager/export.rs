//! Sequences out of a manager and into another one, or into the same one later: the bookkeeping of swaps and snapshots.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::blocks::manager::Rank;
use crate::blocks::manager::group::Group;
use crate::blocks::{BlockId, CacheManager, Domain, RELEASED, SeqId};
use crate::error::ManagerError;

/// What there is to know about a sequence, its K and V apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceRecord {
    /// Tokens.
    pub len: u32,
    /// The block of every column in the first group of layers, `None` where it left the window. Equal numbers in records
    /// that are imported together mean one shared block.
    pub blocks: Vec<Option<BlockId>>,
    /// The same in the other [groups](crate::layout::KvLayout::groups), if there are any.
    #[serde(default)]
    pub other_groups: Vec<Vec<Option<BlockId>>>,
    /// All tokens, where the prefix cache knows them.
    pub tokens: Option<Vec<u32>>,
    /// Who may share its blocks, where prefixes are cached.
    pub domain: Option<Domain>,
    /// Its rank.
    pub rank: Rank,
}

impl SequenceRecord {
    /// The blocks of every group.
    pub fn tables(&self) -> impl Iterator<Item = &[Option<BlockId>]> {
        std::iter::once(&self.blocks).chain(&self.other_groups).map(Vec::as_slice)
    }
}

/// The record, group and column that named a block first, or that tells most of its tokens.
#[derive(Clone, Copy)]
struct User {
    record: usize,
    group: usize,
    column: usize,
}

/// Sequences that were imported, and where their content belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// In the order of the records.
    pub sequences: Vec<SeqId>,
    /// (number in the records, new block), every block once. Their K and V are to be filled in before they are used.
    pub blocks: Vec<(BlockId, BlockId)>,
}

impl CacheManager {
    /// Describes a sequence so that [`import_sequences`](Self::import_sequences) can make another like it.
    pub fn export_sequence(&self, seq: SeqId) -> Result<SequenceRecord, ManagerError> {
        let state = self.idle(seq)?;
        let group = &self.groups[0];
        let used = group.used(seq.index());
        let complete = state.known == state.len && group.state(seq.index()).released == 0;
        let tokens = self.store.prefix().filter(|_| complete).map(|prefix| {
            let all = used.iter().flat_map(|&block| prefix.tokens(block));
            all.copied().take(state.len as usize).collect()
        });
        let blocks = |group: &Group| {
            let used = group.used(seq.index()).iter();
            used.map(|&block| (block != RELEASED).then_some(block)).collect()
        };
        Ok(SequenceRecord {
            len: state.len,
            blocks: blocks(group),
            other_groups: self.groups[1..].iter().map(blocks).collect(),
            tokens,
            domain: self.domains[seq.index() as usize].as_deref().cloned(),
            rank: state.rank,
        })
    }

    /// New sequences like those that were exported, all or none, in newly allocated blocks; what was shared stays shared.
    ///
    /// The caller fills the new blocks, or releases the sequences again. The prefix cache learns of them at their next
    /// commit only, so that no look-up finds blocks that were never filled.
    ///
    /// # Errors
    /// [`ManagerError::StepOpen`], [`ManagerError::TooManySequences`], [`ManagerError::Pool`] if too few blocks are free,
    /// [`ManagerError::Record`] or [`ManagerError::SharedRecord`] for records that make no sense; nothing has changed.
    pub fn import_sequences(&mut self, records: &[SequenceRecord]) -> Result<Imported, ManagerError> {
        if self.step.is_open() {
            return Err(ManagerError::StepOpen);
        }
        let numbers = self.check_records(records)?;
        if records.len() > self.free_rows.len() {
            return Err(ManagerError::TooManySequences { limit: self.layout.max_sequences() });
        }
        let needed = numbers.len() as u64;
        if needed > self.store.pool().num_free().into() {
            return Err(self.store.pool().out_of_blocks(needed).into());
        }

        let mut taken = vec![BlockId::default(); numbers.len()];
        self.store.allocate(&mut taken);
        let blocks: Vec<(BlockId, BlockId)> = numbers.into_iter().zip(taken).collect();
        self.tally.evictions += self.store.settle_evictions();
        let new_blocks: HashMap<BlockId, BlockId> = blocks.iter().copied().collect();
        let sequences = records.iter().map(|record| self.import(record, &new_blocks)).collect();
        // Every block has one owner from its allocation, and one more from each record.
        blocks.iter().for_each(|&(_, block)| self.store.give_back(block));
        self.note_peak();
        Ok(Imported { sequences, blocks })
    }

    fn import(&mut self, record: &SequenceRecord, new_blocks: &HashMap<BlockId, BlockId>) -> SeqId {
        let seq = self.add_row().expect("the free rows were counted");
        let row = seq.index();
        for (group, blocks) in self.groups.iter_mut().zip(record.tables()) {
            let entries = group.tables.row_mut(row);
            for (entry, number) in entries.iter_mut().zip(blocks) {
                *entry = number.map_or(RELEASED, |number| new_blocks[&number]);
            }
            let released = blocks.iter().take_while(|block| block.is_none()).count() as u32;
            let table = group.state_mut(row);
            (table.num_blocks, table.released) = (blocks.len() as u32, released);
            self.store.retain_all(group.owned(row));
        }
        let state = &mut self.sequences[row as usize];
        state.len = record.len;
        state.rank = record.rank;
        self.arrivals = self.arrivals.max(record.rank.arrival);
        if self.store.prefix().is_some() {
            self.domains[row as usize] = Some(Arc::new(record.domain.clone().unwrap_or_default()));
            if let Some(tokens) = &record.tokens {
                for (tokens, &block) in tokens.chunks(self.layout.block_size() as usize).zip(self.groups[0].used(row)) {
                    self.store.note_tokens(block, 0, tokens);
                }
                state.known = record.len;
            }
        }
        let waits = state.known < record.len;
        if let Some(late) = self.late.as_mut().filter(|_| waits) {
            late.push(row, 0, self.step.number);
        }
        seq
    }

    /// Whether the records describe possible sequences that agree about the blocks they share. Returns all blocks.
    fn check_records(&self, records: &[SequenceRecord]) -> Result<Vec<BlockId>, ManagerError> {
        let (mut numbers, mut users) = (Vec::new(), HashMap::new());
        for (at, record) in records.iter().enumerate() {
            let max_seq_len = self.layout.max_seq_len();
            if record.len > max_seq_len {
                return Err(wrong(at, "len", record.len.into(), max_seq_len.into()));
            }
            let (given, expected) = (record.tables().count(), self.groups.len());
            if given != expected {
                return Err(wrong(at, "the number of groups", given as u64, expected as u64));
            }
            for (group, blocks) in self.groups.iter().zip(record.tables()) {
                let columns = group.layout.blocks_for(record.len).max(group.first_blocks());
                if blocks.len() != columns as usize {
                    return Err(wrong(at, "the number of blocks", blocks.len() as u64, columns.into()));
                }
            }
            if let Some(tokens) = record.tokens.as_ref().filter(|tokens| tokens.len() != record.len as usize) {
                return Err(wrong(at, "the number of tokens", tokens.len() as u64, record.len.into()));
            }
            for (idx, (group, blocks)) in self.groups.iter().zip(record.tables()).enumerate() {
                let released = group.check_released(at, record, blocks)?;
                if idx == 0 && released > 0 && record.tokens.is_some() {
                    return Err(wrong(at, "the number of released blocks of known tokens", released as u64, 0));
                }
                let block_size = group.layout.block_size() as usize;
                let new = |number| numbers.push(number);
                check_sharing(records, at, (idx, block_size), blocks, &mut users, new)?;
            }
        }
        Ok(numbers)
    }
}

impl Group {
    /// Whether a record lacks no blocks but those that left the window. Returns how many.
    fn check_released(
        &self,
        at: usize,
        record: &SequenceRecord,
        blocks: &[Option<BlockId>],
    ) -> Result<usize, ManagerError> {
        let released = blocks.iter().take_while(|block| block.is_none()).count();
        let outside = self.outside(record.len);
        if released > outside as usize {
            return Err(wrong(at, "the number of released blocks", released as u64, outside.into()));
        }
        match blocks.iter().skip(released).position(Option::is_none) {
            None => Ok(released),
            Some(gap) => Err(wrong(at, "the column of a missing block", (released + gap) as u64, released as u64)),
        }
    }
}

/// Whether a record agrees with those before it about the blocks of a `(group, block_size)`. Calls `new` for each block that
/// none of them named.
fn check_sharing(
    records: &[SequenceRecord],
    at: usize,
    (group, block_size): (usize, usize),
    blocks: &[Option<BlockId>],
    users: &mut HashMap<BlockId, User>,
    mut new: impl FnMut(BlockId),
) -> Result<(), ManagerError> {
    let record = &records[at];
    // The record that these blocks were shared with so far, and the tokens that were compared with it.
    let (mut partner, mut compared) = (at, 0);
    for (column, number) in blocks.iter().enumerate().filter_map(|(column, number)| Some((column, (*number)?))) {
        let own = User { record: at, group, column };
        let user = users.entry(number).or_insert_with(|| {
            new(number);
            own
        });
        let User { record: other, group: other_group, column: place } = *user;
        if other != at || place != column || other_group != group {
            compared = if partner == other { compared } else { 0 };
            let end = (column + 1) * block_size;
            if place != column || other_group != group || !agree(&records[other], record, compared..end) {
                return Err(ManagerError::SharedRecord { record: at, other, block: number });
            }
            (partner, compared) = (other, end);
        }
        // Later records are held against the one that tells most.
        let tells = |record: &SequenceRecord| record.tokens.as_ref().map_or(0, Vec::len);
        if tells(record) > tells(&records[other]) {
            *user = own;
        }
    }
    Ok(())
}

fn wrong(record: usize, what: &'static str, value: u64, expected: u64) -> ManagerError {
    ManagerError::Record { record, what, value, expected }
}

/// Whether two sequences can share a block that ends at the token `range.end`: as far as both know, they tell the same from
/// `range.start` on, and are in one domain.
fn agree(a: &SequenceRecord, b: &SequenceRecord, range: Range<usize>) -> bool {
    let end = range.end.min(a.len as usize).min(b.len as usize);
    let tokens = match (&a.tokens, &b.tokens) {
        (Some(a), Some(b)) => a[range.start.min(end)..end] == b[range.start.min(end)..end],
        _ => true,
    };
    a.domain == b.domain && tokens
}
