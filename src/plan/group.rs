//! What a step is to the layers of one group: its slots, what changes in their tables, and how their work is cut.

use std::collections::TryReserveError;

use super::reach::Reach;
use super::tiling::Tiling;
use super::words::TableUpdate;

/// The part of a [`StepPlan`](super::StepPlan) that belongs to one table; [`StepPlan::groups`](super::StepPlan::groups) has
/// one for each group of layers.
#[derive(Clone, Debug, Default)]
pub struct GroupPlan {
    pub(crate) slots: Vec<u32>,
    pub(crate) updates: Vec<TableUpdate>,
    /// Block tables, used columns only; empty unless they travel with the step.
    pub(crate) tables: Vec<u32>,
    pub(crate) tiling: Tiling,
}

impl GroupPlan {
    /// The slot of every token to append, in the order of its K and V rows;
    /// [`SKIP_SLOT`](crate::layout::SKIP_SLOT) for padding.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Entries of the group's resident table that the device does not have yet.
    pub fn updates(&self) -> &[TableUpdate] {
        &self.updates
    }

    /// Work items of a class: the splits of its tiles. A sequence without keys has one as well, which writes its zeros.
    pub(crate) fn num_items(&self, class: usize) -> u32 {
        self.tiling.laid().items.get(class).copied().unwrap_or(0)
    }

    /// What the queries of every tile of a class can see.
    pub(crate) fn reaches(&self, class: usize) -> &[Reach] {
        self.tiling.laid().reaches.get(class).map_or(&[], Vec::as_slice)
    }

    /// What the queries that may be merged can see.
    pub(crate) fn merge_reaches(&self) -> &[Reach] {
        &self.tiling.laid().merge_reaches
    }

    /// The most keys of a work item of a class.
    pub(crate) fn max_item_keys(&self, class: usize) -> u32 {
        self.tiling.laid().max_item_keys.get(class).copied().unwrap_or(0)
    }

    /// Queries whose results may be merged from partials.
    pub(crate) fn num_merges(&self) -> u32 {
        self.tiling.laid().merges.len() as u32
    }

    /// Partial results, one per query and split of the query tiles that leave them.
    pub(crate) fn num_partials(&self) -> u32 {
        self.tiling.laid().num_partials
    }

    /// Splits of the longest row that is merged; 0 if none is.
    pub(crate) fn max_splits_per_row(&self) -> u32 {
        self.tiling.laid().max_splits
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.updates.clear();
        self.tables.clear();
        self.tiling.clear();
    }

    pub(super) fn try_reserve(
        &mut self,
        rows: usize,
        slots: usize,
        updates: usize,
        tables: usize,
    ) -> Result<(), TryReserveError> {
        self.slots.try_reserve(slots)?;
        self.updates.try_reserve(updates)?;
        self.tables.try_reserve(tables)?;
        self.tiling.try_reserve(rows)
    }
}
