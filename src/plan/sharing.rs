//! Which sequences of a step begin with the same blocks: a split of these is served once for all of them.
//!
//! A shared split is computed as each of its rows alone would compute it, only by a wider tile: sharing saves time and
//! changes no bit of a result.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};

use super::schedule::Schedule;
use crate::ids::RELEASED;

/// What one sequence brings to a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) first_row: u32,
    pub(super) queries: u32,
    /// Keys, those of this step included.
    pub(super) seq_len: u32,
    pub(super) table_base: u32,
    /// Another one whenever the table changes before the block that a step writes first; 0 where that is not known.
    pub(super) era: u64,
    /// How many, its own and shared ones; at least one.
    pub(super) splits: u32,
    /// Its first splits, where another tile serves them.
    pub(super) shared: SharedRun,
}

impl Span {
    /// The position of a query.
    pub(super) fn position(&self, query: u32) -> i64 {
        i64::from(self.seq_len) - i64::from(self.queries) + i64::from(query)
    }
}

/// The first splits of a sequence, served by a tile of several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SharedRun {
    /// How many; 0 where nothing is shared.
    pub(super) splits: u32,
    /// The partial of the sequence's first query and split.
    pub(super) partial: u32,
    /// Partials from one split to the next.
    pub(super) stride: u32,
}

/// Sequences that share `splits` splits and fit one tile.
pub(super) struct Run<'a> {
    pub(super) splits: u32,
    pub(super) spans: &'a [u32],
}

/// All that the runs depend on, but for the tables themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    table_base: u32,
    queries: u32,
    era: u64,
    /// Whether it is no chunk and has a split.
    eligible: bool,
}

/// Of the first and the last block of a first split: who shares the last one shares all, but for twins of blocks.
#[derive(Clone, Copy, Debug, Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u64(&mut self, pair: u64) {
        let mixed = u128::from(self.0 ^ pair) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = mixed as u64 ^ (mixed >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Finds shared runs; keeps its memory from step to step, and the runs themselves while no table changes but at its end.
#[derive(Clone, Debug, Default)]
pub(super) struct Sharing {
    /// By the first and the last block of its first split, the first sequence of the step that begins with them.
    leaders: HashMap<u64, u32, BuildHasherDefault<PairHasher>>,
    /// (leader, splits in common with it, sequence); the leader itself has them all.
    followers: Vec<(u32, Reverse<u32>, u32)>,
    /// Sequences of all runs, run after run.
    spans: Vec<u32>,
    /// (splits, sequences) of every run.
    lens: Vec<(u32, usize)>,
    /// What these runs were found for.
    seen: Vec<Seen>,
}

impl Sharing {
    /// Looks for sequences that share at least one whole split. Returns whether the runs are those of the step before.
    pub(super) fn find<'a>(
        &mut self,
        schedule: &Schedule,
        block_size: u32,
        spans: &[Span],
        table: impl Fn(u32, u32) -> &'a [u32],
    ) -> bool {
        let same = self.is_as_before(schedule, spans);
        if same || schedule.tile_tokens == 1 || !schedule.share_prefixes {
            return same;
        }
        self.leaders.clear();
        self.followers.clear();
        self.spans.clear();
        self.lens.clear();
        let first_split = schedule.split_tokens.div_ceil(block_size) as usize;
        let blocks = |span: &Span| table(span.table_base, span.seq_len.div_ceil(block_size));
        for (idx, span) in (0..).zip(spans) {
            if !self.seen[idx as usize].eligible {
                continue;
            }
            let own = blocks(span);
            // Blocks that left a window are gone from the front on, so one that begins with a block has all of them.
            if own[0] == RELEASED.get() {
                continue;
            }
            // No text begins with one block twice: that is how engines fill columns whose keys no window shows any more.
            if own.len() > 1 && own[0] == own[1] {
                continue;
            }
            let ends = u64::from(own[0]) << 32 | u64::from(own[first_split - 1]);
            match self.leaders.entry(ends) {
                Entry::Vacant(entry) => {
                    entry.insert(idx);
                }
                Entry::Occupied(entry) => {
                    let leader = &spans[*entry.get() as usize];
                    let common = own.iter().zip(blocks(leader)).take_while(|(a, b)| a == b).count();
                    let keys = (common as u64 * u64::from(block_size)).min(span.seq_len.min(leader.seq_len).into());
                    let splits = (keys / u64::from(schedule.split_tokens)) as u32;
                    if splits > 0 {
                        self.followers.push((*entry.get(), Reverse(splits), idx));
                    }
                }
            }
        }
        self.gather(schedule, spans);
        false
    }

    /// Whether the runs are still those of the step before, so that no table is compared. Notes what they are found for.
    ///
    /// What a step changes at the end of a table is of no account: it writes into the last block of each of its sequences, and
    /// no block that is written has two owners. So what two of them have in common ended before that block already.
    fn is_as_before(&mut self, schedule: &Schedule, spans: &[Span]) -> bool {
        let seen = |span: &Span| Seen {
            table_base: span.table_base,
            queries: span.queries,
            era: span.era,
            eligible: !schedule.is_chunk(span.queries) && span.seq_len >= schedule.split_tokens,
        };
        let known = spans.iter().all(|span| span.era > 0);
        if known && spans.iter().map(seen).eq(self.seen.iter().copied()) {
            return true;
        }
        self.seen.clear();
        self.seen.extend(spans.iter().map(seen));
        false
    }

    /// Deals the sequences of each leader out to tiles, those that share most first.
    fn gather(&mut self, schedule: &Schedule, spans: &[Span]) {
        self.followers.sort_unstable();
        for group in self.followers.chunk_by(|a, b| a.0 == b.0) {
            let leader = group[0].0;
            let sequences = std::iter::once((leader, u32::MAX)).chain(group.iter().map(|f| (f.2, f.1.0)));
            let (mut rows, mut first, mut splits) = (0, self.spans.len(), 0);
            for (idx, own_splits) in sequences {
                let queries = spans[idx as usize].queries;
                // A run of n sequences saves its splits n − 1 times; one that would make it too short is left out.
                let len = (self.spans.len() - first) as u64;
                let pays = len < 2 || len * u64::from(own_splits) >= (len - 1) * u64::from(splits);
                if rows + queries > schedule.tile_tokens || !pays {
                    close(&mut self.spans, &mut self.lens, first, splits);
                    (rows, first) = (0, self.spans.len());
                }
                self.spans.push(idx);
                rows += queries;
                splits = own_splits;
            }
            close(&mut self.spans, &mut self.lens, first, splits);
        }
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        let mut rest = self.spans.as_slice();
        self.lens.iter().map(move |&(splits, len)| {
            let (spans, behind) = rest.split_at(len);
            rest = behind;
            Run { splits, spans }
        })
    }
}

/// Ends a run; drops runs of a single sequence.
fn close(spans: &mut Vec<u32>, lens: &mut Vec<(u32, usize)>, first: usize, splits: u32) {
    match spans.len() - first {
        0 | 1 => spans.truncate(first),
        len => lens.push((splits, len)),
    }
}
