//! Attention over the cache: decode kernels and the merge of their splits.

use std::sync::{Mutex, PoisonError};

use super::binding::{check_disjoint, element_bytes, grid, storage_binding};
use super::cache::{Identity, KvCache, Step, pool_buffers, uniform};
use super::error::GpuError;
use super::params::{DecodeParams, MergeParams};
use super::pipeline::{Slot, bind_group, bind_group_layout, compile};
use super::scope::scoped;
use super::shader::Kernel;
use super::shape::{DecodeShape, KvShape};

/// What an attention computes; a model has one, or a few that its layers share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads: a multiple of the cache's KV heads. Query head `h` reads KV head `h / (num_q_heads / num_kv_heads)`.
    pub num_q_heads: u32,
    /// Factor of `q · k`; `None` is `1 / sqrt(head_dim)`.
    pub scale: Option<f32>,
    /// Whether the log-sum-exp of the scores is written beside the output.
    pub lse: bool,
}

impl AttentionSpec {
    /// Attention with the usual scale and no log-sum-exp.
    pub fn new(num_q_heads: u32) -> Self {
        Self { num_q_heads, scale: None, lse: false }
    }

    /// Sets the factor of `q · k`.
    #[must_use]
    pub fn with_scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Asks for the log-sum-exp.
    #[must_use]
    pub fn with_lse(mut self) -> Self {
        self.lse = true;
        self
    }
}

/// Compiled kernels for an [`AttentionSpec`] over the cache that made it.
#[derive(Debug)]
pub struct Attention {
    spec: AttentionSpec,
    cache: Identity,
    kernel: Kernel,
    shape: DecodeShape,
    decode: wgpu::ComputePipeline,
    decode_io: wgpu::BindGroupLayout,
    /// One per segment.
    decode_params: Vec<wgpu::Buffer>,
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
    /// `[num_rows, num_q_heads, head_dim]`, row-major f32, read.
    pub q: wgpu::BufferSlice<'a>,
    /// The same shape, written: every row, also one without a key, which becomes zeros.
    pub out: wgpu::BufferSlice<'a>,
    /// `[num_rows, num_q_heads]` f32, written if the spec asks for it: natural logarithm, −∞ for a row without a key.
    pub lse: Option<wgpu::BufferSlice<'a>>,
}

impl KvCache {
    /// Compiles the kernels of an attention, so that the first token does not wait for it.
    ///
    /// # Errors
    /// [`GpuError::QueryHeads`], [`GpuError::Scale`], or what wgpu says of the kernels.
    pub fn attention(&self, spec: AttentionSpec) -> Result<Attention, GpuError> {
        let (device, layout, profile) = (self.device(), self.layout(), self.profile());
        let (num_q_heads, num_kv_heads) = (spec.num_q_heads, layout.num_kv_heads());
        if num_q_heads == 0 || !num_q_heads.is_multiple_of(num_kv_heads) {
            return Err(GpuError::QueryHeads { num_q_heads, num_kv_heads });
        }
        let scale = spec.scale.unwrap_or_else(|| 1.0 / (layout.head_dim() as f32).sqrt());
        // The kernels multiply by log2(e) as well.
        if !((scale * std::f32::consts::LOG2_E).is_finite() && scale > 0.0) {
            return Err(GpuError::Scale { scale });
        }
        let (kv, group) = (KvShape::of(layout), num_q_heads / num_kv_heads);
        let kernel = Kernel::PagedDecode {
            kv,
            paged: layout.paged(),
            group,
            exchange: profile.exchange,
            split_tokens: profile.split_tokens,
            write_lse: spec.lse,
        };
        let (decode_io, merge_io) = scoped(device, "bind group layouts", 0, || {
            let decode = [Slot::Uniform, Slot::Read, Slot::Write, Slot::Write, Slot::Write];
            let merge = [Slot::Uniform, Slot::Read, Slot::Write, Slot::Write];
            (bind_group_layout(device, "paged.decode_io", &decode), bind_group_layout(device, "paged.merge_io", &merge))
        })?;
        let decode = compile(device, &kernel, &[&self.layouts.step, &self.layouts.pools, &decode_io])?;
        let merge = Kernel::MergePartials { head_dim: kv.head_dim, write_lse: spec.lse };
        let merge = compile(device, &merge, &[&self.layouts.step, &merge_io])?;
        let decode_params = self
            .segments(0)?
            .iter()
            .map(|segment| {
                let params = DecodeParams {
                    scale_log2e: scale * std::f32::consts::LOG2_E,
                    first_kv_head: segment.first_head,
                    num_kv_heads: segment.num_heads,
                    num_q_heads,
                };
                scoped(device, "parameters", 16, || uniform(device, "paged.decode_params", &params))
            })
            .collect::<Result<_, _>>()?;
        let merge_params = MergeParams { num_q_heads, ..Default::default() };
        Ok(Attention {
            spec,
            cache: self.identity().clone(),
            kernel,
            shape: DecodeShape::new(&kv, group, profile.exchange),
            decode,
            decode_io,
            decode_params,
            merge,
            merge_io,
            merge_params: scoped(device, "parameters", 16, || uniform(device, "paged.merge_params", &merge_params))?,
            no_lse: new_scratch(device, "paged.no_lse", 256)?,
            scratch: Mutex::new(new_scratch(device, "paged.partials", 256)?),
        })
    }

    /// Records the attention of a step's rows over one layer: decode, and the merge of rows that were split.
    ///
    /// Rows appended by the same step are seen if [`append`](Self::append) was recorded before.
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
        let (device, profile) = (self.device(), self.profile());
        let segments = self.segments(layer)?;
        let step_group = step.bind_group(self)?;
        if attention.cache != *self.identity() {
            return Err(GpuError::Foreign { what: "attention" });
        }
        if io.lse.is_some() != attention.spec.lse {
            return Err(GpuError::Lse { expected: attention.spec.lse });
        }
        if step.num_rows == 0 {
            return Ok(());
        }
        let rounds = attention
            .shape
            .loop_rounds(step.split_tokens.min(step.max_kv_len), step.num_rows)
            .max(2 * u64::from(step.max_splits_per_row) * u64::from(self.layout().head_dim().div_ceil(32) + 1));
        if rounds > profile.max_loop_rounds.into() {
            return Err(GpuError::LoopRounds { rounds, limit: profile.max_loop_rounds });
        }

        let heads = u64::from(step.num_rows) * u64::from(attention.spec.num_q_heads);
        let elements = heads * u64::from(self.layout().head_dim());
        let q = storage_binding("q", io.q, elements, profile)?;
        let out = storage_binding("out", io.out, elements, profile)?;
        let lse = match io.lse {
            Some(lse) => storage_binding("lse", lse, heads, profile)?,
            None => attention.no_lse.as_entire_buffer_binding(),
        };
        let written = [("out", out.buffer), ("lse", lse.buffer)];
        check_disjoint(&[("q", q.buffer)], &written)?;
        check_disjoint(&pool_buffers(segments), &written)?;
        let partials = attention.partials(self, step)?;
        let partials = partials.as_entire_buffer_binding();

        let mut dispatches = Vec::with_capacity(segments.len());
        for (segment, params) in segments.iter().zip(&attention.decode_params) {
            let tiles = u64::from(segment.num_heads) * u64::from(attention.shape.group_tiles);
            let grid = grid(u64::from(step.num_splits) * tiles, 1, profile)?;
            let io = scoped(device, "the bindings of q and out", 0, || {
                let params = params.as_entire_buffer_binding();
                let resources = [params, q.clone(), out.clone(), lse.clone(), partials.clone()];
                bind_group(device, "paged.decode_io", &attention.decode_io, &resources)
            })?;
            dispatches.push((segment, io, grid));
        }
        let merge = if step.num_partials > 0 {
            let grid = grid(heads, 1, profile)?;
            let io = scoped(device, "the bindings of out", 0, || {
                let params = attention.merge_params.as_entire_buffer_binding();
                bind_group(device, "paged.merge_io", &attention.merge_io, &[params, partials, out, lse])
            })?;
            Some((io, grid))
        } else {
            None
        };

        pass.set_pipeline(&attention.decode);
        pass.set_bind_group(0, step_group, &[]);
        for (segment, io, [x, y, z]) in &dispatches {
            pass.set_bind_group(1, &segment.read, &[]);
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

    /// The decode kernel that was chosen for the device.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Scratch for the partial results of a step. An earlier, smaller buffer lives on in the bind groups that use it.
    fn partials(&self, cache: &KvCache, step: &Step) -> Result<wgpu::Buffer, GpuError> {
        let record = u64::from(cache.layout().head_dim()) + 2;
        let elements = u64::from(step.num_partials) * u64::from(self.spec.num_q_heads) * record;
        let bytes = element_bytes("the partial results", elements, cache.profile())?;
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if scratch.size() < bytes {
            *scratch = new_scratch(cache.device(), "paged.partials", cache.profile().roomy_bytes(bytes))?;
        }
        Ok(scratch.clone())
    }
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
