//! What tests look at in a plan.

use crate::plan::{Merge, QueryTile, StepPlan};

impl StepPlan {
    /// The query tiles of class `class`, as far as there are any; none beyond [`TILE_CLASSES`](crate::plan::TILE_CLASSES).
    pub fn tiles(&self, class: usize) -> &[QueryTile] {
        self.groups()[0].tiling.laid().tiles.get(class).map_or(&[], Vec::as_slice)
    }

    /// The rows of all query tiles; see [`QueryTile::first_member`].
    pub fn members(&self) -> &[u32] {
        &self.groups()[0].tiling.laid().members
    }

    /// The queries whose results may be merged from partials.
    pub fn merges(&self) -> &[Merge] {
        &self.groups()[0].tiling.laid().merges
    }

    /// The tables that travel with the step; [`QueryTile::table_base`] counts from the start of the encoded words.
    pub fn inline_tables(&self) -> &[u32] {
        &self.groups()[0].tables
    }

    /// Replaces `out` by the words of the first group for the device.
    pub fn words(&self, out: &mut Vec<u32>) {
        self.group_words(0, out);
    }

    /// The same of any group.
    pub fn group_words(&self, group: usize, out: &mut Vec<u32>) {
        out.clear();
        self.encode(group, out);
    }
}
