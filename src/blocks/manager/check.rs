//! Whether all that the manager remembers fits together.

use std::collections::HashMap;

use crate::blocks::manager::Sequence;
use crate::blocks::manager::group::{Group, TableState};
use crate::blocks::prefix::PrefixIndex;
use crate::blocks::{BlockId, CacheManager, RELEASED};
use crate::error::InvariantError;

impl CacheManager {
    /// Looks for any inconsistency, in time and memory in proportion to the pool: for tests, and for engines that would
    /// rather stop than serve a wrong block.
    pub fn check_invariants(&self) -> Result<(), InvariantError> {
        self.store.pool().check_invariants()?;
        let mut owners = vec![0_u32; self.store.pool().num_blocks() as usize];
        // The group whose tables name a block, from 1 on.
        let mut owner_groups = vec![0; owners.len()];
        let mut live = 0;
        for (row, state) in (0..).zip(&self.sequences).filter(|(_, state)| state.live) {
            live += 1;
            self.check_sequence(row, state)?;
            for (idx, group) in (1_u32..).zip(&self.groups) {
                for &block in group.owned(row) {
                    let Some(count) = owners.get_mut(block.index()) else {
                        return Err(InvariantError::FreeList {
                            block,
                            what: "a table names it, but the pool lacks it",
                        });
                    };
                    *count += 1;
                    let of = std::mem::replace(&mut owner_groups[block.index()], idx);
                    if of != 0 && of != idx {
                        return Err(InvariantError::Groups { block, first: of - 1, second: idx - 1 });
                    }
                }
            }
        }
        let sources = self.step.sources().filter(|_| self.step.is_open());
        let mut leaving = vec![0_u32; owners.len()];
        for source in sources {
            owners[source.index()] += 1;
            leaving[source.index()] += 1;
        }
        for (block, (&counted, &leaving)) in (0..).map(BlockId::of_pool).zip(owners.iter().zip(&leaving)) {
            for (stored, counted) in [(self.store.owners(block), counted), (self.store.pool().leaving(block), leaving)]
            {
                if stored != counted {
                    return Err(InvariantError::Owners { block, stored, counted });
                }
            }
        }
        let counter = |name, stored: u32, counted: u32| match stored == counted {
            true => Ok(()),
            false => Err(InvariantError::Counter { name, stored: stored.into(), counted: counted.into() }),
        };
        counter("living sequences", self.num_sequences, live)?;
        self.check_prefix(counter)
    }

    fn check_sequence(&self, row: u32, state: &Sequence) -> Result<(), InvariantError> {
        let extension = self.step.extensions.iter().find(|extension| self.step.is_open() && extension.row == row);
        let len = state.len + extension.map_or(0, |extension| extension.new_tokens);
        let full = state.known / self.layout.block_size();
        let late = self.late.as_ref().is_none_or(|late| late.in_order(row, state.len));
        let max_seq_len = self.layout.max_seq_len();
        check_values(row, [("its length", len, max_seq_len, len <= max_seq_len)])?;
        self.groups.iter().try_for_each(|group| group.check_row(row, state.len, len))?;
        check_values(
            row,
            [
                ("the number of known tokens", state.known, state.len, state.known <= state.len),
                ("the number of taken tokens", state.taken, state.len, state.taken <= state.len),
                ("the order of the steps that wait for ids", late.into(), 1, late),
                ("the number of cached blocks", state.registered, full, state.registered <= full),
            ],
        )
    }

    fn check_prefix(
        &self,
        counter: impl Fn(&'static str, u32, u32) -> Result<(), InvariantError>,
    ) -> Result<(), InvariantError> {
        let evicted = self.store.evicted();
        let Some(prefix) = self.store.prefix() else {
            counter("cached blocks", self.store.num_cached(), 0)?;
            return counter("evictions", evicted.len() as u32, 0);
        };
        if !self.step.is_open() {
            counter("evictions of no step", evicted.len() as u32, 0)?;
        }
        prefix.check_invariants(evicted)?;
        let findable = |&block: &BlockId| prefix.is_registered(block) && self.store.is_free(block);
        let cached = (0..self.store.pool().num_blocks()).map(BlockId::of_pool).filter(findable).count() as u32;
        counter("cached blocks", self.store.num_cached(), cached)?;
        let blocks = (0..self.store.pool().num_blocks()).map(BlockId::of_pool);
        let firsts = blocks.filter(|&block| prefix.is_registered(block) && prefix.seat(block).is_none());
        let contents: HashMap<u64, BlockId> = firsts.map(|block| (prefix.content(block), block)).collect();
        let mut keys = prefix.key_maker();
        for (row, state) in self.sequences.iter().enumerate().filter(|(_, state)| state.live) {
            let Some(domain) = &self.domains[row] else {
                return Err(InvariantError::Sequence { row: row as u32, what: "its domain", value: 0, expected: 1 });
            };
            let mut parent = PrefixIndex::root(&mut keys, domain);
            // Behind released blocks the keys cannot be followed.
            let group = &self.groups[0];
            let followed = if group.state(row as u32).released == 0 { state.registered } else { 0 };
            for &block in &group.tables.row(row as u32)[..followed as usize] {
                if !prefix.is_registered(block) {
                    return Err(InvariantError::Prefix { block, what: "its sequence takes it for registered" });
                }
                prefix.check_key(block, &parent)?;
                parent = prefix.parent(block, domain);
            }
            self.check_attached(prefix, &contents, row as u32, state)?;
        }
        Ok(())
    }
}

impl CacheManager {
    /// Whether the blocks of a sequence in other groups are found, if at all, by what its blocks in the first one hold, as far
    /// as they go: two texts that part behind such a block share it, and it is found by the one that was there first.
    /// `contents` has a block of the first group for each.
    fn check_attached(
        &self,
        prefix: &PrefixIndex,
        contents: &HashMap<u64, BlockId>,
        row: u32,
        state: &Sequence,
    ) -> Result<(), InvariantError> {
        let (first, others) = self.groups.split_first().expect("a cache has a group");
        let size = self.layout.block_size();
        for at in 0..state.registered {
            let reference = first.tables.row(row)[at as usize];
            for (idx, group) in (1..).zip(others) {
                for column in group.columns_ending_in(at, size) {
                    let block = group.tables.row(row)[column as usize];
                    if block == RELEASED || reference == RELEASED || !prefix.is_registered(block) {
                        continue;
                    }
                    let end = ((column + 1) * group.layout.block_size() - at * size) as usize;
                    let same = |&found: &BlockId| {
                        prefix.before(found) == prefix.before(reference)
                            && prefix.tokens(found)[..end] == prefix.tokens(reference)[..end]
                    };
                    // Of a content that is gone nothing is found.
                    let holds = contents.get(&prefix.content(block)).is_none_or(same);
                    if prefix.seat(block) != Some(group.seat(idx, column, size)) || !holds {
                        let what = "it is attached to something else than its sequence holds";
                        return Err(InvariantError::Prefix { block, what });
                    }
                }
            }
        }
        Ok(())
    }
}

impl Group {
    /// Whether the row of a sequence of `len` tokens fits it; an open step makes it one of `new_len`.
    fn check_row(&self, row: u32, len: u32, new_len: u32) -> Result<(), InvariantError> {
        let &TableState { num_blocks, released, uploaded, .. } = self.state(row);
        let blocks = self.layout.blocks_for(new_len).max(self.first_blocks());
        let outside = self.outside(len);
        let table = &self.tables.row(row)[..(blocks as usize).min(self.tables.columns() as usize)];
        let gone = table.iter().filter(|&&block| block == RELEASED).count() as u32;
        check_values(
            row,
            [
                ("the number of its blocks", num_blocks, blocks, num_blocks == blocks),
                ("the number of released blocks", released, outside, released <= outside),
                ("the number of released entries", gone, released, gone == released),
                ("the number of uploaded entries", uploaded, blocks, uploaded <= blocks),
            ],
        )
    }
}

/// Refuses the first value of a row that does not hold: (what, value, expected, whether it holds).
fn check_values<const N: usize>(row: u32, values: [(&'static str, u32, u32, bool); N]) -> Result<(), InvariantError> {
    match values.into_iter().find(|&(.., holds)| !holds) {
        None => Ok(()),
        Some((what, value, expected, _)) => {
            Err(InvariantError::Sequence { row, what, value: value.into(), expected: expected.into() })
        }
    }
}

#[cfg(test)]
mod tests;
