//! The append of new K and V: their kernels, rows in f16, norm and rotary embedding included, and their recording.

use crate::gpu::binding::grid;
use crate::gpu::cache::KvCache;
use crate::gpu::error::{ArgumentError, GpuError, SpecError};
use crate::gpu::group::LayerShape;
use crate::gpu::io::{BoundRows, IoSlice, RowShape};
use crate::gpu::kept::GroupParts;
use crate::gpu::kernel::params::AppendParams;
use crate::gpu::kernel::variant::IoFormat;
use crate::gpu::kernel::{ITEM_LANES, Kernel};
use crate::gpu::make::{BindingKind, Dispatch, DispatchList};
use crate::gpu::ops::queries::{QueryIo, QueryKernel, row_kinds, row_ranges};
use crate::gpu::ops::rotary::RotarySpec;
use crate::gpu::ops::spec::{AttentionSpec, check_query_heads};
use crate::gpu::pools::pool_buffers;
use crate::gpu::step::Step;
use crate::gpu::value::{Identity, RowChange};
use crate::setters::setters;

/// What an append does to the K and V it is given; the default stores them as they are, from f32.
///
/// Every option works alone; one that is off is not in the kernels at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppendSpec {
    pub(super) layer: u32,
    pub(super) io_format: IoFormat,
    /// Of the queries that are normed and rotated, if any are.
    pub(super) num_q_heads: Option<u32>,
    pub(super) qk_norm_eps: Option<f32>,
    pub(super) rotary: Option<RotarySpec>,
}

impl AppendSpec {
    /// K and V from f32, stored as they are.
    pub fn new() -> Self {
        Self::default()
    }

    /// The append that goes with an attention: K, V and queries are of its type, and the queries that
    /// [`with_qk_norm`](Self::with_qk_norm) and [`with_rotary`](Self::with_rotary) change have its number of heads. It
    /// is made for the same [layer](Self::with_layer).
    pub fn for_attention(attention: &AttentionSpec) -> Self {
        let num_q_heads = Some(attention.num_q_heads);
        Self { layer: attention.layer, io_format: attention.io_format, num_q_heads, ..Self::default() }
    }

    setters! {
        /// Sets the layer of the model to whose shape the kernels are made, where layers are not all alike; 0 unless set. They
        /// serve every layer of as many KV heads, as wide.
        with_layer(layer: u32);
        /// Sets the type of K, V and the queries. f16 needs `head_dim` and `v_head_dim` to be even.
        with_io_format(io_format: IoFormat);
        /// Norms every head of K and of the queries before they are rotated, the latter if the spec is made
        /// [for an attention](Self::for_attention): `x[i] · weights[i] / √(mean(x²) + eps)`, all in f32, as the `q_norm` and
        /// `k_norm` of Qwen3 and Gemma 3 with their `rms_norm_eps`.
        ///
        /// Weights come with the buffers of a layer ([`AppendIo::with_k_norm`], [`AppendIo::with_q_norm`]). Where a model
        /// multiplies by `1 + w`, as Gemma does, give `1 + w`.
        with_qk_norm(qk_norm_eps: f32) => Some(qk_norm_eps);
        /// Rotates K by the positions of its tokens, and the queries with it if the spec is made
        /// [for an attention](Self::for_attention).
        with_rotary(rotary: RotarySpec) => Some(rotary);
    }

    /// What becomes of K and of the queries.
    pub(super) fn change(&self) -> RowChange {
        RowChange { norm: self.qk_norm_eps.is_some(), rotary: self.rotary.as_ref().map(RotarySpec::shape) }
    }
}

/// Compiled kernels for an [`AppendSpec`] to the cache that made it.
#[derive(Debug)]
pub struct Appender {
    pub(super) io_format: IoFormat,
    pub(super) cache: Identity,
    pub(super) shape: LayerShape,
    append: wgpu::ComputePipeline,
    append_io: wgpu::BindGroupLayout,
    /// `[max_seq_len, dims / 2]` cosines and sines.
    pub(super) rotations: Option<wgpu::Buffer>,
    /// Whether the pairs are turned by three positions of a token.
    pub(super) has_sections: bool,
    pub(super) norm_eps: Option<f32>,
    pub(super) queries: Option<QueryKernel>,
    pub(super) dispatches: DispatchList,
}

/// The buffers of one layer's append.
#[derive(Clone, Copy, Debug)]
pub struct AppendIo<'a> {
    k: IoSlice<'a>,
    v: IoSlice<'a>,
    /// What is read, and where it goes.
    queries: Option<(IoSlice<'a>, IoSlice<'a>)>,
    k_norm: Option<IoSlice<'a>>,
    q_norm: Option<IoSlice<'a>>,
}

impl<'a> AppendIo<'a> {
    /// Slices, or [`IoSlice`]s with a stride. `k`: `[num_tokens, num_kv_heads, head_dim]`, `v`: `[num_tokens,
    /// num_kv_heads, v_head_dim]`, row-major, both in the spec's type and not yet rotated. Tokens come in the order of
    /// [`StepPlan::slots`](crate::plan::StepPlan::slots): the tokens of the first request, then those of the second,
    /// and so on.
    pub fn new(k: impl Into<IoSlice<'a>>, v: impl Into<IoSlice<'a>>) -> Self {
        Self { k: k.into(), v: v.into(), queries: None, k_norm: None, q_norm: None }
    }

    /// Queries to be normed and rotated as K is, in slices or [`IoSlice`]s. `q` is read and `rotated` written, both
    /// `[num_tokens, num_q_heads, head_dim]` in the spec's type and without a byte in common; `rotated` is what
    /// [`AttentionIo::new`](crate::gpu::AttentionIo::new) expects as `q`.
    #[must_use]
    pub fn with_queries(mut self, q: impl Into<IoSlice<'a>>, rotated: impl Into<IoSlice<'a>>) -> Self {
        self.queries = Some((q.into(), rotated.into()));
        self
    }

    /// The weights of K's norm, `[head_dim]` in f32; for a spec [with a norm](AppendSpec::with_qk_norm).
    #[must_use]
    pub fn with_k_norm(mut self, weights: impl Into<IoSlice<'a>>) -> Self {
        self.k_norm = Some(weights.into());
        self
    }

    /// The weights of the queries' norm, `[head_dim]` in f32, in a buffer other than those of the queries; where queries are
    /// given.
    #[must_use]
    pub fn with_q_norm(mut self, weights: impl Into<IoSlice<'a>>) -> Self {
        self.q_norm = Some(weights.into());
        self
    }

    fn query_io(&self) -> Option<QueryIo<'a>> {
        self.queries.map(|(q, rotated)| QueryIo { q, rotated, q_norm: self.q_norm })
    }
}

impl KvCache {
    /// Makes and compiles the kernels of an append, and computes the rotations of all positions.
    ///
    /// These take `4 · dims` bytes for each of the cache's `max_seq_len` positions; share the appender among all layers
    /// that rotate alike.
    pub fn appender(&self, spec: AppendSpec) -> Result<Appender, GpuError> {
        self.maker.check()?;
        let layout = self.layer(spec.layer)?.layout;
        let shape = LayerShape::of(layout);
        spec.io_format.check_dims(layout)?;
        if let Some(num_q_heads) = spec.num_q_heads {
            check_query_heads(num_q_heads, layout)?;
        }
        spec.rotary.as_ref().map_or(Ok(()), |rotary| rotary.check(layout))?;
        if let Some(eps) = spec.qk_norm_eps.filter(|eps| !(eps.is_normal() && *eps > 0.0)) {
            let problem = format!("is {eps}; it must be positive and finite, and no denormal number");
            return Err(SpecError::new("qk_norm eps", problem).into());
        }
        let kinds = [BindingKind::Uniform, BindingKind::Read, BindingKind::Read];
        let append_io = self.maker.layout("paged.append_io", &row_kinds(kinds, &spec))?;
        let kernel = Kernel::KvAppend { kv: shape.kv, io_format: spec.io_format, change: spec.change() };
        let append = self.maker.pipeline(&kernel, &[&self.layouts.step, &self.layouts.pools_append, &append_io])?;
        let rotations = spec.rotary.as_ref().map(|rotary| rotary.rotations(&self.maker, layout, self.profile()));
        Ok(Appender {
            io_format: spec.io_format,
            cache: self.identity().clone(),
            shape,
            append,
            append_io,
            rotations: rotations.transpose()?,
            has_sections: spec.change().rotary.is_some_and(|rotary| rotary.sections.is_some()),
            norm_eps: spec.qk_norm_eps,
            queries: self.query_kernel(&spec, shape.kv.head_dim)?,
            dispatches: DispatchList::default(),
        })
    }

    /// Records the append of a step's K and V to one layer, and the norm and the rotation of its queries.
    ///
    /// [`IoSlice`] tells what the buffers need. Slices that stay the same from step to step cost least: their bind
    /// groups are kept, as [`forget_buffers`](Self::forget_buffers) tells. A token whose slot is
    /// [`SKIP_SLOT`](crate::layout::SKIP_SLOT) is not stored; every query is rotated. [`formats`](crate::formats)
    /// tells, to the bit, what is stored of an element. A token is rotated by its position in its sequence
    /// ([`StepPlan::positions`](crate::plan::StepPlan::positions)), in whichever slot it is stored; one from before the
    /// first of its sequence as if it were the first. With [sections](RotarySpec::with_sections), the step's three positions
    /// of the token take the place of that one. What is stored of a changed element, and the scales of a format, are those of
    /// the normed and rotated K in f32. Queries in f16 are rounded to nearest even.
    pub fn append(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        appender: &Appender,
        step: &Step,
        layer: u32,
        io: AppendIo<'_>,
    ) -> Result<(), GpuError> {
        step.enter(self, pass)?;
        let served = self.layer(layer)?;
        appender.check_cache(self)?;
        served.check_shape(layer, "appender", &appender.shape)?;
        let (layout, head_shards, profile) = (served.layout, served.head_shards, self.profile());
        let step_group = step.bind_group(served.group);
        let queries = io.query_io().map(|io| Ok::<_, GpuError>((appender.query_kernel()?, io))).transpose()?;
        if io.queries.is_none() && io.q_norm.is_some() {
            return Err(ArgumentError::new("q_norm", "was given without queries; give these by with_queries").into());
        }
        let num_tokens = u64::from(step.num_tokens());
        if num_tokens == 0 {
            return Ok(());
        }
        appender.check_step(step)?;
        let per_word = appender.io_format.per_word();
        let rows = |name, io, heads: u32, dim: u32| {
            let shape = RowShape { rows: num_tokens, row: u64::from(heads) * u64::from(dim), per_word, unit: per_word };
            BoundRows::new(name, io, shape, profile)
        };
        let k = rows("k", io.k, layout.num_kv_heads(), layout.head_dim())?;
        let v = rows("v", io.v, layout.num_kv_heads(), layout.v_head_dim())?;
        let norm = appender.norm("k_norm", io.k_norm, self)?;
        let pools = pool_buffers(head_shards);
        for read in [Some(&k), Some(&v), norm.as_ref()].into_iter().flatten() {
            read.check_no_pool(pools.clone())?;
        }
        let params = AppendParams {
            k_base: k.base,
            k_stride: k.stride,
            v_base: v.base,
            v_stride: v.stride,
            norm_base: norm.as_ref().map_or(0, |norm| norm.base),
            norm_eps: appender.norm_eps.unwrap_or(0.0),
            ..Default::default()
        };
        let (ranges, len) = row_ranges([k.binding, v.binding], appender, norm);
        let mut dispatches = appender.dispatches.take();
        for head_shard in head_shards {
            let kv_rows = num_tokens * u64::from(head_shard.num_heads);
            let grid = grid(kv_rows * u64::from(appender.shape.kv.row_lanes()), ITEM_LANES, profile)?;
            let (first_kv_head, num_kv_heads) = (head_shard.first_head, head_shard.num_heads);
            let params = AppendParams { first_kv_head, num_kv_heads, ..params };
            let parts = GroupParts {
                label: "paged.append_io",
                layout: &appender.append_io,
                params: bytemuck::bytes_of(&params),
                ranges: &ranges[..len],
            };
            let io = self.io_group(step.number, &parts)?;
            dispatches.push(Dispatch::new(&appender.append, [step_group, &head_shard.write, &io], grid));
        }
        if let Some((kernel, io)) = queries {
            dispatches.push(kernel.dispatch(self, appender, step, step_group, io, pools)?);
        }
        appender.dispatches.record(pass, dispatches);
        Ok(())
    }
}
