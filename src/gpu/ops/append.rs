//! The append of new K and V rows.

use crate::gpu::binding::{check_disjoint, grid, storage_binding};
use crate::gpu::cache::{HeadShard, KvCache, pool_buffers};
use crate::gpu::error::GpuError;
use crate::gpu::kernel::APPEND_LANES;
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::pipeline::bind_group;
use crate::gpu::scope::scoped;
use crate::gpu::step::Step;

impl KvCache {
    /// Records the append of a step's K and V rows to one layer.
    ///
    /// `k`: `[num_tokens, num_kv_heads, head_dim]`, `v`: `[num_tokens, num_kv_heads, v_head_dim]`, row-major f32, in
    /// the order of [`StepPlan::slots`](crate::plan::StepPlan::slots); the buffers need [`wgpu::BufferUsages::STORAGE`], the slices the device's
    /// offset alignment. A row whose slot is [`SKIP_SLOT`](crate::layout::SKIP_SLOT) is not written. What is stored of
    /// an element is told in [`formats`](crate::formats), to the bit. [`append_with`](Self::append_with) takes rows in
    /// f16 and applies rotary embedding.
    ///
    /// # Errors
    /// [`GpuError::Layer`], [`GpuError::Foreign`], or an error that names the buffer; nothing is recorded then.
    pub fn append(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        step: &Step,
        layer: u32,
        k: wgpu::BufferSlice<'_>,
        v: wgpu::BufferSlice<'_>,
    ) -> Result<(), GpuError> {
        let head_shards = self.head_shards(layer)?;
        let step_group = step.bind_group(self)?;
        if step.num_tokens == 0 {
            return Ok(());
        }
        let rows = u64::from(step.num_tokens) * u64::from(self.layout().num_kv_heads());
        let k = storage_binding("k", k, rows * u64::from(self.layout().head_dim()), self.profile())?;
        let v = storage_binding("v", v, rows * u64::from(self.layout().v_head_dim()), self.profile())?;
        check_disjoint(&[("k", k.buffer), ("v", v.buffer)], &pool_buffers(head_shards))?;
        let dispatches = self.append_dispatches(step, head_shards, &self.append_io, &[k, v])?;
        record_append(pass, &self.append, step_group, &dispatches);
        step.keep(pass);
        Ok(())
    }

    /// The dispatches of an append to some head shards, whose kernel reads `rows` behind its parameters.
    pub(crate) fn append_dispatches<'a>(
        &self,
        step: &Step,
        head_shards: &'a [HeadShard],
        io: &wgpu::BindGroupLayout,
        rows: &[wgpu::BufferBinding<'_>],
    ) -> Result<Vec<AppendDispatch<'a>>, GpuError> {
        let dispatch = |head_shard: &'a HeadShard| {
            let rows_written = u64::from(step.num_tokens) * u64::from(head_shard.num_heads);
            let items = rows_written * u64::from(KvShape::of(self.layout()).row_lanes());
            let grid = grid(items, APPEND_LANES, self.profile())?;
            let io = scoped(self.device(), "the bindings of k and v", 0, || {
                let mut resources = vec![head_shard.append_params.as_entire_buffer_binding()];
                resources.extend_from_slice(rows);
                bind_group(self.device(), "paged.append_io", io, &resources)
            })?;
            Ok(AppendDispatch { head_shard, io, grid })
        };
        head_shards.iter().map(dispatch).collect()
    }
}

/// The append to one head shard.
pub(crate) struct AppendDispatch<'a> {
    head_shard: &'a HeadShard,
    io: wgpu::BindGroup,
    grid: [u32; 3],
}

pub(crate) fn record_append(
    pass: &mut wgpu::ComputePass<'_>,
    pipeline: &wgpu::ComputePipeline,
    step_group: &wgpu::BindGroup,
    dispatches: &[AppendDispatch<'_>],
) {
    pass.set_pipeline(pipeline);
    pass.set_bind_group(0, step_group, &[]);
    for AppendDispatch { head_shard, io, grid: [x, y, z] } in dispatches {
        pass.set_bind_group(1, &head_shard.write, &[]);
        pass.set_bind_group(2, io, &[]);
        pass.dispatch_workgroups(*x, *y, *z);
    }
}
