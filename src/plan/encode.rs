//! A plan as the words that the device reads.

use super::StepPlan;
use super::words::{BlockCopy, Merge, QueryTile, STEP_WORDS_VERSION, StepHeader, TILE_CLASSES, TableUpdate, TileClass};
use crate::ids::BlockId;

/// Words of [`StepHeader`] and of the classes of query tiles; the positions follow at once.
pub(super) const HEADER_WORDS: u32 = ((size_of::<StepHeader>() + TILE_CLASSES * size_of::<TileClass>()) / 4) as u32;
const TILE_WORDS: u32 = (size_of::<QueryTile>() / 4) as u32;
const MERGE_WORDS: u32 = (size_of::<Merge>() / 4) as u32;
pub(super) const UPDATE_WORDS: u32 = (size_of::<TableUpdate>() / 4) as u32;
pub(super) const COPY_WORDS: u32 = (size_of::<BlockCopy>() / 4) as u32;
/// Words of a request at most: its first row and its last one.
pub(super) const REQUEST_WORDS: u32 = 2;
/// Words of a row at most: its position and slot, its own and a shared tile with a member each, its merge.
pub(super) const MOST_ROW_WORDS: u32 = 2 + 2 * (TILE_WORDS + 1) + MERGE_WORDS;

impl StepPlan {
    /// Sizes and offsets of the encoded step of a group.
    pub(super) fn header(&self, group: usize) -> StepHeader {
        // `prepare` has seen that every offset fits.
        let (part, laid) = (&self.parts[group], self.parts[group].tiling.laid());
        let (copies, clears) = self.changes(group);
        let slots_base = HEADER_WORDS + self.num_rows();
        let updates_base = slots_base + part.slots.len() as u32;
        let copies_base = updates_base + UPDATE_WORDS * part.updates.len() as u32;
        let clears_base = copies_base + COPY_WORDS * copies.len() as u32;
        let merges_base = self.tiles_base(group) + TILE_WORDS * laid.tiles.iter().map(Vec::len).sum::<usize>() as u32;
        let members_base = merges_base + MERGE_WORDS * laid.merges.len() as u32;
        let cu_seqlens_base = members_base + laid.members.len() as u32;
        StepHeader {
            version: STEP_WORDS_VERSION,
            num_queries: self.num_rows(),
            num_slots: part.slots.len() as u32,
            num_requests: self.cu_seqlens_q.len() as u32 - 1,
            num_last_rows: self.last_rows.len() as u32,
            positions_base: HEADER_WORDS,
            slots_base,
            cu_seqlens_base,
            last_rows_base: cu_seqlens_base + self.cu_seqlens_q.len() as u32,
            num_updates: part.updates.len() as u32,
            num_merges: laid.merges.len() as u32,
            members_base,
            merges_base,
            updates_base,
            num_copies: copies.len() as u32,
            copies_base,
            num_clears: clears.len() as u32,
            clears_base,
        }
    }

    /// The classes of query tiles of a group, with their offsets in the encoded step.
    pub(super) fn classes(&self, group: usize) -> [TileClass; TILE_CLASSES] {
        let (mut tiles_base, laid) = (self.tiles_base(group), self.parts[group].tiling.laid());
        std::array::from_fn(|class| {
            let num_tiles = laid.tiles[class].len() as u32;
            let base = tiles_base;
            tiles_base += TILE_WORDS * num_tiles;
            TileClass { tiles_base: base, num_tiles, num_items: laid.items[class] }
        })
    }

    /// The copies and clears in the words of a group: those of the first have all, for blocks are whole in every place.
    fn changes(&self, group: usize) -> (&[BlockCopy], &[BlockId]) {
        if group == 0 { (&self.copies, &self.clears) } else { (&[], &[]) }
    }

    fn tiles_base(&self, group: usize) -> u32 {
        let (part, (copies, clears)) = (&self.parts[group], self.changes(group));
        let changes = UPDATE_WORDS as usize * part.updates.len() + COPY_WORDS as usize * copies.len();
        let before = self.positions.len() + part.slots.len() + changes + clears.len() + part.tables.len();
        HEADER_WORDS + before as u32
    }

    /// Adds the words of a group for the device to `out`: header, classes, positions, slots, updates, copies, clears,
    /// inline tables, query tiles, merges, members, first and last rows, positions in time, height and width.
    pub(crate) fn encode(&self, group: usize, out: &mut Vec<u32>) {
        let (part, laid) = (&self.parts[group], self.parts[group].tiling.laid());
        let (copies, clears) = self.changes(group);
        out.extend_from_slice(bytemuck::cast_slice(&[self.header(group)]));
        out.extend_from_slice(bytemuck::cast_slice(&self.classes(group)));
        out.extend_from_slice(bytemuck::cast_slice(&self.positions));
        out.extend_from_slice(&part.slots);
        out.extend_from_slice(bytemuck::cast_slice(&part.updates));
        out.extend_from_slice(bytemuck::cast_slice(copies));
        out.extend_from_slice(bytemuck::cast_slice(clears));
        out.extend_from_slice(&part.tables);
        for tiles in &laid.tiles {
            out.extend_from_slice(bytemuck::cast_slice(tiles));
        }
        out.extend_from_slice(bytemuck::cast_slice(&laid.merges));
        out.extend_from_slice(&laid.members);
        out.extend_from_slice(&self.cu_seqlens_q);
        out.extend_from_slice(&self.last_rows);
        out.extend_from_slice(self.mrope_positions.as_flattened());
    }

    /// Bytes that the words of a group take.
    pub(crate) fn group_bytes(&self, group: usize) -> u64 {
        let behind = self.last_rows.len() + self.mrope_positions.as_flattened().len();
        4 * (u64::from(self.header(group).last_rows_base) + behind as u64)
    }

    /// Bytes that the step sends to the device, for all layers together.
    pub fn upload_bytes(&self) -> u64 {
        (0..self.num_groups).map(|group| self.group_bytes(group)).sum()
    }
}

/// Offset of the inline tables in an encoded step that changes nothing in the resident one.
pub(crate) fn inline_tables_base(rows: u64, slots: u64) -> u32 {
    // `prepare` has seen that it fits.
    (u64::from(HEADER_WORDS) + rows + slots) as u32
}
