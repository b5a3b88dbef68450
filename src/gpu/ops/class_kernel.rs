//! The attention kernel for one class of query tiles, and how its work is dealt out to dispatches.

use crate::error::PlanError;
use crate::gpu::binding::grid;
use crate::gpu::cache::KvCache;
use crate::gpu::error::DeviceError;
use crate::gpu::kernel::Kernel;
use crate::gpu::kernel::attention_shape::AttentionShape;
use crate::gpu::make::LazyPipeline;
use crate::gpu::ops::spec::AttentionSpec;
use crate::gpu::profile::DeviceProfile;
use crate::gpu::step::ClassWork;

/// A kernel with its shape.
#[derive(Debug)]
pub(crate) struct ClassKernel {
    pub(crate) kernel: Kernel,
    pub(crate) shape: AttentionShape,
    pipeline: LazyPipeline,
}

impl ClassKernel {
    pub(crate) fn new(kernel: Kernel, shape: AttentionShape) -> Self {
        Self { kernel, shape, pipeline: LazyPipeline::default() }
    }

    pub(crate) fn pipeline(
        &self,
        cache: &KvCache,
        io: &wgpu::BindGroupLayout,
    ) -> Result<wgpu::ComputePipeline, DeviceError> {
        self.pipeline.get(&cache.maker, &self.kernel, &[&cache.layouts.step, &cache.layouts.pools, io])
    }

    /// The dispatches over one head shard of `num_heads` KV heads: the first work item of each, and its grid.
    pub(crate) fn grids(
        &self,
        profile: &DeviceProfile,
        spec: &AttentionSpec,
        work: &ClassWork,
        num_heads: u32,
        split_tokens: u32,
    ) -> Result<Vec<(u32, [u32; 3])>, PlanError> {
        // With a window the kernel numbers tiles, and the third dimension their splits.
        let (items, splits) = match spec.window {
            None => (work.num_items, 1),
            Some(window) if spec.causal => {
                (work.num_tiles, work.window_splits(self.shape.tokens(), window, split_tokens))
            }
            // All keys past the window's start are seen.
            Some(_) => (work.num_tiles, work.max_tile_items),
        };
        if splits > profile.max_workgroups_per_dim {
            let (value, limit) = (splits.into(), profile.max_workgroups_per_dim.into());
            return Err(PlanError::TooLarge { what: "splits of a row", value, limit });
        }
        let groups = u64::from(items) * u64::from(num_heads) * u64::from(self.shape.head_tiles);
        // Checks that all of them can be numbered.
        grid(groups, 1, profile)?;
        let group_work = u64::from(work.max_item_keys.max(1)) * u64::from(self.shape.rows()) * u64::from(splits);
        let most = (profile.max_dispatch_work / group_work).max(1);
        let mut grids = Vec::new();
        let mut first = 0;
        while first < groups {
            let [x, y, _] = grid(most.min(groups - first), 1, profile)?;
            grids.push((first as u32, [x, y, splits]));
            first += u64::from(x) * u64::from(y);
        }
        Ok(grids)
    }
}
