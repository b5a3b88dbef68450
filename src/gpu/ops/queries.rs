//! The norm and the rotation of queries, beside an append or alone.

use crate::gpu::binding::grid;
use crate::gpu::cache::KvCache;
use crate::gpu::error::{ArgumentError, GpuError};
use crate::gpu::io::{BoundRows, IoSlice, RowShape};
use crate::gpu::kept::GroupParts;
use crate::gpu::kernel::params::RotateParams;
use crate::gpu::kernel::{ITEM_LANES, Kernel};
use crate::gpu::make::{BindingKind, Dispatch};
use crate::gpu::ops::append::{AppendSpec, Appender};
use crate::gpu::pools::pool_buffers;
use crate::gpu::step::Step;

/// The kernel that norms and rotates queries.
#[derive(Debug)]
pub(super) struct QueryKernel {
    num_q_heads: u32,
    pipeline: wgpu::ComputePipeline,
    io: wgpu::BindGroupLayout,
}

/// The buffers of one layer's queries.
#[derive(Clone, Copy, Debug)]
pub struct QueryIo<'a> {
    pub(super) q: IoSlice<'a>,
    pub(super) rotated: IoSlice<'a>,
    pub(super) q_norm: Option<IoSlice<'a>>,
}

impl<'a> QueryIo<'a> {
    /// Slices, or [`IoSlice`]s with a stride. `q` is read and `rotated` written, both `[num_rows, num_q_heads, head_dim]` in
    /// the spec's type and without a byte in common; `rotated` is what
    /// [`AttentionIo::new`](crate::gpu::AttentionIo::new) expects as `q`.
    pub fn new(q: impl Into<IoSlice<'a>>, rotated: impl Into<IoSlice<'a>>) -> Self {
        Self { q: q.into(), rotated: rotated.into(), q_norm: None }
    }

    /// The weights of the queries' norm, `[head_dim]` in f32, in a buffer other than those of the queries; for a spec
    /// [with a norm](AppendSpec::with_qk_norm).
    #[must_use]
    pub fn with_q_norm(mut self, weights: impl Into<IoSlice<'a>>) -> Self {
        self.q_norm = Some(weights.into());
        self
    }
}

impl KvCache {
    pub(super) fn query_kernel(&self, spec: &AppendSpec, head_dim: u32) -> Result<Option<QueryKernel>, GpuError> {
        let change = spec.change();
        let Some(num_q_heads) = spec.num_q_heads.filter(|_| !change.is_none()) else { return Ok(None) };
        let kinds = [BindingKind::Uniform, BindingKind::Write, BindingKind::Write];
        let io = self.maker.layout("paged.rotate_io", &row_kinds(kinds, spec))?;
        let kernel = Kernel::RotateQueries { head_dim, io_format: spec.io_format, change };
        let pipeline = self.maker.pipeline(&kernel, &[&self.layouts.step, &io])?;
        Ok(Some(QueryKernel { num_q_heads, pipeline, io }))
    }

    /// Records the norm and the rotation of a step's queries, as [`append`](Self::append) does it beside K, and appends
    /// nothing: for layers without K and V of their own, that attend to those of another layer (Gemma 3n, YOCO).
    ///
    /// ```no_run
    /// # use wgpu_paged_attention::{gpu::*, wgpu};
    /// # fn f(cache: &KvCache, appender: &Appender, attention: &Attention, step: &Step, pass: &mut wgpu::ComputePass<'_>,
    /// #     [k, v, q, rotated, out]: [wgpu::BufferSlice<'_>; 5], (owner, sharing): (u32, u32)) -> Result<(), GpuError> {
    /// // The layer that owns K and V.
    /// cache.append(pass, appender, step, owner, AppendIo::new(k, v).with_queries(q, rotated))?;
    /// cache.attend(pass, attention, step, owner, AttentionIo::new(rotated, out))?;
    /// // A later one that shares them: its queries are its own, and it attends to the owner's layer.
    /// cache.rotate_queries(pass, appender, step, QueryIo::new(q, rotated))?;
    /// cache.attend(pass, attention, step, owner, AttentionIo::new(rotated, out))?;
    /// # Ok(()) }
    /// ```
    ///
    /// The cache is made for the layers that own K and V alone. An appender serves every layer that rotates alike; one of
    /// another [`AppendSpec`] may rotate the queries of a layer whose K was appended by the first.
    ///
    /// # Errors
    /// [`GpuError::Argument`] for an appender or a step of another cache, an appender without query heads or that changes
    /// nothing, weights that are missing or not asked for, and buffers as [`IoSlice`] tells; nothing is recorded then.
    pub fn rotate_queries(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        appender: &Appender,
        step: &Step,
        io: QueryIo<'_>,
    ) -> Result<(), GpuError> {
        step.enter(self, pass)?;
        appender.check_cache(self)?;
        let kernel = appender.query_kernel()?;
        if step.num_rows() == 0 {
            return Ok(());
        }
        appender.check_step(step)?;
        let pools = self.places().iter().flat_map(|head_shards| pool_buffers(head_shards));
        let mut dispatches = appender.dispatches.take();
        // Positions are the same in all groups.
        dispatches.push(kernel.dispatch(self, appender, step, step.bind_group(0), io, pools)?);
        appender.dispatches.record(pass, dispatches);
        Ok(())
    }
}

impl QueryKernel {
    /// The checked dispatch, for queries that lie in no pool.
    pub(super) fn dispatch<'p>(
        &self,
        cache: &KvCache,
        appender: &Appender,
        step: &Step,
        step_group: &wgpu::BindGroup,
        io: QueryIo<'_>,
        pools: impl Iterator<Item = (&'static str, &'p wgpu::Buffer)> + Clone,
    ) -> Result<Dispatch, GpuError> {
        let (profile, head_dim) = (cache.profile(), u64::from(appender.shape.kv.head_dim));
        let (num_rows, per_word) = (u64::from(step.num_rows()), appender.io_format.per_word());
        let row = u64::from(self.num_q_heads) * head_dim;
        let rows =
            |name, io| BoundRows::new(name, io, RowShape { rows: num_rows, row, per_word, unit: per_word }, profile);
        let (q, rotated) = (rows("q", io.q)?, rows("rotated", io.rotated)?);
        q.check_apart(&rotated)?;
        q.check_no_pool(pools.clone())?;
        rotated.check_no_pool(pools)?;
        let norm = appender.norm("q_norm", io.q_norm, cache)?;
        if let Some(norm) = &norm {
            // Queries are bound to be written.
            norm.check_other_buffer(&q, "")?;
            norm.check_other_buffer(&rotated, "")?;
        }
        let params = RotateParams {
            num_q_heads: self.num_q_heads,
            q_base: q.base,
            q_stride: q.stride,
            rotated_base: rotated.base,
            rotated_stride: rotated.stride,
            norm_base: norm.as_ref().map_or(0, |norm| norm.base),
            norm_eps: appender.norm_eps.unwrap_or(0.0),
            ..Default::default()
        };
        let (ranges, len) = row_ranges([q.binding, rotated.binding], appender, norm);
        let parts = GroupParts {
            label: "paged.rotate_io",
            layout: &self.io,
            params: bytemuck::bytes_of(&params),
            ranges: &ranges[..len],
        };
        let group = cache.io_group(step.number, &parts)?;
        let words = num_rows * row / u64::from(per_word);
        Ok(Dispatch::new(&self.pipeline, [step_group, &group], grid(words, ITEM_LANES, profile)?))
    }
}

/// The bindings of a group that ends with rotations and the weights of a norm, where the spec has them.
pub(super) fn row_kinds(first: [BindingKind; 3], spec: &AppendSpec) -> Vec<BindingKind> {
    let mut kinds = first.to_vec();
    kinds.extend(spec.rotary.iter().map(|_| BindingKind::Read));
    kinds.extend(spec.qk_norm_eps.iter().map(|_| BindingKind::Read));
    kinds
}

/// The ranges of such a group behind its parameters, and how many they are.
pub(super) fn row_ranges<'a>(
    [first, second]: [wgpu::BufferBinding<'a>; 2],
    appender: &'a Appender,
    norm: Option<BoundRows<'a>>,
) -> ([wgpu::BufferBinding<'a>; 4], usize) {
    let mut ranges = [first.clone(), second.clone(), first, second];
    let mut len = 2;
    let rotations = appender.rotations.as_ref().map(wgpu::Buffer::as_entire_buffer_binding);
    for range in [rotations, norm.map(|norm| norm.binding)].into_iter().flatten() {
        ranges[len] = range;
        len += 1;
    }
    (ranges, len)
}

impl Appender {
    /// The kernel for queries.
    pub(super) fn query_kernel(&self) -> Result<&QueryKernel, ArgumentError> {
        match &self.queries {
            Some(kernel) => Ok(kernel),
            None if self.rotations.is_none() && self.norm_eps.is_none() => Err(ArgumentError::new(
                "queries",
                "were given, but the append rotates nothing and has no norm; give them to the attention as they are",
            )),
            None => Err(ArgumentError::new(
                "queries",
                "were given, but the spec names no query heads; make it with AppendSpec::for_attention",
            )),
        }
    }

    pub(super) fn check_cache(&self, cache: &KvCache) -> Result<(), ArgumentError> {
        if self.cache == *cache.identity() { Ok(()) } else { Err(ArgumentError::other_cache("appender")) }
    }

    /// Refuses a step with tokens that lacks positions which the rotation needs.
    pub(super) fn check_step(&self, step: &Step) -> Result<(), ArgumentError> {
        if !self.has_sections || step.work(0).has_mrope {
            return Ok(());
        }
        let problem = "has no positions in time, height and width, which the sections of the rotation need; give its plan \
                       some with StepPlan::set_mrope_positions before it is begun";
        Err(ArgumentError::new("step", problem))
    }

    /// The weights of a norm, checked and bound, if there is one.
    pub(super) fn norm<'a>(
        &self,
        name: &'static str,
        weights: Option<IoSlice<'a>>,
        cache: &KvCache,
    ) -> Result<Option<BoundRows<'a>>, GpuError> {
        match (self.norm_eps, weights) {
            (None, None) => Ok(None),
            (Some(_), Some(weights)) => {
                let shape = RowShape { rows: 1, row: self.shape.kv.head_dim.into(), per_word: 1, unit: 1 };
                BoundRows::new(name, weights, shape, cache.profile()).map(Some)
            }
            (Some(_), None) => {
                let problem = format!("is missing; the spec has a norm, so give its weights by with_{name}");
                Err(ArgumentError::new(name, problem).into())
            }
            (None, Some(_)) => {
                let problem = "was given, but the spec has no norm; make it with AppendSpec::with_qk_norm";
                Err(ArgumentError::new(name, problem).into())
            }
        }
    }
}
