//! A step on the device: its words, and what they ask of the kernels.

use std::sync::Arc;

use super::arena::Arena;
use super::error::ArgumentError;
use super::value::Identity;
use crate::plan::reach::Reach;
use crate::plan::{StepPlan, TILE_CLASSES, TableSource};
use crate::setters::options;

/// A step whose words are on their way to the device; serves all layers of the cache that began it.
///
/// What was recorded from it stays right when it is dropped.
#[derive(Debug)]
pub struct Step {
    arena: Arc<Arena>,
    cache: Identity,
    source: TableSource,
    bytes: u64,
    pub(super) num_rows: u32,
    pub(super) num_tokens: u32,
    pub(super) classes: [ClassWork; TILE_CLASSES],
    pub(super) num_merges: u32,
    merge_reaches: Vec<Reach>,
    pub(super) num_partials: u32,
    pub(super) max_splits_per_row: u32,
}

/// What a step asks of the kernel for one class of query tiles.
#[derive(Clone, Debug)]
pub(super) struct ClassWork {
    pub(super) num_items: u32,
    pub(super) max_item_keys: u32,
    /// Of every tile.
    pub(super) reaches: Vec<Reach>,
}

impl ClassWork {
    pub(super) fn num_tiles(&self) -> u32 {
        self.reaches.len() as u32
    }

    /// The splits of the tile that sees most of them, and the keys of the one that sees most of those. A tile that sees
    /// none has one split all the same, which writes zeros.
    pub(super) fn seen(&self, causal: bool, window: u32) -> (u32, u32) {
        let most = |of: &dyn Fn(&Reach) -> u32| self.reaches.iter().map(of).max().unwrap_or(0);
        let splits = most(&|reach| reach.splits(causal, Some(window)));
        let keys = most(&|reach| reach.seen(causal, Some(window)).len() as u32);
        (splits.max(1), keys.max(1))
    }
}

impl Step {
    pub(super) fn new(plan: &StepPlan, arena: Arc<Arena>, cache: Identity) -> Self {
        Self {
            arena,
            cache,
            source: plan.table_source(),
            bytes: plan.upload_bytes(),
            num_rows: plan.num_rows(),
            num_tokens: plan.num_tokens(),
            classes: std::array::from_fn(|class| ClassWork {
                num_items: plan.num_items(class),
                max_item_keys: plan.max_item_keys(class),
                reaches: plan.reaches(class).to_vec(),
            }),
            num_merges: plan.num_merges(),
            merge_reaches: plan.merge_reaches().to_vec(),
            num_partials: plan.num_partials(),
            max_splits_per_row: plan.max_splits_per_row(),
        }
    }

    /// Whether a query sees more than one split: then there are partials to merge.
    pub(super) fn has_merges(&self, causal: bool, window: Option<u32>) -> bool {
        self.merge_reaches.iter().any(|reach| !reach.is_one_split(causal, window))
    }

    /// The step's words on the device, which the engine's own kernels may read: `array<u32>`, a storage buffer that is bound
    /// read-only. They are there for whatever is recorded after [`KvCache::begin_step`](super::KvCache::begin_step).
    ///
    /// This is version 1 of them, [`STEP_WORDS_VERSION`](crate::plan::STEP_WORDS_VERSION). Where an array begins is counted in
    /// words from the start; words and arrays that are not named here are the library's own.
    ///
    /// | word | holds |
    /// |---|---|
    /// | 0 | the version |
    /// | 1 | rows: query tokens of the step |
    /// | 2 | tokens to append |
    /// | 3 | requests, or sequences of [`plan_tables`](StepPlan::plan_tables), those without tokens included |
    /// | 4 | requests that have rows |
    /// | 5 | where `[rows]` [positions](StepPlan::positions) begin, i32 |
    /// | 6 | where `[tokens]` [slots](StepPlan::slots) begin |
    /// | 7 | where `[requests + 1]` [`cu_seqlens_q`](StepPlan::cu_seqlens_q) begin |
    /// | 8 | where `[requests that have rows]` [last rows](StepPlan::last_rows) begin |
    ///
    /// ```wgsl
    /// @group(0) @binding(0) var<storage, read> step: array<u32>;
    ///
    /// fn last_row(request: u32) -> u32 { return step[step[8] + request]; }
    /// fn position(row: u32) -> i32 { return bitcast<i32>(step[step[5] + row]); }
    /// ```
    ///
    /// The buffer is used again for later steps, but not before this one is dropped and the encoders and passes that it was
    /// recorded into have run; [`keep`](Self::keep) it for a pass that reads the words and into which nothing else of the step
    /// is recorded.
    pub fn words(&self) -> wgpu::BufferBinding<'_> {
        wgpu::BufferBinding { buffer: &self.arena.words, offset: 0, size: wgpu::BufferSize::new(self.bytes) }
    }

    /// Keeps the step's words until what `pass` recorded has run, or was dropped.
    pub fn keep(&self, pass: &wgpu::ComputePass<'_>) {
        let in_flight = Arc::clone(&self.arena);
        pass.on_submitted_work_done(move || drop(in_flight));
    }

    options! {
        /// Query tokens: rows of the output.
        num_rows: u32;
        /// Tokens to append: rows of K and V.
        num_tokens: u32;
    }

    /// Bind group 0, for the cache that began the step.
    pub(super) fn bind_group(&self, cache: &Identity) -> Result<&wgpu::BindGroup, ArgumentError> {
        if self.cache != *cache {
            return Err(ArgumentError::other_cache("step"));
        }
        Ok(match self.source {
            TableSource::Resident => &self.arena.resident,
            TableSource::Inline => &self.arena.inline,
        })
    }
}
