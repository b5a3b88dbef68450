//! The pools of a layer, cut by KV heads. Where layers form groups, those of one place share them.

use super::arena::SharedLayouts;
use super::error::DeviceError;
use super::kernel::params::ShardParams;
use super::make::Maker;
use crate::layout::{HeadShards, KvLayout};

/// The KV heads of one layer that share a pair of bindings.
#[derive(Clone, Debug)]
pub struct HeadShard {
    /// First KV head.
    pub first_head: u32,
    /// KV heads.
    pub num_heads: u32,
    /// K: `[num_blocks, num_heads, block_size, k_row_units]` units of 16 bytes.
    pub k: wgpu::Buffer,
    /// V: `[num_blocks, num_heads, block_size, v_row_units]`.
    pub v: wgpu::Buffer,
    pub(super) read: wgpu::BindGroup,
    pub(super) write: wgpu::BindGroup,
    /// How many heads of the first group there are, for kernels that see blocks as a whole.
    pub(super) params: wgpu::BindGroup,
}

impl HeadShard {
    /// Empty pools of a place, for all heads of the first group, whose layout this is.
    pub(super) fn of_place(
        maker: &Maker,
        layout: &KvLayout,
        layouts: &SharedLayouts,
        head_shards: &HeadShards,
        place: u32,
    ) -> Result<Vec<Self>, DeviceError> {
        let new_shard = |(first_head, num_heads)| {
            let Pools { k, v, read, write } = Pools::new(maker, layout, layouts, place, num_heads)?;
            let params =
                maker.uniform("paged.shard_params", &ShardParams { num_kv_heads: num_heads, ..Default::default() })?;
            let params = maker.bind_group("paged.shard", &layouts.shard, &[params.as_entire_buffer_binding()])?;
            Ok(Self { first_head, num_heads, k, v, read, write, params })
        };
        head_shards.iter().map(new_shard).collect()
    }

    /// The same buffers with the KV heads of another group.
    pub(super) fn seen_as(&self, first_head: u32, num_heads: u32) -> Self {
        Self { first_head, num_heads, ..self.clone() }
    }

    /// Empty pools of `layout` for the same heads.
    pub(super) fn resized(
        &self,
        maker: &Maker,
        layout: &KvLayout,
        layouts: &SharedLayouts,
        place: u32,
    ) -> Result<Self, DeviceError> {
        let Pools { k, v, read, write } = Pools::new(maker, layout, layouts, place, self.num_heads)?;
        let params = self.params.clone();
        Ok(Self { first_head: self.first_head, num_heads: self.num_heads, k, v, read, write, params })
    }
}

/// K and V of some heads, and how kernels bind them.
struct Pools {
    k: wgpu::Buffer,
    v: wgpu::Buffer,
    read: wgpu::BindGroup,
    write: wgpu::BindGroup,
}

impl Pools {
    fn new(
        maker: &Maker,
        layout: &KvLayout,
        layouts: &SharedLayouts,
        place: u32,
        num_heads: u32,
    ) -> Result<Self, DeviceError> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let k = maker.buffer(&format!("paged.k[{place}]"), usage, layout.k_shard_bytes(num_heads))?;
        let v = maker.buffer(&format!("paged.v[{place}]"), usage, layout.v_shard_bytes(num_heads))?;
        let pools = [k.as_entire_buffer_binding(), v.as_entire_buffer_binding()];
        let read = maker.bind_group("paged.pools", &layouts.pools, &pools)?;
        let write = maker.bind_group("paged.pools_append", &layouts.pools_append, &pools)?;
        Ok(Self { k, v, read, write })
    }
}

/// The pools of some head shards, as arguments that are written.
pub(super) fn pool_buffers(head_shards: &[HeadShard]) -> impl Iterator<Item = (&'static str, &wgpu::Buffer)> + Clone {
    head_shards.iter().flat_map(|head_shard| [("the pool of K", &head_shard.k), ("the pool of V", &head_shard.v)])
}
