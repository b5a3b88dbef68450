//! What blocks hold, on the host: K and V of all layers in the storage format, bit for bit.
//!
//! ```text
//! block  [num_layers] of: K [num_kv_heads, block_size, k_row_bytes], then V [num_kv_heads, block_size, v_row_bytes]
//! ```
//!
//! How a device cuts its layers into head shards does not show. Where layers form groups, a block has a place of each of its
//! group's layers, and is described as one of the first group: it has as many bytes in all of them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::blocks::{BlockId, SequenceRecord};
use crate::formats::KvDtype;
use crate::layout::{KvLayout, UNIT_BYTES};

/// K or V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Keys.
    K,
    /// Values.
    V,
}

impl Side {
    /// Both, in the order in which they lie in a block.
    pub const BOTH: [Self; 2] = [Self::K, Self::V];
}

/// Everything that the bytes of a block depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockShape {
    /// Storage of the elements.
    pub kv_dtype: KvDtype,
    /// Layers; places of a group, where layers form groups.
    pub num_layers: u32,
    /// KV heads per layer.
    pub num_kv_heads: u32,
    /// Elements of one head of K.
    pub head_dim: u32,
    /// Elements of one head of V.
    pub v_head_dim: u32,
    /// Tokens per block.
    pub block_size: u32,
}

impl BlockShape {
    /// The shape of a cache's blocks.
    pub fn of(layout: &KvLayout) -> Self {
        Self {
            kv_dtype: layout.kv_dtype(),
            num_layers: layout.layers_per_group(),
            num_kv_heads: layout.num_kv_heads(),
            head_dim: layout.head_dim(),
            v_head_dim: layout.v_head_dim(),
            block_size: layout.block_size(),
        }
    }

    /// Bytes of a row: one token of one KV head.
    pub fn row_bytes(&self, side: Side) -> u64 {
        let dim = match side {
            Side::K => self.head_dim,
            Side::V => self.v_head_dim,
        };
        u64::from(self.kv_dtype.row_units(dim)) * UNIT_BYTES
    }

    /// Bytes of one token in K and V of all layers.
    pub fn token_bytes(&self) -> u64 {
        let rows = u64::from(self.num_layers) * u64::from(self.num_kv_heads);
        // At most 2^16 layers and heads with rows of 2^12 bytes, wherever a shape was checked.
        rows.saturating_mul(self.row_bytes(Side::K) + self.row_bytes(Side::V))
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        self.token_bytes().saturating_mul(self.block_size.into())
    }

    /// Where the rows of a head begin in a block; those of the next head follow at once.
    pub fn head_offset(&self, layer: u32, side: Side, head: u32) -> u64 {
        let (heads, tokens) = (u64::from(self.num_kv_heads), u64::from(self.block_size));
        let layer_rows = match side {
            Side::K => 0,
            Side::V => heads * self.row_bytes(Side::K),
        };
        let layer_bytes = heads * (self.row_bytes(Side::K) + self.row_bytes(Side::V));
        tokens * (u64::from(layer) * layer_bytes + layer_rows + u64::from(head) * self.row_bytes(side))
    }

    /// The first difference that matters, as its name, ours and theirs; the block size only if asked for.
    pub(crate) fn difference(&self, other: &Self, block_size: bool) -> Option<(&'static str, String, String)> {
        let numbers = [
            ("num_layers", self.num_layers, other.num_layers),
            ("num_kv_heads", self.num_kv_heads, other.num_kv_heads),
            ("head_dim", self.head_dim, other.head_dim),
            ("v_head_dim", self.v_head_dim, other.v_head_dim),
            ("block_size", self.block_size, if block_size { other.block_size } else { self.block_size }),
        ];
        if self.kv_dtype != other.kv_dtype {
            return Some(("kv_dtype", self.kv_dtype.to_string(), other.kv_dtype.to_string()));
        }
        let differs = numbers.into_iter().find(|(_, ours, theirs)| ours != theirs);
        differs.map(|(name, ours, theirs)| (name, ours.to_string(), theirs.to_string()))
    }
}

/// The contents of some blocks, each under the number that it had on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostBlocks {
    shape: BlockShape,
    /// Of their cache, where its layers form several groups: then what a block holds depends on whose it is.
    groups: Option<KvLayout>,
    /// In ascending order, none twice.
    ids: Vec<BlockId>,
    bytes: Vec<u8>,
}

impl HostBlocks {
    /// Blocks of zeros, or the bytes that there was no memory for. The ids ascend.
    pub(crate) fn zeros(shape: BlockShape, ids: Vec<BlockId>) -> Result<Self, u64> {
        let size = shape.block_bytes().saturating_mul(ids.len() as u64);
        let mut bytes = Vec::new();
        let len = usize::try_from(size).map_err(|_| size)?;
        bytes.try_reserve_exact(len).map_err(|_| size)?;
        bytes.resize(len, 0);
        Ok(Self { shape, groups: None, ids, bytes })
    }

    /// The same, of a cache of this layout.
    pub(crate) fn of_cache(layout: &KvLayout, ids: Vec<BlockId>) -> Result<Self, u64> {
        let groups = (layout.num_groups() > 1).then(|| layout.clone());
        Ok(Self { groups, ..Self::zeros(BlockShape::of(layout), ids)? })
    }

    /// Groups of layers of their cache.
    pub(crate) fn num_groups(&self) -> usize {
        self.groups.as_ref().map_or(1, KvLayout::num_groups)
    }

    /// What keeps the blocks from a cache of this layout, as its name, ours and theirs.
    pub(crate) fn difference(&self, layout: &KvLayout) -> Option<(&'static str, String, String)> {
        match &self.groups {
            Some(own) => {
                // A pool of another size has the same blocks.
                layout.difference(&own.with_pool_of(layout))
            }
            None if layout.num_groups() > 1 => Some(("num_groups", "1".to_owned(), layout.num_groups().to_string())),
            None => self.shape.difference(&BlockShape::of(layout), true),
        }
    }

    /// The shape of the blocks.
    pub fn shape(&self) -> &BlockShape {
        &self.shape
    }

    /// The numbers of the blocks, in ascending order.
    pub fn ids(&self) -> &[BlockId] {
        &self.ids
    }

    /// All bytes, block after block.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What block `id` held; `None` if it is not here.
    pub fn block(&self, id: BlockId) -> Option<&[u8]> {
        let place = self.place(id)?;
        Some(&self.bytes[self.range(place)])
    }

    /// The place of a block among the others.
    pub(crate) fn place(&self, id: BlockId) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    /// The block at a place, to be written.
    pub(crate) fn block_mut(&mut self, place: usize) -> &mut [u8] {
        let range = self.range(place);
        &mut self.bytes[range]
    }

    fn range(&self, place: usize) -> Range<usize> {
        // `zeros` has counted all of them.
        let size = self.shape.block_bytes() as usize;
        place * size..(place + 1) * size
    }
}

/// The blocks that the records name, in ascending order, each once.
pub fn distinct_blocks<'a>(records: impl IntoIterator<Item = &'a SequenceRecord>) -> Vec<BlockId> {
    let mut blocks: Vec<BlockId> =
        records.into_iter().flat_map(SequenceRecord::tables).flatten().copied().flatten().collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CacheConfig;

    #[test]
    fn heads_lie_behind_each_other_and_fill_the_block() {
        for format in KvDtype::ALL {
            let config = CacheConfig::new(3, 5, 40).with_v_head_dim(72).with_block_size(7).with_num_blocks(1);
            let layout = config.with_kv_dtype(format).layout().unwrap();
            let shape = BlockShape::of(&layout);
            assert_eq!(shape.block_bytes(), layout.block_bytes());
            let mut end = 0;
            for layer in 0..3 {
                for side in Side::BOTH {
                    for head in 0..5 {
                        assert_eq!(shape.head_offset(layer, side, head), end, "{format} {layer} {side:?} {head}");
                        end += 7 * shape.row_bytes(side);
                    }
                }
            }
            assert_eq!(end, shape.block_bytes());
        }
    }

    #[test]
    fn a_difference_is_named() {
        let layout = CacheConfig::new(3, 5, 40).with_num_blocks(1).layout().unwrap();
        let shape = BlockShape::of(&layout);
        assert_eq!(shape.difference(&shape, true), None);
        let other = BlockShape { block_size: 8, ..shape };
        assert_eq!(shape.difference(&other, false), None);
        assert_eq!(shape.difference(&other, true), Some(("block_size", "16".into(), "8".into())));
        let other = BlockShape { kv_dtype: KvDtype::Int4, ..other };
        assert_eq!(shape.difference(&other, false), Some(("kv_dtype", "f16".into(), "int4".into())));
    }
}
