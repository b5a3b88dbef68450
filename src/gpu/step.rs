//! A step on the device: its words, and what they ask of the kernels.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::arena::Arena;
use super::cache::{KvCache, Shrinks};
use super::error::{ArgumentError, GpuError};
use super::mix::Mix;
use super::value::Identity;
use super::work::StepWork;
use crate::layout::KvLayout;
use crate::plan::TableSource;

/// A step whose words are on their way to the device; serves all layers of the cache that began it.
///
/// What was recorded from it stays right when it is dropped.
#[derive(Debug)]
pub struct Step {
    arena: Arc<Arena>,
    cache: Identity,
    layout: KvLayout,
    /// Of the cache when the step was begun: while it has not shrunk since, it has all blocks that the step names.
    shrinks: Shrinks,
    /// Counts the steps of the cache.
    pub(super) number: u64,
    /// The pass that was entered last, by its hash.
    entered: AtomicU64,
}

impl Step {
    pub(super) fn new(arena: Arc<Arena>, cache: &KvCache, number: u64) -> Self {
        let (layout, shrinks) = (cache.layout().clone(), cache.shrinks());
        Self { arena, cache: cache.identity().clone(), layout, shrinks, number, entered: AtomicU64::new(0) }
    }

    /// What it asks of the kernels of a group.
    pub(super) fn work(&self, group: usize) -> &StepWork {
        &self.arena.parts[group].work
    }

    /// Bind group 0 of a group of layers.
    pub(super) fn bind_group(&self, group: usize) -> &wgpu::BindGroup {
        let part = &self.arena.parts[group];
        match part.work.source {
            TableSource::Resident => &part.resident,
            TableSource::Inline => &part.inline,
        }
    }

    /// Query tokens: rows of the output.
    pub fn num_rows(&self) -> u32 {
        self.work(0).num_rows
    }

    /// Tokens to append: rows of K and V.
    pub fn num_tokens(&self) -> u32 {
        self.work(0).num_tokens
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
    /// | 3 | requests, or sequences of [`plan_tables`](crate::plan::StepPlan::plan_tables), those without tokens included |
    /// | 4 | requests that have rows |
    /// | 5 | where `[rows]` [positions](crate::plan::StepPlan::positions) begin, i32 |
    /// | 6 | where `[tokens]` [slots](crate::plan::StepPlan::slots) begin |
    /// | 7 | where `[requests + 1]` [`cu_seqlens_q`](crate::plan::StepPlan::cu_seqlens_q) begin |
    /// | 8 | where `[requests that have rows]` [last rows](crate::plan::StepPlan::last_rows) begin |
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
    ///
    /// Where layers form [groups](KvLayout::groups), these are the words of the first; only the slots of the others differ,
    /// which [`words_of`](Self::words_of) has.
    pub fn words(&self) -> wgpu::BufferBinding<'_> {
        self.group_words(0)
    }

    /// The [words](Self::words) of the group that serves a layer; `None` if there is no such layer.
    pub fn words_of(&self, layer: u32) -> Option<wgpu::BufferBinding<'_>> {
        self.layout.place(layer).map(|at| self.group_words(at.group))
    }

    fn group_words(&self, group: usize) -> wgpu::BufferBinding<'_> {
        let part = &self.arena.parts[group];
        wgpu::BufferBinding { buffer: &part.words, offset: 0, size: wgpu::BufferSize::new(part.work.bytes) }
    }

    /// Keeps the step's words until what `pass` recorded has run, or was dropped.
    pub fn keep(&self, pass: &wgpu::ComputePass<'_>) {
        let in_flight = Arc::clone(&self.arena);
        pass.on_submitted_work_done(move || drop(in_flight));
    }

    /// Refuses a call that is not of the cache that began the step. The first call in a pass asks whether the device is lost or
    /// a layer's pools are, and keeps the step's words until what the pass recorded has run, or was dropped.
    pub(super) fn enter(&self, cache: &KvCache, pass: &wgpu::ComputePass<'_>) -> Result<(), GpuError> {
        // A pass has a number of its own, which only a hasher gets to see.
        let mut hasher = Mix::default();
        pass.hash(&mut hasher);
        let pass_hash = hasher.finish();
        if self.entered.load(Ordering::Relaxed) != pass_hash {
            cache.check()?;
            self.keep(pass);
            self.entered.store(pass_hash, Ordering::Relaxed);
        }
        if self.cache != *cache.identity() {
            return Err(ArgumentError::other_cache("step").into());
        }
        let now = cache.shrinks();
        if self.shrinks != now {
            let problem = format!(
                "was begun before the cache shrank from {} blocks to {}; begin it again, or shrink the cache after its last \
                 append and attend",
                now.from, now.to
            );
            return Err(ArgumentError::new("step", problem).into());
        }
        Ok(())
    }
}
