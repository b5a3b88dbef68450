//! The groups of a cache's layers on a device: each has block tables of its own and sees the pools of every place as if it
//! were alone.

use std::fmt;

use super::binding::element_bytes;
use super::cache::KvCache;
use super::error::{ArgumentError, DeviceError};
use super::kernel::shape::KvShape;
use super::make::Maker;
use super::pools::HeadShard;
use super::profile::DeviceProfile;
use crate::layout::{HeadShards, KvLayout};

/// A group's tables, and its view of the pools.
#[derive(Debug)]
pub(super) struct LayerGroup {
    /// `[max_sequences, max_blocks_per_seq]`
    pub(super) tables: wgpu::Buffer,
    /// `[places][head shards]`, with the group's KV heads. The buffers are those of all groups.
    pub(super) places: Vec<Vec<HeadShard>>,
}

impl LayerGroup {
    /// A group's view of `pools`, the head shards of every place, which `cut` deals out to its own heads.
    pub(super) fn new(
        maker: &Maker,
        table_bytes: u64,
        cut: &HeadShards,
        pools: &[Vec<HeadShard>],
    ) -> Result<Self, DeviceError> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        let seen = |shards: &Vec<HeadShard>| {
            let heads = shards.iter().zip(cut.iter());
            heads.map(|(shard, (first, count))| shard.seen_as(first, count)).collect()
        };
        let places = pools.iter().map(seen).collect();
        Ok(Self { tables: maker.buffer("paged.tables", usage, table_bytes)?, places })
    }

    /// Puts other pools in a place.
    pub(super) fn set_place(&mut self, place: usize, pools: &[HeadShard]) {
        for (shard, pool) in self.places[place].iter_mut().zip(pools) {
            *shard = pool.seen_as(shard.first_head, shard.num_heads);
        }
    }
}

/// Bytes of a group's block tables, which one binding holds.
pub(super) fn table_bytes(group: &KvLayout, profile: &DeviceProfile) -> Result<u64, DeviceError> {
    let words = u64::from(group.max_sequences()) * u64::from(group.max_blocks_per_seq());
    element_bytes("the block tables", words, profile)
}

/// What the kernels of an append or an attention are made for: layers alike in it share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerShape {
    pub(super) kv: KvShape,
    pub(super) num_kv_heads: u32,
}

impl LayerShape {
    /// The shape of a group's layers.
    pub(super) fn of(group: &KvLayout) -> Self {
        Self { kv: KvShape::of(group), num_kv_heads: group.num_kv_heads() }
    }
}

impl fmt::Display for LayerShape {
    /// As in "8 KV heads of 64 and 32 elements in blocks of 16 tokens".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KvShape { head_dim, v_head_dim, block_size, .. } = self.kv;
        write!(f, "{} KV heads of {head_dim}", self.num_kv_heads)?;
        if v_head_dim != head_dim {
            write!(f, " and {v_head_dim}")?;
        }
        write!(f, " elements in blocks of {block_size} tokens")
    }
}

/// Where a layer is served.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServedLayer<'a> {
    /// Its group.
    pub(super) group: usize,
    /// Its place there.
    pub(super) place: u32,
    /// The layout of that.
    pub(super) layout: &'a KvLayout,
    /// Its pools, in the order of its KV heads.
    pub(super) head_shards: &'a [HeadShard],
}

impl ServedLayer<'_> {
    /// Refuses `layer`, which this is, for what was made for layers of another shape.
    pub(super) fn check_shape(&self, layer: u32, made: &'static str, shape: &LayerShape) -> Result<(), ArgumentError> {
        let own = LayerShape::of(self.layout);
        if own == *shape {
            return Ok(());
        }
        let problem = format!("{layer} has {own}, but the {made} was made for {shape}; make another for this layer");
        Err(ArgumentError::new("layer", problem))
    }
}

impl KvCache {
    /// Where a layer of the model is served.
    pub(super) fn layer(&self, layer: u32) -> Result<ServedLayer<'_>, ArgumentError> {
        let Some(at) = self.layout().place(layer) else {
            let problem = format!("{layer} does not exist; the cache has {}", self.layout().num_layers());
            return Err(ArgumentError::new("layer", problem));
        };
        Ok(ServedLayer {
            group: at.group,
            place: at.place,
            layout: &self.layout().groups()[at.group],
            head_shards: &self.groups()[at.group].places[at.place as usize],
        })
    }
}
