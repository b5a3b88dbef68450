//! Attention over the cache: the kernels of an [`AttentionSpec`] and their recording.

use std::sync::{Mutex, PoisonError};

use crate::gpu::binding::{element_bytes, grid};
use crate::gpu::cache::KvCache;
use crate::gpu::error::{ArgumentError, DeviceError, GpuError};
use crate::gpu::group::LayerShape;
use crate::gpu::io::{BoundRows, IoSlice, RowShape};
use crate::gpu::kept::GroupParts;
use crate::gpu::kernel::Kernel;
use crate::gpu::kernel::params::{AttentionParams, MergeParams};
use crate::gpu::make::{BindingKind, Dispatch, DispatchList};
use crate::gpu::ops::class_kernel::{ClassKernel, class_kernels};
use crate::gpu::ops::spec::AttentionSpec;
use crate::gpu::parallel;
use crate::gpu::pools::{HeadShard, pool_buffers};
use crate::gpu::step::Step;
use crate::gpu::value::Identity;
use crate::gpu::work::StepWork;
use crate::layout::KvLayout;
use crate::plan::TILE_CLASSES;

/// Compiled kernels for an [`AttentionSpec`] over the cache that made it.
#[derive(Debug)]
pub struct Attention {
    spec: AttentionSpec,
    cache: Identity,
    shape: LayerShape,
    classes: [ClassKernel; TILE_CLASSES],
    attention_io: wgpu::BindGroupLayout,
    /// Of every head shard, for dispatches that begin with the first work item.
    attention_params: Vec<AttentionParams>,
    head_terms: wgpu::Buffer,
    merge: wgpu::ComputePipeline,
    merge_io: wgpu::BindGroupLayout,
    merge_params: MergeParams,
    /// Stands where the log-sum-exp is not wanted.
    no_lse: wgpu::Buffer,
    /// Partial results of split rows; grows to what the largest step needed.
    scratch: Mutex<wgpu::Buffer>,
    dispatches: DispatchList,
}

/// The buffers of one layer's attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionIo<'a> {
    q: IoSlice<'a>,
    out: IoSlice<'a>,
    lse: Option<wgpu::BufferSlice<'a>>,
}

impl<'a> AttentionIo<'a> {
    /// Slices, or [`IoSlice`]s with a stride. `q`, read: `[num_rows, num_q_heads, head_dim]`, row-major, in the spec's
    /// type. `out`, written: `[num_rows, num_q_heads, v_head_dim]` of the same type, every row, also one without a key,
    /// which becomes zeros. Rows come in the order of [`StepPlan::positions`](crate::plan::StepPlan::positions): the
    /// tokens of the first request, then those of the second, and so on.
    pub fn new(q: impl Into<IoSlice<'a>>, out: impl Into<IoSlice<'a>>) -> Self {
        Self { q: q.into(), out: out.into(), lse: None }
    }

    /// `[num_rows, num_q_heads]` f32 without gaps, from any word on, written by an attention whose spec [asks for
    /// it](AttentionSpec::with_lse): natural logarithm, −∞ for a row without a key.
    #[must_use]
    pub fn with_lse(mut self, lse: wgpu::BufferSlice<'a>) -> Self {
        self.lse = Some(lse);
        self
    }
}

impl KvCache {
    /// Makes the kernels of an attention and compiles those of a decoding step; [`Attention::warm_up`] compiles the rest.
    ///
    /// They serve all layers of the shape that the spec's [layer](AttentionSpec::with_layer) has: as many KV heads, as wide.
    ///
    /// # Errors
    /// [`GpuError::Spec`] for a spec that contradicts itself, the cache or the device, also for a window that is wider than
    /// what any layer of the shape keeps; [`GpuError::Argument`] for a layer that does not exist; [`GpuError::Device`].
    pub fn attention(&self, spec: AttentionSpec) -> Result<Attention, GpuError> {
        use BindingKind::{Read, Uniform, Write};
        self.maker.check()?;
        let served = self.layer(spec.layer)?;
        let (maker, layout, profile) = (&self.maker, served.layout, self.profile());
        spec.check(layout)?;
        let (shape, variant) = (LayerShape::of(layout), spec.variant());
        let alike = |group: &&KvLayout| LayerShape::of(group) == shape;
        if !self.layout().groups().iter().filter(alike).any(|group| spec.check_window(spec.layer, group).is_ok()) {
            spec.check_window(spec.layer, layout)?;
        }
        let queries = if spec.shared_buffers { Write } else { Read };
        let attention_io = maker.layout("paged.attention_io", &[Uniform, queries, Write, Write, Write, Uniform])?;
        let merge_io = maker.layout("paged.merge_io", &[Uniform, Read, Write, Write, Uniform])?;
        let classes = class_kernels(profile, layout, &spec);
        let merge = Kernel::MergePartials { v_head_dim: shape.kv.v_head_dim, variant };
        let (query_factor, score_factor) = spec.factors(layout);
        let window = spec.window.unwrap_or(0).min(crate::config::MAX_SEQ_LEN);
        let new_params = |head_shard: &HeadShard| AttentionParams {
            query_factor,
            score_factor,
            window,
            first_kv_head: head_shard.first_head,
            num_kv_heads: head_shard.num_heads,
            num_q_heads: spec.num_q_heads,
            ..Default::default()
        };
        let merge_params = MergeParams { num_q_heads: spec.num_q_heads, window, ..Default::default() };
        let (storage, uniform) = (wgpu::BufferUsages::STORAGE, wgpu::BufferUsages::UNIFORM);
        let attention = Attention {
            cache: self.identity().clone(),
            shape,
            classes,
            attention_params: served.head_shards.iter().map(new_params).collect(),
            head_terms: maker.filled("paged.head_terms", uniform, bytemuck::cast_slice(&spec.head_terms()))?,
            merge: maker.pipeline(&merge, &[&self.layouts.step, &merge_io])?,
            attention_io,
            merge_io,
            merge_params,
            no_lse: maker.buffer("paged.no_lse", storage, 256)?,
            scratch: Mutex::new(maker.buffer("paged.partials", storage, 256)?),
            dispatches: DispatchList::default(),
            spec,
        };
        attention.warm_up(self, 1)?;
        Ok(attention)
    }

    /// Records the attention of a step's rows over one layer: its query tiles, and the merge of rows that were split.
    ///
    /// Rows appended by the same step are seen if [`append`](Self::append) was recorded before. A kernel that was not
    /// warmed up is compiled here. Slices that stay the same from step to step cost least: their bind groups are kept, as
    /// [`forget_buffers`](Self::forget_buffers) tells.
    ///
    /// # Errors
    /// [`GpuError::Argument`] for a layer that does not exist or has another shape than the attention was made for, and for
    /// buffers that do not fit; [`GpuError::Spec`] for a layer whose window is narrower than the attention's, because the
    /// blocks in between may be others'; [`GpuError::Plan`] or [`GpuError::Device`].
    pub fn attend(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        attention: &Attention,
        step: &Step,
        layer: u32,
        io: AttentionIo<'_>,
    ) -> Result<(), GpuError> {
        step.enter(self, pass)?;
        let served = self.layer(layer)?;
        attention.check_cache(self)?;
        served.check_shape(layer, "attention", &attention.shape)?;
        attention.spec.check_window(layer, served.layout)?;
        let (profile, head_shards) = (self.profile(), served.head_shards);
        let (step_group, work) = (step.bind_group(served.group), step.work(served.group));
        match (io.lse.is_some(), attention.spec.lse) {
            (false, true) => return Err(ArgumentError::new("lse", "is missing, but the attention writes it").into()),
            (true, false) => {
                let problem = "was given, but the attention does not write it; make it with AttentionSpec::with_lse";
                return Err(ArgumentError::new("lse", problem).into());
            }
            _ => {}
        }
        if work.num_rows == 0 {
            return Ok(());
        }
        attention.check_loops(self, work)?;

        let (q, out, lse) = attention.bind_io(self, work, &io)?;
        let pools = pool_buffers(head_shards);
        for rows in [&q, &out].into_iter().chain(&lse) {
            rows.check_no_pool(pools.clone())?;
        }
        let lse_base = lse.as_ref().map_or(0, |lse| lse.base);
        let lse = lse.map_or_else(|| attention.no_lse.as_entire_buffer_binding(), |lse| lse.binding);
        let has_merges = work.has_merges(attention.spec.causal, attention.spec.window);
        let partials = attention.partials(self, if has_merges { work.num_partials } else { 0 })?;
        let partials = partials.as_entire_buffer_binding();
        let terms = attention.head_terms.as_entire_buffer_binding();

        let ranges = [q.binding, out.binding.clone(), lse.clone(), partials.clone(), terms.clone()];
        let mut dispatches = attention.dispatches.take();
        for (head_shard, params) in head_shards.iter().zip(&attention.attention_params) {
            for (class, work) in attention.classes.iter().zip(&work.classes).filter(|(_, work)| work.num_items > 0) {
                let pipeline = class.pipeline(self, &attention.attention_io)?;
                for dispatch in class.grids(profile, &attention.spec, work, head_shard.num_heads)? {
                    let (first_item, grid) = dispatch?;
                    let (q_base, q_stride, out_base, out_stride) = (q.base, q.stride, out.base, out.stride);
                    let params =
                        AttentionParams { first_item, q_base, q_stride, out_base, out_stride, lse_base, ..*params };
                    let parts = GroupParts {
                        label: "paged.attention_io",
                        layout: &attention.attention_io,
                        params: bytemuck::bytes_of(&params),
                        ranges: &ranges,
                    };
                    let io = self.io_group(step.number, &parts)?;
                    dispatches.push(Dispatch::new(&pipeline, [step_group, &head_shard.read, &io], grid));
                }
            }
        }
        if has_merges {
            let params = MergeParams { out_base: out.base, out_stride: out.stride, lse_base, ..attention.merge_params };
            let parts = GroupParts {
                label: "paged.merge_io",
                layout: &attention.merge_io,
                params: bytemuck::bytes_of(&params),
                ranges: &[partials, out.binding, lse, terms],
            };
            let io = self.io_group(step.number, &parts)?;
            let grid = grid(u64::from(work.num_merges) * u64::from(attention.spec.num_q_heads), 1, profile)?;
            dispatches.push(Dispatch::new(&attention.merge, [step_group, &io], grid));
        }
        attention.dispatches.record(pass, dispatches);
        Ok(())
    }
}

impl Attention {
    /// What it computes.
    pub fn spec(&self) -> &AttentionSpec {
        &self.spec
    }

    /// Compiles the kernels for all steps in which no query tile has more than `max_queries` tokens, so that no token waits
    /// for it: side by side, on threads that end before it returns, as many as the host has cores. Sequences that share their
    /// first blocks meet in tiles of up to [`MAX_TILE_TOKENS`](crate::plan::MAX_TILE_TOKENS): with that number everything is
    /// compiled. What blocks need that are shared or cleared, [`KvCache::warm_up`] compiles.
    pub fn warm_up(&self, cache: &KvCache, max_queries: u32) -> Result<(), GpuError> {
        cache.maker.check()?;
        self.check_cache(cache)?;
        // The widest tiles take longest, so they come first.
        let schedule = cache.schedule();
        let classes = self.classes.iter().enumerate().rev().filter(|(class, _)| schedule.needs(*class, max_queries));
        let classes: Vec<_> = classes.map(|(_, class)| class).collect();
        parallel::for_each(&classes, |class| class.pipeline(cache, &self.attention_io).map(drop))?;
        // Every step may change a table.
        cache.table_update()?;
        Ok(())
    }

    /// Checks and binds the caller's buffers of a call: queries, outputs, and the log-sum-exp if it is written.
    #[allow(clippy::type_complexity, reason = "three of one kind")]
    fn bind_io<'a>(
        &self,
        cache: &KvCache,
        work: &StepWork,
        io: &AttentionIo<'a>,
    ) -> Result<(BoundRows<'a>, BoundRows<'a>, Option<BoundRows<'a>>), GpuError> {
        let (spec, kv, profile) = (&self.spec, self.shape.kv, cache.profile());
        let (rows, heads) = (u64::from(work.num_rows), u64::from(spec.num_q_heads));
        let bind = |name, io, dim: u32| {
            let (per_word, unit) = (spec.io_format.per_word(), spec.io_unit(dim));
            BoundRows::new(name, io, RowShape { rows, row: heads.saturating_mul(dim.into()), per_word, unit }, profile)
        };
        let (q, out) = (bind("q", io.q, kv.head_dim)?, bind("out", io.out, kv.v_head_dim)?);
        let shape = RowShape { rows: 1, row: rows * heads, per_word: 1, unit: 1 };
        let lse = io.lse.map(|lse| BoundRows::new("lse", lse.into(), shape, profile)).transpose()?;
        for written in [&out].into_iter().chain(&lse) {
            match spec.shared_buffers {
                true => q.check_apart(written)?,
                false => q.check_other_buffer(written, ", or make the spec with_shared_buffers")?,
            }
        }
        lse.iter().try_for_each(|lse| out.check_apart(lse))?;
        Ok((q, out, lse))
    }

    fn check_cache(&self, cache: &KvCache) -> Result<(), ArgumentError> {
        if self.cache == *cache.identity() { Ok(()) } else { Err(ArgumentError::other_cache("attention")) }
    }

    /// Refuses a step whose loops the device would end before they are done.
    fn check_loops(&self, cache: &KvCache, step: &StepWork) -> Result<(), DeviceError> {
        let merge_passes = u64::from(self.shape.kv.v_head_dim.div_ceil(32)) + 2;
        let merge = (u64::from(step.max_splits_per_row) + 1) * (merge_passes + 1);
        let classes = self.classes.iter().zip(&step.classes).filter(|(_, work)| work.num_items > 0);
        let rounds = classes.map(|(class, work)| class.shape.loop_rounds(work.max_item_keys, work.num_tiles()));
        let (rounds, limit) = (rounds.fold(merge, u64::max), cache.profile().max_loop_rounds);
        if rounds > limit.into() { Err(DeviceError::LoopRounds { rounds, limit }) } else { Ok(()) }
    }

    /// Scratch for the partial results of a step. An earlier, smaller buffer lives on in the bind groups that use it.
    fn partials(&self, cache: &KvCache, num_partials: u32) -> Result<wgpu::Buffer, DeviceError> {
        // Values, filled up to whole vec4s, and a vec4 for the softmax state: shaders/common/partials.wgsl.
        let partial = 4 * (u64::from(self.shape.kv.v_head_dim).div_ceil(4) + 1);
        let elements = u64::from(num_partials) * u64::from(self.spec.num_q_heads) * partial;
        let bytes = element_bytes("the partial results", elements, cache.profile())?;
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if scratch.size() < bytes {
            let bytes = cache.profile().roomy_bytes(bytes);
            *scratch = cache.maker.buffer("paged.partials", wgpu::BufferUsages::STORAGE, bytes)?;
        }
        Ok(scratch.clone())
    }
}
