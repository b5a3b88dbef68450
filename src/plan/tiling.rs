//! From the sequences of a step to query tiles, their work items and the partials that are merged.

use std::ops::RangeInclusive;

use super::reach::Reach;
use super::schedule::Schedule;
use super::sharing::{SharedRun, Sharing, Span};
use super::words::{Merge, NO_PARTIAL, QueryTile, TILE_CLASSES};
use crate::error::PlanError;

/// The tiles of a step; keeps its memory from step to step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tiling {
    spans: Vec<Span>,
    /// Whether every sequence so far brings one query, over as many splits as its place had in the step before.
    steady: bool,
    /// Of the step before, until this one's are laid out.
    pub(super) laid: Laid,
    is_laid: bool,
    sharing: Sharing,
    /// Items and partials if nothing is shared: bounds of what will be.
    bound: u64,
}

/// What a plan without rows has.
static NOTHING: Laid = Laid {
    tiles: [const { Vec::new() }; TILE_CLASSES],
    items: [0; TILE_CLASSES],
    reaches: [const { Vec::new() }; TILE_CLASSES],
    max_item_keys: [0; TILE_CLASSES],
    members: Vec::new(),
    merges: Vec::new(),
    merge_reaches: Vec::new(),
    num_partials: 0,
    max_splits: 0,
    splits: Vec::new(),
};

/// The tiles and what is merged from them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Laid {
    pub(crate) tiles: [Vec<QueryTile>; TILE_CLASSES],
    /// Work items per class.
    pub(super) items: [u32; TILE_CLASSES],
    /// Of every tile, class by class.
    pub(super) reaches: [Vec<Reach>; TILE_CLASSES],
    /// Most keys of a work item, per class.
    pub(super) max_item_keys: [u32; TILE_CLASSES],
    pub(crate) members: Vec<u32>,
    pub(crate) merges: Vec<Merge>,
    /// Of runs of neighbours that are merged, over all keys of their sequence.
    pub(super) merge_reaches: Vec<Reach>,
    pub(super) num_partials: u32,
    /// Splits of the longest row that is merged.
    pub(super) max_splits: u32,
    /// Splits of every sequence.
    splits: Vec<u32>,
}

impl Laid {
    fn clear(&mut self) {
        self.tiles.iter_mut().for_each(Vec::clear);
        self.items = [0; TILE_CLASSES];
        self.reaches.iter_mut().for_each(Vec::clear);
        self.max_item_keys = [0; TILE_CLASSES];
        self.members.clear();
        self.merges.clear();
        self.merge_reaches.clear();
        self.num_partials = 0;
        self.max_splits = 0;
        self.splits.clear();
    }

    /// Adds a tile whose queries stand at `positions`.
    fn push_tile(&mut self, class: usize, items: u32, tile: QueryTile, positions: RangeInclusive<i64>) {
        self.tiles[class].push(QueryTile { item_start: self.items[class], ..tile });
        self.reaches[class].push(reach(&tile, &positions));
        self.items[class] += items;
        self.max_item_keys[class] = self.max_item_keys[class].max(item_keys(&tile));
    }
}

impl Tiling {
    pub(super) fn clear(&mut self) {
        self.spans.clear();
        self.steady = true;
        self.is_laid = false;
        self.bound = 0;
    }

    /// What was laid out for this step.
    pub(crate) fn laid(&self) -> &Laid {
        if self.is_laid { &self.laid } else { &NOTHING }
    }

    /// Makes room for `rows` query tokens.
    pub(super) fn try_reserve(&mut self, rows: usize) -> Result<(), std::collections::TryReserveError> {
        let Laid { members, merges, .. } = &mut self.laid;
        members.try_reserve((2 * rows).saturating_sub(members.len()))?;
        merges.try_reserve(rows.saturating_sub(merges.len()))?;
        self.spans.try_reserve(rows)
    }

    /// Adds a sequence, whose rows follow those of the one before; refuses one whose splits cannot be numbered.
    pub(super) fn push(&mut self, span: Span) -> Result<(), PlanError> {
        self.bound += u64::from(span.splits) * u64::from(span.queries);
        let limit = u64::from(u32::MAX) - 1;
        if self.bound > limit {
            return Err(PlanError::TooLarge { what: "splits", value: self.bound, limit });
        }
        self.steady &= span.queries == 1 && self.laid.splits.get(self.spans.len()) == Some(&span.splits);
        self.spans.push(span);
        Ok(())
    }

    /// Lays out the tiles of all sequences. `table(base, blocks)` is the block table that starts at `base`.
    pub(super) fn build<'a>(&mut self, schedule: &Schedule, block_size: u32, table: impl Fn(u32, u32) -> &'a [u32]) {
        let mut sharing = std::mem::take(&mut self.sharing);
        let same_tables = sharing.find(schedule, block_size, &self.spans, table);
        if same_tables && self.steady && self.spans.len() == self.laid.splits.len() {
            self.lengthen(schedule, &sharing);
        } else {
            self.laid.clear();
            self.laid.splits.extend(self.spans.iter().map(|span| span.splits));
            for run in sharing.runs() {
                self.push_shared(schedule, run.splits, run.spans);
            }
            for idx in 0..self.spans.len() {
                self.push_own(schedule, self.spans[idx]);
            }
        }
        self.is_laid = true;
        self.sharing = sharing;
    }

    /// Turns what was laid out for the step before into that of this one: the same sequences bring one query each, over the
    /// same splits of the same tables, and only the last of these have other lengths.
    fn lengthen(&mut self, schedule: &Schedule, sharing: &Sharing) {
        let laid = &mut self.laid;
        let mut tiles = [0; TILE_CLASSES];
        for run in sharing.runs() {
            let class = schedule.tile_class(run.spans.len() as u32);
            let reach = &mut laid.reaches[class][tiles[class]];
            tiles[class] += 1;
            (reach.first, reach.last) = (i64::MAX, 0);
            for &idx in run.spans {
                let span = &mut self.spans[idx as usize];
                span.shared.splits = run.splits;
                (reach.first, reach.last) = (reach.first.min(span.position(0)), reach.last.max(span.position(0)));
            }
        }
        let class = schedule.class(1);
        let mut own = laid.tiles[class].iter_mut().zip(&mut laid.reaches[class]);
        let mut merged = laid.merges.iter_mut().zip(&mut laid.merge_reaches);
        let mut most_keys = 0;
        for span in &self.spans {
            let (key_end, position) = (span.seq_len, span.position(0));
            let lengthen = |reach: &mut Reach| (reach.first, reach.last, reach.key_end) = (position, position, key_end);
            if span.splits > span.shared.splits
                && let Some((tile, reach)) = own.next()
            {
                tile.key_end = key_end;
                most_keys = most_keys.max(item_keys(tile));
                lengthen(reach);
            }
            if (span.splits > 1 || span.shared.splits > 0)
                && let Some((merge, reach)) = merged.next()
            {
                merge.kv_len = key_end;
                lengthen(reach);
            }
        }
        laid.max_item_keys[class] = most_keys;
    }

    /// One tile that serves the first splits of several sequences.
    fn push_shared(&mut self, schedule: &Schedule, splits: u32, spans: &[u32]) {
        let (leader, first_member) = (spans[0] as usize, self.laid.members.len() as u32);
        let stride = spans.iter().map(|&span| self.spans[span as usize].queries).sum();
        for &span in spans {
            let span = &mut self.spans[span as usize];
            let partial = self.laid.num_partials + self.laid.members.len() as u32 - first_member;
            span.shared = SharedRun { splits, partial, stride };
            self.laid.members.extend(span.first_row..span.first_row + span.queries);
        }
        let spans = spans.iter().map(|&span| &self.spans[span as usize]);
        let positions = spans.clone().map(|span| span.position(0)).min().unwrap_or_default()
            ..=spans.clone().map(|span| span.position(span.queries) - 1).max().unwrap_or_default();
        let tile = QueryTile {
            first_member,
            num_members: stride,
            table_base: self.spans[leader].table_base,
            key_begin: 0,
            key_end: splits * schedule.split_tokens,
            split_tokens: schedule.split_tokens,
            item_start: 0,
            first_partial: self.laid.num_partials,
        };
        self.laid.num_partials += splits * stride;
        let class = schedule.tile_class(stride);
        self.laid.push_tile(class, splits, tile, positions);
    }

    /// The tiles that serve what is not shared of a sequence.
    fn push_own(&mut self, schedule: &Schedule, span: Span) {
        let (split_tokens, splits) = (schedule.split_tokens(span.queries), span.splits);
        let own_splits = splits - span.shared.splits;
        let merged = splits > 1 || span.shared.splits > 0;
        let class = schedule.class(span.queries);
        let mut query = 0;
        while query < span.queries {
            let num_members = (span.queries - query).min(schedule.room(class));
            let first_row = span.first_row + query;
            let positions = span.position(query)..=span.position(query + num_members) - 1;
            let tile = QueryTile {
                first_member: self.laid.members.len() as u32,
                num_members,
                table_base: span.table_base,
                key_begin: span.shared.splits * schedule.split_tokens,
                key_end: span.seq_len,
                split_tokens,
                item_start: 0,
                first_partial: if merged { self.laid.num_partials } else { NO_PARTIAL },
            };
            if merged {
                self.laid.merges.extend((0..num_members).map(|member| Merge {
                    query: first_row + member,
                    kv_len: span.seq_len,
                    shared_splits: span.shared.splits,
                    shared_partial: span.shared.partial + query + member,
                    shared_stride: span.shared.stride,
                    own_partial: tile.first_partial + member,
                    own_stride: num_members,
                    split_tokens,
                }));
                self.laid.merge_reaches.push(reach(&QueryTile { key_begin: 0, ..tile }, &positions));
                self.laid.max_splits = self.laid.max_splits.max(splits);
                self.laid.num_partials += own_splits * num_members;
            }
            if own_splits > 0 {
                self.laid.members.extend(first_row..first_row + num_members);
                self.laid.push_tile(class, own_splits, tile, positions);
            }
            query += num_members;
        }
    }
}

/// The most keys of a work item of a tile.
fn item_keys(tile: &QueryTile) -> u32 {
    (tile.key_end - tile.key_begin).min(tile.split_tokens)
}

/// What queries at `positions` can see of a tile's keys.
fn reach(tile: &QueryTile, positions: &RangeInclusive<i64>) -> Reach {
    Reach {
        first: *positions.start(),
        last: *positions.end(),
        key_begin: tile.key_begin,
        key_end: tile.key_end,
        split_tokens: tile.split_tokens,
    }
}
