//! The append of new K and V: their kernels, rotary embedding and rows in f16 included, and their recording.

use crate::gpu::binding::grid;
use crate::gpu::cache::KvCache;
use crate::gpu::error::{ArgumentError, GpuError};
use crate::gpu::io::{BoundRows, IoSlice, RowShape};
use crate::gpu::kept::GroupParts;
use crate::gpu::kernel::params::{AppendParams, RotateParams};
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::kernel::variant::IoFormat;
use crate::gpu::kernel::{ITEM_LANES, Kernel};
use crate::gpu::make::{BindingKind, Dispatch, DispatchList};
use crate::gpu::ops::rotary::RotarySpec;
use crate::gpu::ops::spec::{AttentionSpec, check_query_heads};
use crate::gpu::pools::pool_buffers;
use crate::gpu::step::Step;
use crate::gpu::value::Identity;
use crate::setters::setters;

/// What an append does to the K and V it is given; the default stores them as they are, from f32.
///
/// Either option works alone; one that is off is not in the kernels at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppendSpec {
    io_format: IoFormat,
    /// Of the queries that are rotated, if any are.
    num_q_heads: Option<u32>,
    rotary: Option<RotarySpec>,
}

impl AppendSpec {
    /// K and V from f32, stored as they are.
    pub fn new() -> Self {
        Self::default()
    }

    /// The append that goes with an attention: K, V and queries are of its type, and the queries that
    /// [`with_rotary`](Self::with_rotary) rotates have its number of heads.
    pub fn for_attention(attention: &AttentionSpec) -> Self {
        Self { io_format: attention.io_format, num_q_heads: Some(attention.num_q_heads), rotary: None }
    }

    setters! {
        /// Sets the type of K, V and the queries. f16 needs `head_dim` and `v_head_dim` to be even.
        with_io_format(io_format: IoFormat);
        /// Rotates K by the positions of its tokens, and the queries with it if the spec is made
        /// [for an attention](Self::for_attention).
        with_rotary(rotary: RotarySpec) => Some(rotary);
    }
}

/// Compiled kernels for an [`AppendSpec`] to the cache that made it.
#[derive(Debug)]
pub struct Appender {
    io_format: IoFormat,
    cache: Identity,
    append: wgpu::ComputePipeline,
    append_io: wgpu::BindGroupLayout,
    /// `[max_seq_len, dims / 2]` cosines and sines.
    rotations: Option<wgpu::Buffer>,
    queries: Option<QueryKernel>,
    dispatches: DispatchList,
}

/// Rotates queries.
#[derive(Debug)]
struct QueryKernel {
    num_q_heads: u32,
    pipeline: wgpu::ComputePipeline,
    io: wgpu::BindGroupLayout,
}

/// The buffers of one layer's append.
#[derive(Clone, Copy, Debug)]
pub struct AppendIo<'a> {
    k: IoSlice<'a>,
    v: IoSlice<'a>,
    /// What is read, and where it goes.
    queries: Option<(IoSlice<'a>, IoSlice<'a>)>,
}

impl<'a> AppendIo<'a> {
    /// Slices, or [`IoSlice`]s with a stride. `k`: `[num_tokens, num_kv_heads, head_dim]`, `v`: `[num_tokens,
    /// num_kv_heads, v_head_dim]`, row-major, both in the spec's type and not yet rotated. Tokens come in the order of
    /// [`StepPlan::slots`](crate::plan::StepPlan::slots): the tokens of the first request, then those of the second,
    /// and so on.
    pub fn new(k: impl Into<IoSlice<'a>>, v: impl Into<IoSlice<'a>>) -> Self {
        Self { k: k.into(), v: v.into(), queries: None }
    }

    /// Queries to be rotated as K is, in slices or [`IoSlice`]s. `q` is read and `rotated` written, both `[num_tokens,
    /// num_q_heads, head_dim]` in the spec's type and without a byte in common; `rotated` is what
    /// [`AttentionIo::new`](crate::gpu::AttentionIo::new) expects as `q`.
    #[must_use]
    pub fn with_queries(mut self, q: impl Into<IoSlice<'a>>, rotated: impl Into<IoSlice<'a>>) -> Self {
        self.queries = Some((q.into(), rotated.into()));
        self
    }
}

impl KvCache {
    /// Makes and compiles the kernels of an append, and computes the rotations of all positions.
    ///
    /// These take `4 · dims` bytes for each of the cache's `max_seq_len` positions; share the appender among all layers
    /// that rotate alike.
    pub fn appender(&self, spec: AppendSpec) -> Result<Appender, GpuError> {
        self.maker.check()?;
        let layout = self.layout();
        spec.io_format.check_dims(layout)?;
        if let Some(num_q_heads) = spec.num_q_heads {
            check_query_heads(num_q_heads, layout)?;
        }
        spec.rotary.as_ref().map_or(Ok(()), |rotary| rotary.check(layout))?;
        let mut kinds = vec![BindingKind::Uniform, BindingKind::Read, BindingKind::Read];
        kinds.extend(spec.rotary.iter().map(|_| BindingKind::Read));
        let append_io = self.maker.layout("paged.append_io", &kinds)?;
        let rotary = spec.rotary.as_ref().map(RotarySpec::shape);
        let kernel = Kernel::KvAppend { kv: KvShape::of(layout), io_format: spec.io_format, rotary };
        let append = self.maker.pipeline(&kernel, &[&self.layouts.step, &self.layouts.pools_append, &append_io])?;
        let rotations = spec.rotary.as_ref().map(|rotary| rotary.rotations(&self.maker, layout, self.profile()));
        Ok(Appender {
            io_format: spec.io_format,
            cache: self.identity().clone(),
            append,
            append_io,
            rotations: rotations.transpose()?,
            queries: self.query_kernel(&spec)?,
            dispatches: DispatchList::default(),
        })
    }

    fn query_kernel(&self, spec: &AppendSpec) -> Result<Option<QueryKernel>, GpuError> {
        let (Some(num_q_heads), Some(rotary)) = (spec.num_q_heads, &spec.rotary) else { return Ok(None) };
        let kinds = [BindingKind::Uniform, BindingKind::Write, BindingKind::Write, BindingKind::Read];
        let io = self.maker.layout("paged.rotate_io", &kinds)?;
        let (head_dim, io_format) = (self.layout().head_dim(), spec.io_format);
        let kernel = Kernel::RotateQueries { head_dim, io_format, rotary: rotary.shape() };
        let pipeline = self.maker.pipeline(&kernel, &[&self.layouts.step, &io])?;
        Ok(Some(QueryKernel { num_q_heads, pipeline, io }))
    }

    /// Records the append of a step's K and V to one layer, and the rotation of its queries.
    ///
    /// [`IoSlice`] tells what the buffers need. Slices that stay the same from step to step cost least: their bind
    /// groups are kept, as [`forget_buffers`](Self::forget_buffers) tells. A token whose slot is
    /// [`SKIP_SLOT`](crate::layout::SKIP_SLOT) is not stored; every query is rotated. [`formats`](crate::formats)
    /// tells, to the bit, what is stored of an element. A token is rotated by its position in its sequence
    /// ([`StepPlan::positions`](crate::plan::StepPlan::positions)), in whichever slot it is stored; one from before the
    /// first of its sequence as if it were the first. What is stored of a rotated element, and the scales of a format,
    /// are those of the rotated K in f32. Queries in f16 are rounded to nearest even.
    pub fn append(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        appender: &Appender,
        step: &Step,
        layer: u32,
        io: AppendIo<'_>,
    ) -> Result<(), GpuError> {
        let step_group = step.enter(self, pass)?;
        let (layout, profile) = (self.layout(), self.profile());
        let head_shards = self.head_shards(layer)?;
        if appender.cache != *self.identity() {
            return Err(ArgumentError::other_cache("appender").into());
        }
        let rotation = appender.rotation(io.queries)?;
        let num_tokens = u64::from(step.num_tokens());
        if num_tokens == 0 {
            return Ok(());
        }
        let per_word = appender.io_format.per_word();
        let rows = |name, io, heads: u32, dim: u32| {
            let shape = RowShape { rows: num_tokens, row: u64::from(heads) * u64::from(dim), per_word, unit: per_word };
            BoundRows::new(name, io, shape, profile)
        };
        let k = rows("k", io.k, layout.num_kv_heads(), layout.head_dim())?;
        let v = rows("v", io.v, layout.num_kv_heads(), layout.v_head_dim())?;
        let pools = pool_buffers(head_shards);
        k.check_no_pool(pools.clone())?;
        v.check_no_pool(pools.clone())?;
        // They take the place of a second V where nothing is rotated, and then no kernel binds them.
        let rotations = appender.rotations.as_ref().map_or(v.binding.clone(), wgpu::Buffer::as_entire_buffer_binding);
        let ranges = [k.binding.clone(), v.binding.clone(), rotations.clone()];
        let num_ranges = if appender.rotations.is_some() { 3 } else { 2 };
        let mut dispatches = appender.dispatches.take();
        for head_shard in head_shards {
            let kv_rows = num_tokens * u64::from(head_shard.num_heads);
            let grid = grid(kv_rows * u64::from(KvShape::of(layout).row_lanes()), ITEM_LANES, profile)?;
            let params = AppendParams {
                first_kv_head: head_shard.first_head,
                num_kv_heads: head_shard.num_heads,
                k_base: k.base,
                k_stride: k.stride,
                v_base: v.base,
                v_stride: v.stride,
                ..Default::default()
            };
            let io = self.io_group(
                step.number,
                &GroupParts {
                    label: "paged.append_io",
                    layout: &appender.append_io,
                    params: bytemuck::bytes_of(&params),
                    ranges: &ranges[..num_ranges],
                },
            )?;
            dispatches.push(Dispatch::new(&appender.append, [step_group, &head_shard.write, &io], grid));
        }
        if let Some((kernel, q, rotated)) = rotation {
            let q = rows("q", q, kernel.num_q_heads, layout.head_dim())?;
            let rotated = rows("rotated", rotated, kernel.num_q_heads, layout.head_dim())?;
            q.check_apart(&rotated)?;
            q.check_no_pool(pools.clone())?;
            rotated.check_no_pool(pools)?;
            let params = RotateParams {
                num_q_heads: kernel.num_q_heads,
                q_base: q.base,
                q_stride: q.stride,
                rotated_base: rotated.base,
                rotated_stride: rotated.stride,
                ..Default::default()
            };
            let words = num_tokens * u64::from(kernel.num_q_heads) * u64::from(layout.head_dim() / per_word);
            let io = self.io_group(
                step.number,
                &GroupParts {
                    label: "paged.rotate_io",
                    layout: &kernel.io,
                    params: bytemuck::bytes_of(&params),
                    ranges: &[q.binding, rotated.binding, rotations],
                },
            )?;
            dispatches.push(Dispatch::new(&kernel.pipeline, [step_group, &io], grid(words, ITEM_LANES, profile)?));
        }
        appender.dispatches.record(pass, dispatches);
        Ok(())
    }
}

impl Appender {
    /// The kernel for the queries of an append, with what it reads and writes.
    fn rotation<S>(&self, queries: Option<(S, S)>) -> Result<Option<(&QueryKernel, S, S)>, ArgumentError> {
        let Some((q, rotated)) = queries else { return Ok(None) };
        match &self.queries {
            Some(kernel) => Ok(Some((kernel, q, rotated))),
            None if self.rotations.is_none() => Err(ArgumentError::new(
                "queries",
                "were given, but the append rotates nothing; give them to the attention as they are",
            )),
            None => Err(ArgumentError::new(
                "queries",
                "were given, but the spec names no query heads; make it with AppendSpec::for_attention",
            )),
        }
    }
}
