//! A step on the device: its words, and what they ask of the kernels.

use std::sync::Arc;

use super::arena::Lease;
use super::error::ArgumentError;
use super::value::Identity;
use crate::plan::{StepPlan, TILE_CLASSES, TableSource};

/// A step whose words are on their way to the device; serves all layers of the cache that began it.
///
/// What was recorded from it stays right when it is dropped.
#[derive(Debug)]
pub struct Step {
    lease: Arc<Lease>,
    cache: Identity,
    source: TableSource,
    pub(super) num_rows: u32,
    pub(super) num_tokens: u32,
    pub(super) classes: [ClassWork; TILE_CLASSES],
    pub(super) num_merges: u32,
    pub(super) num_records: u32,
    pub(super) max_splits_per_row: u32,
    /// Keys of the shortest split.
    pub(super) split_tokens: u32,
}

/// What a step asks of the kernel for one class of query tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClassWork {
    pub(super) num_tiles: u32,
    pub(super) num_items: u32,
    pub(super) max_tile_items: u32,
    has_shared_tiles: bool,
    pub(super) max_item_keys: u32,
}

impl ClassWork {
    /// The most splits of a tile of `tile_tokens` in which a causal window of `window` keys shows one.
    pub(super) fn window_splits(&self, tile_tokens: u32, window: u32, split_tokens: u32) -> u32 {
        if self.has_shared_tiles {
            // Their members stand at places of their own.
            return self.max_tile_items;
        }
        // Neighbours see so many keys together, which may begin anywhere in a split.
        let keys = u64::from(window) + u64::from(tile_tokens) - 1;
        (keys.div_ceil(split_tokens.into()) + 1).min(self.max_tile_items.into()) as u32
    }
}

impl Step {
    pub(super) fn new(plan: &StepPlan, lease: Arc<Lease>, cache: Identity) -> Self {
        Self {
            lease,
            cache,
            source: plan.table_source(),
            num_rows: plan.num_rows(),
            num_tokens: plan.num_tokens(),
            classes: std::array::from_fn(|class| ClassWork {
                num_tiles: plan.tiles(class).len() as u32,
                num_items: plan.num_items(class),
                max_tile_items: plan.max_tile_items(class),
                has_shared_tiles: plan.has_shared_tiles(class),
                max_item_keys: plan.max_item_keys(class),
            }),
            num_merges: plan.merges().len() as u32,
            num_records: plan.num_records(),
            max_splits_per_row: plan.max_splits_per_row(),
            split_tokens: plan.schedule().split_tokens.min(plan.schedule().chunk_split_tokens),
        }
    }

    /// Keeps the step's words until what `pass` recorded has run, or was dropped.
    pub(super) fn keep(&self, pass: &wgpu::ComputePass<'_>) {
        let in_flight = Arc::clone(&self.lease);
        pass.on_submitted_work_done(move || drop(in_flight));
    }

    /// Query tokens: rows of the output.
    pub fn num_rows(&self) -> u32 {
        self.num_rows
    }

    /// Tokens to append: rows of K and V.
    pub fn num_tokens(&self) -> u32 {
        self.num_tokens
    }

    /// Bind group 0, for the cache that began the step.
    pub(super) fn bind_group(&self, cache: &Identity) -> Result<&wgpu::BindGroup, ArgumentError> {
        let arena = self.lease.arena().filter(|_| self.cache == *cache);
        let arena = arena.ok_or_else(|| ArgumentError::other_cache("step"))?;
        Ok(match self.source {
            TableSource::Resident => &arena.resident,
            TableSource::Inline => &arena.inline,
        })
    }
}
