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
    sharing: Sharing,
    /// Items and partials if nothing is shared: bounds of what will be.
    bound: u64,
}

impl Tiling {
    pub(super) fn clear(&mut self) {
        self.spans.clear();
        self.tiles.iter_mut().for_each(Vec::clear);
        self.items = [0; TILE_CLASSES];
        self.reaches.iter_mut().for_each(Vec::clear);
        self.max_item_keys = [0; TILE_CLASSES];
        self.members.clear();
        self.merges.clear();
        self.merge_reaches.clear();
        self.num_partials = 0;
        self.max_splits = 0;
        self.bound = 0;
    }

    /// Makes room for `rows` query tokens.
    pub(super) fn try_reserve(&mut self, rows: usize) -> Result<(), std::collections::TryReserveError> {
        self.members.try_reserve(2 * rows)?;
        self.merges.try_reserve(rows)?;
        self.spans.try_reserve(rows)
    }

    /// Adds a sequence, whose rows follow those of the one before; refuses one whose splits cannot be numbered.
    pub(super) fn push(&mut self, schedule: &Schedule, span: Span) -> Result<(), PlanError> {
        let splits = span.seq_len.div_ceil(schedule.split_tokens(span.queries)).max(1);
        self.bound += u64::from(splits) * u64::from(span.queries);
        let limit = u64::from(u32::MAX) - 1;
        if self.bound > limit {
            return Err(PlanError::TooLarge { what: "splits", value: self.bound, limit });
        }
        self.spans.push(span);
        Ok(())
    }

    /// Lays out the tiles of all sequences. `table(base, blocks)` is the block table that starts at `base`.
    pub(super) fn build<'a>(&mut self, schedule: &Schedule, block_size: u32, table: impl Fn(u32, u32) -> &'a [u32]) {
        let mut sharing = std::mem::take(&mut self.sharing);
        sharing.find(schedule, block_size, &self.spans, table);
        for run in sharing.runs() {
            self.push_shared(schedule, run.splits, run.spans);
        }
        self.sharing = sharing;
        for idx in 0..self.spans.len() {
            self.push_own(schedule, self.spans[idx]);
        }
    }

    /// One tile that serves the first splits of several sequences.
    fn push_shared(&mut self, schedule: &Schedule, splits: u32, spans: &[u32]) {
        let (leader, first_member) = (spans[0] as usize, self.members.len() as u32);
        let stride = spans.iter().map(|&span| self.spans[span as usize].queries).sum();
        for &span in spans {
            let span = &mut self.spans[span as usize];
            let partial = self.num_partials + self.members.len() as u32 - first_member;
            span.shared = SharedRun { splits, partial, stride };
            self.members.extend(span.first_row..span.first_row + span.queries);
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
            first_partial: self.num_partials,
        };
        self.num_partials += splits * stride;
        let class = schedule.tile_class(stride);
        self.push_tile(class, splits, tile, positions);
    }

    /// The tiles that serve what is not shared of a sequence.
    fn push_own(&mut self, schedule: &Schedule, span: Span) {
        let split_tokens = schedule.split_tokens(span.queries);
        let splits = span.seq_len.div_ceil(split_tokens).max(1);
        let own_splits = splits - span.shared.splits;
        let merged = splits > 1 || span.shared.splits > 0;
        let class = schedule.class(span.queries);
        let mut query = 0;
        while query < span.queries {
            let num_members = (span.queries - query).min(schedule.room(class));
            let first_row = span.first_row + query;
            let positions = span.position(query)..=span.position(query + num_members) - 1;
            let tile = QueryTile {
                first_member: self.members.len() as u32,
                num_members,
                table_base: span.table_base,
                key_begin: span.shared.splits * schedule.split_tokens,
                key_end: span.seq_len,
                split_tokens,
                item_start: 0,
                first_partial: if merged { self.num_partials } else { NO_PARTIAL },
            };
            if merged {
                self.merges.extend((0..num_members).map(|member| Merge {
                    query: first_row + member,
                    kv_len: span.seq_len,
                    shared_splits: span.shared.splits,
                    shared_partial: span.shared.partial + query + member,
                    shared_stride: span.shared.stride,
                    own_partial: tile.first_partial + member,
                    own_stride: num_members,
                    split_tokens,
                }));
                self.merge_reaches.push(reach(&QueryTile { key_begin: 0, ..tile }, &positions));
                self.max_splits = self.max_splits.max(splits);
                self.num_partials += own_splits * num_members;
            }
            if own_splits > 0 {
                self.members.extend(first_row..first_row + num_members);
                self.push_tile(class, own_splits, tile, positions);
            }
            query += num_members;
        }
    }

    /// Adds a tile whose queries stand at `positions`.
    fn push_tile(&mut self, class: usize, items: u32, tile: QueryTile, positions: RangeInclusive<i64>) {
        let keys = (tile.key_end - tile.key_begin).min(tile.split_tokens);
        self.tiles[class].push(QueryTile { item_start: self.items[class], ..tile });
        self.reaches[class].push(reach(&tile, &positions));
        self.items[class] += items;
        self.max_item_keys[class] = self.max_item_keys[class].max(keys);
    }
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
