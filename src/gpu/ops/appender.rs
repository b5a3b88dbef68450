//! An append that does more than store f32 rows: rotary embedding of K and of the queries, and rows in f16.

use crate::gpu::binding::{check_disjoint, grid, storage_binding};
use crate::gpu::cache::{Identity, KvCache, pool_buffers, uniform};
use crate::gpu::error::GpuError;
use crate::gpu::kernel::params::RotateParams;
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::kernel::variant::IoFormat;
use crate::gpu::kernel::{Kernel, ROTATE_LANES};
use crate::gpu::ops::append::record_append;
use crate::gpu::ops::rotary::RotarySpec;
use crate::gpu::pipeline::{BindingKind, bind_group, bind_group_layout, compile};
use crate::gpu::scope::scoped;
use crate::gpu::step::Step;

/// What an append does to the rows it is given; the default is f32 rows, stored as they are.
///
/// Either option works alone; one that is off is not in the kernels at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppendSpec {
    /// The type of K, V and the queries. f16 needs `head_dim` and `v_head_dim` to be even.
    pub io_format: IoFormat,
    /// Rotary position embedding of K and of the queries.
    pub rotary: Option<RotarySpec>,
}

impl AppendSpec {
    /// Rows in f32, stored as they are.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the type of K, V and the queries.
    #[must_use]
    pub fn with_io_format(mut self, io_format: IoFormat) -> Self {
        self.io_format = io_format;
        self
    }

    /// Rotates K and the queries by their positions.
    #[must_use]
    pub fn with_rotary(mut self, rotary: RotarySpec) -> Self {
        self.rotary = Some(rotary);
        self
    }
}

/// Compiled kernels for an [`AppendSpec`] to the cache that made it.
#[derive(Debug)]
pub struct Appender {
    spec: AppendSpec,
    cache: Identity,
    append: wgpu::ComputePipeline,
    append_io: wgpu::BindGroupLayout,
    rotary: Option<Rotary>,
}

#[derive(Debug)]
struct Rotary {
    num_q_heads: u32,
    /// `[max_seq_len, dims / 2]` cosines and sines.
    rotations: wgpu::Buffer,
    queries: wgpu::ComputePipeline,
    queries_io: wgpu::BindGroupLayout,
    queries_params: wgpu::Buffer,
}

/// The buffers of one layer's append.
#[derive(Clone, Copy, Debug)]
pub struct AppendIo<'a> {
    /// `[num_tokens, num_kv_heads, head_dim]`, row-major, f32 or f16 as the spec says, not yet rotated.
    pub k: wgpu::BufferSlice<'a>,
    /// `[num_tokens, num_kv_heads, v_head_dim]` of the same type.
    pub v: wgpu::BufferSlice<'a>,
    /// The queries to be rotated; `None` where the spec has no rotary embedding, or nobody attends.
    pub queries: Option<QueryRotation<'a>>,
}

/// Queries, and where they go.
#[derive(Clone, Copy, Debug)]
pub struct QueryRotation<'a> {
    /// `[num_rows, num_q_heads, head_dim]`, row-major, of the type that the spec says, read.
    pub q: wgpu::BufferSlice<'a>,
    /// The same shape and type, written: what [`AttentionIo::q`](crate::gpu::AttentionIo::q) expects.
    pub rotated: wgpu::BufferSlice<'a>,
}

impl KvCache {
    /// Makes and compiles the kernels of an append, and computes the rotations of all positions.
    ///
    /// These take `4 · dims` bytes for each of the cache's `max_seq_len` positions, and should be shared by all layers.
    ///
    /// # Errors
    /// [`GpuError::QueryHeads`], [`GpuError::OddHead`], [`GpuError::RotaryDims`], [`GpuError::InvFreqCount`],
    /// [`GpuError::InvFreq`] or [`GpuError::NotPositive`] for a spec that contradicts itself or the cache,
    /// [`GpuError::Limit`] if the rotations exceed a binding, or what wgpu says of buffers and kernels.
    pub fn appender(&self, spec: AppendSpec) -> Result<Appender, GpuError> {
        let (device, layout) = (self.device(), self.layout());
        spec.io_format.check_dims(layout)?;
        if let Some(rotary) = &spec.rotary {
            rotary.check(layout)?;
        }
        let mut slots = vec![BindingKind::Uniform, BindingKind::Read, BindingKind::Read];
        slots.extend(spec.rotary.iter().map(|_| BindingKind::Read));
        let append_io =
            scoped(device, "bind group layouts", 0, || bind_group_layout(device, "paged.append_io", &slots))?;
        let kernel = Kernel::FusedAppend {
            kv: KvShape::of(layout),
            io_format: spec.io_format,
            rotary: spec.rotary.as_ref().map(RotarySpec::shape),
        };
        let append = compile(device, &kernel, &[&self.layouts.step, &self.layouts.pools_append, &append_io])?;
        let rotary = spec.rotary.as_ref().map(|rotary| Rotary::new(self, rotary, spec.io_format)).transpose()?;
        Ok(Appender { cache: self.identity().clone(), append, append_io, rotary, spec })
    }

    /// Records the append of a step's K and V rows to one layer, as [`append`](Self::append) does, in the form that the
    /// appender was made for; queries are rotated into a buffer of their own, in the same pass.
    ///
    /// Row `i` of K and V is that of query token `i`, and is turned by the position of that token in its sequence
    /// ([`StepPlan::positions`](crate::plan::StepPlan::positions)), in whichever slot it is stored. A token from before
    /// the first of its sequence is treated as if it were the first. A row whose slot is
    /// [`SKIP_SLOT`](crate::layout::SKIP_SLOT) is not written; every query is. What is stored of a rotated element, and
    /// the scales of a format, are those of the rotated row in f32. Queries in f16 are rounded to nearest even.
    ///
    /// # Errors
    /// [`GpuError::Layer`], [`GpuError::Foreign`], [`GpuError::QueriesNotRotated`], or an error that names the buffer;
    /// nothing is recorded then.
    pub fn append_with(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        appender: &Appender,
        step: &Step,
        layer: u32,
        io: AppendIo<'_>,
    ) -> Result<(), GpuError> {
        let (layout, profile) = (self.layout(), self.profile());
        let head_shards = self.head_shards(layer)?;
        let step_group = step.bind_group(self)?;
        if appender.cache != *self.identity() {
            return Err(GpuError::Foreign { what: "appender" });
        }
        if io.queries.is_some() && appender.rotary.is_none() {
            return Err(GpuError::QueriesNotRotated);
        }
        if step.num_tokens == 0 {
            return Ok(());
        }
        let per_word = u64::from(appender.spec.io_format.per_word());
        let words = |heads: u32, dim: u32| u64::from(step.num_tokens) * u64::from(heads) * u64::from(dim) / per_word;
        let k = storage_binding("k", io.k, words(layout.num_kv_heads(), layout.head_dim()), profile)?;
        let v = storage_binding("v", io.v, words(layout.num_kv_heads(), layout.v_head_dim()), profile)?;
        let pools = pool_buffers(head_shards);
        check_disjoint(&[("k", k.buffer), ("v", v.buffer)], &pools)?;
        let mut rows = vec![k, v];
        let mut rotation = None;
        if let Some(rotary) = &appender.rotary {
            rows.push(rotary.rotations.as_entire_buffer_binding());
            if let Some(QueryRotation { q, rotated }) = io.queries {
                let words = words(rotary.num_q_heads, layout.head_dim());
                let q = storage_binding("q", q, words, profile)?;
                let rotated = storage_binding("rotated", rotated, words, profile)?;
                let written = [("rotated", rotated.buffer)];
                check_disjoint(&[("q", q.buffer)], &written)?;
                // Not in one dispatch, but nobody else may write there.
                check_disjoint(&pools, &written)?;
                rotation = Some((rotary, rotary.io(self, q, rotated)?, grid(words, ROTATE_LANES, profile)?));
            }
        }
        let dispatches = self.append_dispatches(step, head_shards, &appender.append_io, &rows)?;

        record_append(pass, &appender.append, step_group, &dispatches);
        if let Some((rotary, io, [x, y, z])) = rotation {
            pass.set_pipeline(&rotary.queries);
            pass.set_bind_group(0, step_group, &[]);
            pass.set_bind_group(1, &io, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
        step.keep(pass);
        Ok(())
    }
}

impl Appender {
    /// What it does.
    pub fn spec(&self) -> &AppendSpec {
        &self.spec
    }
}

impl Rotary {
    fn new(cache: &KvCache, spec: &RotarySpec, io_format: IoFormat) -> Result<Self, GpuError> {
        let (device, layout) = (cache.device(), cache.layout());
        let queries_io = scoped(device, "bind group layouts", 0, || {
            bind_group_layout(
                device,
                "paged.rotate_io",
                &[BindingKind::Uniform, BindingKind::Read, BindingKind::Write, BindingKind::Read],
            )
        })?;
        let kernel = Kernel::RotateQueries { head_dim: layout.head_dim(), io_format, rotary: spec.shape() };
        let params = RotateParams { num_q_heads: spec.num_q_heads, ..Default::default() };
        Ok(Self {
            num_q_heads: spec.num_q_heads,
            rotations: spec.rotations(device, layout, cache.profile())?,
            queries: compile(device, &kernel, &[&cache.layouts.step, &queries_io])?,
            queries_io,
            queries_params: scoped(device, "parameters", 16, || uniform(device, "paged.rotate_params", &params))?,
        })
    }

    fn io(
        &self,
        cache: &KvCache,
        q: wgpu::BufferBinding<'_>,
        rotated: wgpu::BufferBinding<'_>,
    ) -> Result<wgpu::BindGroup, GpuError> {
        let params = self.queries_params.as_entire_buffer_binding();
        let resources = [params, q, rotated, self.rotations.as_entire_buffer_binding()];
        scoped(cache.device(), "the bindings of q", 0, || {
            bind_group(cache.device(), "paged.rotate_io", &self.queries_io, &resources)
        })
    }
}
