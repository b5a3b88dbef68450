//! What the limits of a device make of a pool.

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::blocks::BlockId;
use wgpu_paged_attention::config::MAX_SLOTS;
use wgpu_paged_attention::gpu::recommended_limits;
use wgpu_paged_attention::layout::KvLayout;
use wgpu_paged_attention::testkit::is_software;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLimits {
    pub name: String,
    pub software: bool,
    pub binding_bytes: u64,
    pub buffer_bytes: u64,
}

impl DeviceLimits {
    pub fn webgpu_defaults() -> Self {
        Self::with("WebGPU's default limits".to_owned(), false, &wgpu::Limits::default())
    }

    pub fn of(adapter: &wgpu::Adapter) -> Self {
        let info = adapter.get_info();
        let software = is_software(&info);
        Self::with(info.name, software, &recommended_limits(adapter))
    }

    fn with(name: String, software: bool, limits: &wgpu::Limits) -> Self {
        Self {
            name,
            software,
            binding_bytes: limits.max_storage_buffer_binding_size,
            buffer_bytes: limits.max_buffer_size,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRecord {
    pub device: DeviceLimits,
    /// Pieces of a layer's K, and of its V; `None` if not even one KV head fits a binding.
    pub head_shards: Option<u32>,
    pub heads_per_shard: Option<u32>,
    pub shard_bytes: Option<u64>,
    /// The most blocks of any pool, one KV head in a piece.
    pub max_blocks: u64,
    pub max_pool_bytes: u64,
}

impl LimitRecord {
    pub(super) fn of(device: DeviceLimits, layout: &KvLayout) -> Self {
        let most = device.binding_bytes.min(device.buffer_bytes);
        let head_shards = layout.head_shards(most).ok();
        let max_blocks = layout
            .max_blocks_within(most)
            .min(u64::from(BlockId::MAX.get()) + 1)
            .min(MAX_SLOTS / u64::from(layout.block_size()));
        Self {
            device,
            head_shards: head_shards.map(|head_shards| head_shards.count),
            heads_per_shard: head_shards.map(|head_shards| head_shards.heads_per_shard),
            shard_bytes: head_shards.map(|head_shards| head_shards.bytes),
            max_blocks,
            max_pool_bytes: max_blocks.saturating_mul(layout.block_bytes()),
        }
    }
}
