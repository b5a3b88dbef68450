//! The attention kernel for one class of query tiles, and how its work is dealt out to dispatches.

use crate::error::PlanError;
use crate::gpu::binding::grid;
use crate::gpu::cache::KvCache;
use crate::gpu::error::DeviceError;
use crate::gpu::kernel::Kernel;
use crate::gpu::kernel::attention_shape::AttentionShape;
use crate::gpu::kernel::prefill_shape::PrefillShape;
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::make::LazyPipeline;
use crate::gpu::ops::spec::AttentionSpec;
use crate::gpu::profile::DeviceProfile;
use crate::gpu::work::ClassWork;
use crate::layout::KvLayout;
use crate::plan::{CHUNK_CLASS, TILE_CLASSES, workgroups};

/// The kernels of an attention over caches of this layout, on devices of this profile: one per class of query tiles.
pub(crate) fn class_kernels(
    profile: &DeviceProfile,
    layout: &KvLayout,
    spec: &AttentionSpec,
) -> [ClassKernel; TILE_CLASSES] {
    let (kv, paged, variant) = (KvShape::of(layout), layout.paged(), spec.variant());
    let group = spec.num_q_heads / layout.num_kv_heads();
    let form = profile.attention_form();
    std::array::from_fn(|class| {
        if class == CHUNK_CLASS {
            let form = profile.chunk_form;
            let kernel = Kernel::PagedPrefill { kv, paged, group, form, variant };
            return ClassKernel::new(kernel, ClassShape::Chunk(PrefillShape::new(&kv, group, form)));
        }
        let class = class as u32;
        let kernel = Kernel::PagedAttention { kv, paged, group, class, form, variant };
        ClassKernel::new(kernel, ClassShape::Tile(AttentionShape::new(&kv, group, class, form)))
    })
}

/// The shape of a kernel, by its class.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClassShape {
    /// Of query tiles as wide as the class.
    Tile(AttentionShape),
    /// Of chunks of prompts.
    Chunk(PrefillShape),
}

impl ClassShape {
    /// Query tokens of a workgroup.
    #[cfg(feature = "testkit")]
    pub(crate) fn tokens(&self) -> u32 {
        match self {
            Self::Tile(shape) => shape.tokens(),
            Self::Chunk(shape) => shape.tokens(),
        }
    }

    /// Workgroups that share a work item.
    fn parts_per_item(&self) -> u32 {
        match self {
            Self::Tile(shape) => shape.head_tiles,
            Self::Chunk(shape) => shape.parts_per_item(),
        }
    }

    /// Query rows of a workgroup.
    fn rows(&self) -> u32 {
        match self {
            Self::Tile(shape) => shape.rows(),
            Self::Chunk(shape) => shape.rows(),
        }
    }

    /// Loop rounds of one invocation, for the most keys of a work item and so many tiles.
    pub(crate) fn loop_rounds(&self, keys: u32, num_tiles: u32) -> u64 {
        match self {
            Self::Tile(shape) => shape.loop_rounds(keys, num_tiles),
            Self::Chunk(shape) => shape.loop_rounds(keys, num_tiles),
        }
    }
}

/// A kernel with its shape.
#[derive(Debug)]
pub(crate) struct ClassKernel {
    pub(crate) kernel: Kernel,
    pub(crate) shape: ClassShape,
    pipeline: LazyPipeline,
}

impl ClassKernel {
    pub(crate) fn new(kernel: Kernel, shape: ClassShape) -> Self {
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
    ) -> Result<impl Iterator<Item = Result<(u32, [u32; 3]), PlanError>> + use<>, PlanError> {
        // With a window the kernel numbers tiles, and the third dimension their splits.
        let (items, splits, item_keys) = match spec.window {
            None => (work.num_items, 1, work.max_item_keys.max(1)),
            Some(window) => {
                let (splits, keys) = work.seen(spec.causal, window);
                (work.num_tiles(), splits, keys)
            }
        };
        if splits > profile.max_workgroups_per_dim {
            let (value, limit) = (splits.into(), profile.max_workgroups_per_dim.into());
            return Err(PlanError::TooLarge { what: "splits of a row", value, limit });
        }
        let groups = u64::from(items) * u64::from(num_heads) * u64::from(self.shape.parts_per_item());
        // Checks that all of them can be numbered.
        grid(groups, 1, profile)?;
        let group_work = u64::from(item_keys) * u64::from(self.shape.rows());
        let numbered = u64::from(u32::MAX / splits) / 2;
        let most = (profile.max_dispatch_work / group_work).clamp(1, numbered.max(1));
        let max_per_dim = profile.max_workgroups_per_dim;
        let mut first = 0;
        Ok(std::iter::from_fn(move || {
            let left = groups.saturating_sub(first).min(most);
            (left > 0).then(|| {
                let [x, y, _] = workgroups(left, 1, max_per_dim)?;
                let from = first as u32;
                first += u64::from(x) * u64::from(y);
                Ok((from, [x, y, splits]))
            })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::KvDtype;
    use crate::gpu::kernel::attention_shape::AttentionForm;
    use crate::gpu::kernel::chunk_form::ChunkForm;
    use crate::gpu::kernel::shape::{LaneComm, Scoring};
    use crate::plan::reach::Reach;

    /// The grids of 8 decoding sequences of `len` tokens, for 8 KV heads.
    fn grids(len: u32, window: u32) -> Vec<(u32, [u32; 3])> {
        let kv = KvShape { format: KvDtype::F16, head_dim: 128, v_head_dim: 128, block_size: 16 };
        let spec = AttentionSpec::new(32).with_window(window);
        let lane_comm = LaneComm::Subgroup { lanes: 8 };
        let form = AttentionForm {
            lane_comm,
            scoring: Scoring::KeyLanes,
            tile_rows: 16,
            unrolled: true,
            loads: 1,
            whole: false,
            wide_loads: false,
            subgroups: 1,
        };
        let variant = spec.variant();
        let kernel = Kernel::PagedAttention { kv, paged: true, group: 4, class: 0, form, variant };
        let profile = DeviceProfile {
            lane_comm,
            scoring: Scoring::KeyLanes,
            split_tokens: 1024,
            tile_rows: 16,
            unrolled: true,
            loads: 1,
            wide_loads: false,
            subgroups: 1,
            tile_tokens: 16,
            chunk_queries: 9,
            chunk_split_tokens: 16_384,
            chunk_form: ChunkForm::QueryTiles,
            share_prefixes: true,
            max_dispatch_work: 1 << 25,
            max_loop_rounds: 65_535,
            max_binding_bytes: 1 << 27,
            max_buffer_bytes: 1 << 28,
            max_workgroups_per_dim: 65_535,
            offset_alignment: 256,
            software: true,
        };
        let last = i64::from(len) - 1;
        let reach = Reach { first: last, last, key_begin: 0, key_end: len, split_tokens: 1024 };
        let work =
            ClassWork { num_items: 8 * len.div_ceil(1024), max_item_keys: len.min(1024), reaches: vec![reach; 8] };
        let shape = ClassShape::Tile(AttentionShape::new(&kv, 4, 0, form));
        ClassKernel::new(kernel, shape).grids(&profile, &spec, &work, 8).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn x07_the_third_dimension_counts_the_splits_that_are_seen() {
        for len in [1024, 2048, 32_768, 1 << 20] {
            assert_eq!(grids(len, 512), [(0, [64, 1, 1])], "{len}");
        }
        assert_eq!(grids(32_868, 512), [(0, [64, 1, 2])]);
        assert_eq!(grids(32_868, 1025), [(0, [64, 1, 2])]);
        assert_eq!(grids(32_868, 1125), [(0, [64, 1, 3])]);
    }
}
