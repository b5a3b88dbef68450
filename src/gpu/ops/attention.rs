//! Attention over the cache: the kernels of an [`AttentionSpec`] and their recording.

use std::sync::{Mutex, PoisonError};

use crate::gpu::binding::{check_disjoint, element_bytes, grid, storage_binding};
use crate::gpu::cache::{Identity, KvCache, filled_buffer, pool_buffers, uniform};
use crate::gpu::error::GpuError;
use crate::gpu::kernel::Kernel;
use crate::gpu::kernel::attention_shape::AttentionShape;
use crate::gpu::kernel::params::{AttentionParams, MergeParams};
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::ops::class_kernel::ClassKernel;
use crate::gpu::ops::spec::AttentionSpec;
use crate::gpu::pipeline::{BindingKind, bind_group, bind_group_layout, compile};
use crate::gpu::scope::scoped;
use crate::gpu::step::Step;
use crate::plan::TILE_CLASSES;

/// Compiled kernels for an [`AttentionSpec`] over the cache that made it.
#[derive(Debug)]
pub struct Attention {
    spec: AttentionSpec,
    cache: Identity,
    classes: [ClassKernel; TILE_CLASSES],
    attention_io: wgpu::BindGroupLayout,
    /// One per head shard, for dispatches that begin with the first work item.
    attention_params: Vec<(AttentionParams, wgpu::Buffer)>,
    head_terms: wgpu::Buffer,
    merge: wgpu::ComputePipeline,
    merge_io: wgpu::BindGroupLayout,
    merge_params: wgpu::Buffer,
    /// Stands where the log-sum-exp is not wanted.
    no_lse: wgpu::Buffer,
    /// Partial results of split rows; grows to what the largest step needed.
    scratch: Mutex<wgpu::Buffer>,
}

/// The buffers of one layer's attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionIo<'a> {
    /// `[num_rows, num_q_heads, head_dim]`, row-major, f32 or f16 as the spec says, read.
    pub q: wgpu::BufferSlice<'a>,
    /// `[num_rows, num_q_heads, v_head_dim]` of the same type, written: every row, also one without a key, which becomes
    /// zeros.
    pub out: wgpu::BufferSlice<'a>,
    /// `[num_rows, num_q_heads]` f32, written if the spec asks for it: natural logarithm, −∞ for a row without a key.
    pub lse: Option<wgpu::BufferSlice<'a>>,
}

impl KvCache {
    /// Makes the kernels of an attention and compiles those of a decoding step; [`Attention::warm_up`] compiles the rest.
    ///
    /// # Errors
    /// [`GpuError::QueryHeads`], [`GpuError::NotPositive`], [`GpuError::EmptyWindow`], [`GpuError::HeadTerms`],
    /// [`GpuError::TooManyHeads`], [`GpuError::HeadTerm`] or [`GpuError::OddHead`] for a spec that contradicts itself or
    /// the cache, or what wgpu says of the kernels.
    pub fn attention(&self, spec: AttentionSpec) -> Result<Attention, GpuError> {
        let (device, layout, profile) = (self.device(), self.layout(), self.profile());
        spec.check(layout)?;
        let (kv, variant) = (KvShape::of(layout), spec.variant());
        let group = spec.num_q_heads / layout.num_kv_heads();
        let (attention_io, merge_io) = scoped(device, "bind group layouts", 0, || {
            let attention = [
                BindingKind::Uniform,
                BindingKind::Read,
                BindingKind::Write,
                BindingKind::Write,
                BindingKind::Write,
                BindingKind::Uniform,
            ];
            let merge =
                [BindingKind::Uniform, BindingKind::Read, BindingKind::Write, BindingKind::Write, BindingKind::Uniform];
            (
                bind_group_layout(device, "paged.attention_io", &attention),
                bind_group_layout(device, "paged.merge_io", &merge),
            )
        })?;
        let classes = std::array::from_fn(|class| {
            let (paged, class, tile_rows) = (layout.paged(), class as u32, profile.tile_rows);
            let lane_comm = profile.lane_comm;
            let kernel = Kernel::PagedAttention { kv, paged, group, class, tile_rows, lane_comm, variant };
            ClassKernel::new(kernel, AttentionShape::new(&kv, group, class, lane_comm, tile_rows))
        });
        let merge = Kernel::MergePartials { v_head_dim: kv.v_head_dim, variant };
        let merge = compile(device, &merge, &[&self.layouts.step, &merge_io])?;
        let (query_factor, score_factor) = spec.factors(layout);
        let window = spec.window.unwrap_or(0).min(crate::config::MAX_SEQ_LEN);
        let attention_params = self
            .head_shards(0)?
            .iter()
            .map(|head_shard| {
                let params = AttentionParams {
                    query_factor,
                    score_factor,
                    window,
                    first_kv_head: head_shard.first_head,
                    num_kv_heads: head_shard.num_heads,
                    num_q_heads: spec.num_q_heads,
                    ..Default::default()
                };
                Ok((params, new_params(device, &params)?))
            })
            .collect::<Result<_, GpuError>>()?;
        let merge_params = MergeParams { num_q_heads: spec.num_q_heads, window, ..Default::default() };
        let terms = spec.head_terms();
        let attention = Attention {
            cache: self.identity().clone(),
            classes,
            attention_io,
            attention_params,
            head_terms: scoped(device, "head terms", 16 * terms.len() as u64, || {
                filled_buffer(device, "paged.head_terms", wgpu::BufferUsages::UNIFORM, bytemuck::cast_slice(&terms))
            })?,
            merge,
            merge_io,
            merge_params: scoped(device, "parameters", 16, || uniform(device, "paged.merge_params", &merge_params))?,
            no_lse: new_scratch(device, "paged.no_lse", 256)?,
            scratch: Mutex::new(new_scratch(device, "paged.partials", 256)?),
            spec,
        };
        attention.warm_up(self, 1)?;
        Ok(attention)
    }

    /// Records the attention of a step's rows over one layer: its query tiles, and the merge of rows that were split.
    ///
    /// Rows appended by the same step are seen if [`append`](Self::append) was recorded before. A kernel that was not
    /// warmed up is compiled here.
    ///
    /// # Errors
    /// [`GpuError::Layer`], [`GpuError::Foreign`], [`GpuError::Lse`], [`GpuError::LoopRounds`], [`GpuError::Limit`] if the
    /// partial results exceed a binding, [`GpuError::Plan`] if there are too many workgroups, [`GpuError::OutOfMemory`],
    /// or an error that names the buffer; nothing is recorded then.
    pub fn attend(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        attention: &Attention,
        step: &Step,
        layer: u32,
        io: AttentionIo<'_>,
    ) -> Result<(), GpuError> {
        let (device, profile, layout) = (self.device(), self.profile(), self.layout());
        let head_shards = self.head_shards(layer)?;
        let step_group = step.bind_group(self)?;
        attention.check_cache(self)?;
        if io.lse.is_some() != attention.spec.lse {
            return Err(GpuError::Lse { expected: attention.spec.lse });
        }
        if step.num_rows == 0 {
            return Ok(());
        }
        attention.check_loops(self, step)?;

        let heads = u64::from(step.num_rows) * u64::from(attention.spec.num_q_heads);
        let words = |dim: u32| heads * u64::from(dim) / u64::from(attention.spec.io_format.per_word());
        let q = storage_binding("q", io.q, words(layout.head_dim()), profile)?;
        let out = storage_binding("out", io.out, words(layout.v_head_dim()), profile)?;
        let lse = match io.lse {
            Some(lse) => storage_binding("lse", lse, heads, profile)?,
            None => attention.no_lse.as_entire_buffer_binding(),
        };
        let written = [("out", out.buffer), ("lse", lse.buffer)];
        check_disjoint(&[("q", q.buffer)], &written)?;
        check_disjoint(&[("out", out.buffer)], &[("lse", lse.buffer)])?;
        check_disjoint(&pool_buffers(head_shards), &written)?;
        let partials = attention.partials(self, step)?;
        let partials = partials.as_entire_buffer_binding();
        let terms = attention.head_terms.as_entire_buffer_binding();

        let bind_io = |params: &wgpu::Buffer| {
            scoped(device, "the bindings of q and out", 0, || {
                let params = params.as_entire_buffer_binding();
                let resources = [params, q.clone(), out.clone(), lse.clone(), partials.clone(), terms.clone()];
                bind_group(device, "paged.attention_io", &attention.attention_io, &resources)
            })
        };
        let mut dispatches = Vec::new();
        for (head_shard, (params, buffer)) in head_shards.iter().zip(&attention.attention_params) {
            let from_first = bind_io(buffer)?;
            for (class, work) in attention.classes.iter().zip(&step.classes).filter(|(_, work)| work.num_items > 0) {
                let pipeline = class.pipeline(self, &attention.attention_io)?;
                for (first_item, grid) in
                    class.grids(profile, &attention.spec, work, head_shard.num_heads, step.split_tokens)?
                {
                    let io = if first_item == 0 {
                        from_first.clone()
                    } else {
                        bind_io(&new_params(device, &AttentionParams { first_item, ..*params })?)?
                    };
                    dispatches.push((pipeline.clone(), head_shard, io, grid));
                }
            }
        }
        let merge = if step.num_merges > 0 {
            let grid = grid(u64::from(step.num_merges) * u64::from(attention.spec.num_q_heads), 1, profile)?;
            let io = scoped(device, "the bindings of out", 0, || {
                let params = attention.merge_params.as_entire_buffer_binding();
                bind_group(device, "paged.merge_io", &attention.merge_io, &[params, partials, out, lse, terms])
            })?;
            Some((io, grid))
        } else {
            None
        };

        for (pipeline, head_shard, io, [x, y, z]) in &dispatches {
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, step_group, &[]);
            pass.set_bind_group(1, &head_shard.read, &[]);
            pass.set_bind_group(2, io, &[]);
            pass.dispatch_workgroups(*x, *y, *z);
        }
        if let Some((io, [x, y, z])) = &merge {
            pass.set_pipeline(&attention.merge);
            pass.set_bind_group(0, step_group, &[]);
            pass.set_bind_group(1, io, &[]);
            pass.dispatch_workgroups(*x, *y, *z);
        }
        step.keep(pass);
        Ok(())
    }
}

impl Attention {
    /// What it computes.
    pub fn spec(&self) -> &AttentionSpec {
        &self.spec
    }

    /// The kernel that serves the steps in which a sequence brings `queries` query tokens.
    pub fn kernel(&self, cache: &KvCache, queries: u32) -> &Kernel {
        &self.classes[cache.schedule().class(queries)].kernel
    }

    /// Compiles the kernels for all steps in which no query tile has more than `max_queries` tokens, so that no token waits
    /// for it. Sequences that share their first blocks meet in tiles of up to
    /// [`MAX_TILE_TOKENS`](crate::plan::MAX_TILE_TOKENS): with that number everything is compiled. What blocks need
    /// that are shared or cleared, [`KvCache::warm_up`] compiles.
    ///
    /// # Errors
    /// [`GpuError::Foreign`] for another cache than the one it was made with, or what wgpu says of the kernels.
    pub fn warm_up(&self, cache: &KvCache, max_queries: u32) -> Result<(), GpuError> {
        self.check_cache(cache)?;
        for class in &self.classes[..=cache.schedule().class(max_queries)] {
            class.pipeline(cache, &self.attention_io)?;
        }
        Ok(())
    }

    fn check_cache(&self, cache: &KvCache) -> Result<(), GpuError> {
        if self.cache == *cache.identity() { Ok(()) } else { Err(GpuError::Foreign { what: "attention" }) }
    }

    /// Refuses a step whose loops the device would end before they are done.
    fn check_loops(&self, cache: &KvCache, step: &Step) -> Result<(), GpuError> {
        let merge_passes = u64::from(cache.layout().v_head_dim().div_ceil(32)) + 2;
        let merge = (u64::from(step.max_splits_per_row) + 1) * (merge_passes + 1);
        let classes = self.classes.iter().zip(&step.classes).filter(|(_, work)| work.num_items > 0);
        let rounds = classes.map(|(class, work)| class.shape.loop_rounds(work.max_item_keys, work.num_tiles));
        let (rounds, limit) = (rounds.fold(merge, u64::max), cache.profile().max_loop_rounds);
        if rounds > limit.into() { Err(GpuError::LoopRounds { rounds, limit }) } else { Ok(()) }
    }

    /// Scratch for the partial results of a step. An earlier, smaller buffer lives on in the bind groups that use it.
    fn partials(&self, cache: &KvCache, step: &Step) -> Result<wgpu::Buffer, GpuError> {
        let record = u64::from(cache.layout().v_head_dim()) + 2;
        let elements = u64::from(step.num_records) * u64::from(self.spec.num_q_heads) * record;
        let bytes = element_bytes("the partial results", elements, cache.profile())?;
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if scratch.size() < bytes {
            *scratch = new_scratch(cache.device(), "paged.partials", cache.profile().roomy_bytes(bytes))?;
        }
        Ok(scratch.clone())
    }
}

fn new_params(device: &wgpu::Device, params: &AttentionParams) -> Result<wgpu::Buffer, GpuError> {
    scoped(device, "parameters", 32, || uniform(device, "paged.attention_params", params))
}

fn new_scratch(device: &wgpu::Device, label: &'static str, bytes: u64) -> Result<wgpu::Buffer, GpuError> {
    scoped(device, "scratch", bytes, || {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes,
            usage: wgpu::BufferUsages::STORAGE,
            mapped_at_creation: false,
        })
    })
}
