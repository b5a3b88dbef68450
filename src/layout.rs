//! Strides, bytes and offsets of K and V. No other file on the host computes one.
//!
//! Each layer has a K pool and a V pool. A pool is cut by KV heads into *head shards*, so that each fits one storage
//! binding; K and V are cut alike. Inside a head shard everything is counted in *units* of 16 bytes, one `vec4<u32>`:
//!
//! ```text
//! K    [num_blocks, heads_in_shard, block_size, k_row_units]     row-major; V alike, with v_row_units
//! row  = (block * heads_in_shard + head) * block_size + position % block_size
//! unit = row * k_row_units: the first of a row, which is one token of one head
//!        data units, head_dim elements padded to whole units, then scale units, where the format has scales
//! ```
//!
//! [`formats`](crate::formats) says what a unit holds.
//!
//! Where layers are of unlike kinds they form groups ([`KvLayout::groups`]), each with its own tables and KV heads, and its own
//! tokens per block, so that a block has the same bytes in all of them. A K pool and a V pool then belong to a *place*, which
//! is one layer of every group.

mod check;
mod groups;

use std::sync::Arc;

use self::groups::Groups;
use crate::error::LayoutError;
use crate::formats::KvDtype;
use crate::ids::BlockId;
use crate::setters::options;

pub use self::groups::LayerPlace;

/// Bytes of one unit, the granule of all loads and stores of K and V.
pub const UNIT_BYTES: u64 = 16;

/// The slot of a padding token, for which nothing is written.
pub const SKIP_SLOT: u32 = u32::MAX;

/// A head shard stays below 2^32 bytes whatever the device offers: byte offsets wrap there on some of them.
const MAX_SHARD_BYTES: u64 = u32::MAX as u64;

/// The checked shape of a cache; made by [`CacheConfig::layout`](crate::config::CacheConfig::layout).
///
/// Where it has several [`groups`](Self::groups), what is said of one layer, its heads, rows, slots and tables, is said of
/// those of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    num_layers: u32,
    num_kv_heads: u32,
    head_dim: u32,
    v_head_dim: u32,
    kv_dtype: KvDtype,
    paged: bool,
    /// Tokens per block; `max_seq_len` where the cache is contiguous.
    block_size: u32,
    num_blocks: u32,
    max_num_blocks: u32,
    max_seq_len: u32,
    max_sequences: u32,
    window: Option<u32>,
    layers_per_group: u32,
    /// `None` where all layers are alike, and in each group's own layout.
    groups: Option<Arc<Groups>>,
}

impl KvLayout {
    options! {
        /// Layers that keep K and V.
        num_layers: u32;
        /// KV heads per layer.
        num_kv_heads: u32;
        /// Elements of one head of K, and of a query.
        head_dim: u32;
        /// Elements of one head of V, and of an output.
        v_head_dim: u32;
        /// Storage of the elements.
        kv_dtype: KvDtype;
        /// Whether sequences take their memory block by block.
        paged: bool;
        /// Tokens per block; `max_seq_len` where the cache is contiguous.
        block_size: u32;
        /// Blocks in the pool; ids run from 0 to one less.
        num_blocks: u32;
        /// Blocks to which the pool may grow.
        max_num_blocks: u32;
        /// The longest sequence, in tokens.
        max_seq_len: u32;
        /// Sequences that may live at a time: rows of the block table.
        max_sequences: u32;
        /// Keys that a query sees; `None` where it sees all.
        window: Option<u32>;
        /// Places of a group, and pools of K: all layers where they are alike.
        layers_per_group: u32;
    }

    /// Blocks of the longest sequence: columns of the block table.
    pub fn max_blocks_per_seq(&self) -> u32 {
        self.blocks_for(self.max_seq_len)
    }

    /// Blocks that `tokens` tokens occupy; none for none.
    pub fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    /// Slots in the pool: places for one token.
    pub fn num_slots(&self) -> u64 {
        u64::from(self.num_blocks) * u64::from(self.block_size)
    }

    /// Units of one row of K: `head_dim` elements, padded, and their scales.
    pub fn k_row_units(&self) -> u32 {
        self.kv_dtype.row_units(self.head_dim)
    }

    /// Units of one row of V, alike.
    pub fn v_row_units(&self) -> u32 {
        self.kv_dtype.row_units(self.v_head_dim)
    }

    /// Bytes of one row of K, padding and scales included.
    pub fn k_row_bytes(&self) -> u64 {
        u64::from(self.k_row_units()) * UNIT_BYTES
    }

    /// Bytes of one row of V, alike.
    pub fn v_row_bytes(&self) -> u64 {
        u64::from(self.v_row_units()) * UNIT_BYTES
    }

    /// Bytes that one token takes in K and V of all layers, while no window has moved on.
    pub fn bytes_per_token(&self) -> u64 {
        self.groups().iter().map(|group| u64::from(group.num_layers) * group.place_token_bytes()).sum()
    }

    /// Bytes of one token in K and V of one layer.
    fn place_token_bytes(&self) -> u64 {
        // At most 2^16 layers, 2^16 heads, 2^11 bytes, K and V: 2^44.
        u64::from(self.num_kv_heads) * (self.k_row_bytes() + self.v_row_bytes())
    }

    /// Bytes that one block takes in K and V of all layers of a group, empty places included; the same in all groups.
    pub fn block_bytes(&self) -> u64 {
        // The configuration is refused if this overflows.
        let token_bytes = u64::from(self.layers_per_group) * self.place_token_bytes();
        token_bytes.saturating_mul(self.block_size.into())
    }

    /// Bytes of K and V of one layer, or of one place of all groups.
    pub fn layer_bytes(&self) -> u64 {
        self.total_bytes() / u64::from(self.layers_per_group)
    }

    /// Bytes of K and V of all places: what the pool takes on the device.
    pub fn total_bytes(&self) -> u64 {
        self.block_bytes() * u64::from(self.num_blocks)
    }

    /// The slot of a position inside a block: `block * block_size + position % block_size`.
    ///
    /// A block outside the pool gives [`SKIP_SLOT`].
    pub fn slot(&self, block: BlockId, position: u32) -> u32 {
        if block.get() >= self.num_blocks {
            return SKIP_SLOT;
        }
        // Below num_slots, which is at most SKIP_SLOT.
        block.get() * self.block_size + position % self.block_size
    }

    /// Number of a row inside a head shard of `heads_in_shard` heads. Times [`k_row_units`](Self::k_row_units) it is K's
    /// first unit, times [`v_row_units`](Self::v_row_units) V's.
    ///
    /// Counted in 64 bits, so it is right for any slot, also beyond the pool; inside a head shard that
    /// [`head_shards`](Self::head_shards) returned, units are always below 2^28.
    pub fn row_index(&self, heads_in_shard: u32, slot: u32, head_in_shard: u32) -> u64 {
        let block = u64::from(slot / self.block_size);
        let within = u64::from(slot % self.block_size);
        (block * u64::from(heads_in_shard))
            .saturating_add(head_in_shard.into())
            .saturating_mul(self.block_size.into())
            .saturating_add(within)
    }

    /// Bytes of K in a head shard of `heads` heads.
    pub fn k_shard_bytes(&self, heads: u32) -> u64 {
        // Fewer heads than the layer has, so it is below total_bytes, which was checked; larger arguments saturate.
        self.num_slots().saturating_mul(self.k_row_bytes()).saturating_mul(heads.into())
    }

    /// Bytes of V in a head shard of `heads` heads.
    pub fn v_shard_bytes(&self, heads: u32) -> u64 {
        self.num_slots().saturating_mul(self.v_row_bytes()).saturating_mul(heads.into())
    }

    /// Bytes of K of one block in a head shard of `heads` heads.
    pub(crate) fn k_block_bytes(&self, heads: u32) -> u64 {
        u64::from(self.block_size) * self.k_row_bytes() * u64::from(heads)
    }

    /// Bytes of V, alike.
    pub(crate) fn v_block_bytes(&self, heads: u32) -> u64 {
        u64::from(self.block_size) * self.v_row_bytes() * u64::from(heads)
    }

    /// The same cache with a pool of another size, which the caller has checked.
    pub(crate) fn with_num_blocks(&self, num_blocks: u32) -> Self {
        debug_assert!((1..=self.max_num_blocks).contains(&num_blocks));
        self.with_pool(num_blocks, self.max_num_blocks)
    }

    /// The same cache with a pool as large as another's, to compare what their blocks hold.
    pub(crate) fn with_pool_of(&self, other: &Self) -> Self {
        self.with_pool(other.num_blocks, other.max_num_blocks)
    }

    /// Blocks of the largest pool of which one KV head fits a binding of `max_binding_bytes`, however many this one has.
    pub fn max_blocks_within(&self, max_binding_bytes: u64) -> u64 {
        let head_bytes = |group: &Self| group.k_block_bytes(1).max(group.v_block_bytes(1));
        let most = self.groups().iter().map(head_bytes).max().unwrap_or(1);
        max_binding_bytes.min(MAX_SHARD_BYTES) / most
    }

    /// What keeps a plan or a manager of another layout from this cache: the first field that differs, its value there and
    /// ours. The pool may be larger than theirs, for it grows first and shrinks last.
    pub(crate) fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        if self == other {
            return None;
        }
        if self.num_groups() != other.num_groups() {
            return Some(("num_groups", other.num_groups().to_string(), self.num_groups().to_string()));
        }
        if self.groups.is_some() {
            let pairs = self.groups().iter().zip(other.groups());
            let differs = pairs.filter_map(|(ours, theirs)| ours.difference(theirs)).next();
            // Groups that are alike may have their layers in another order.
            let layers = || ("layers", "dealt out in another way".to_owned(), "in their own order".to_owned());
            return differs.or_else(|| (!self.has_layers_of(other)).then(layers));
        }
        let of = |it: &Self| {
            [
                ("num_layers", it.num_layers),
                ("num_kv_heads", it.num_kv_heads),
                ("head_dim", it.head_dim),
                ("v_head_dim", it.v_head_dim),
                ("block_size", it.block_size),
                ("num_blocks", it.num_blocks.max(self.num_blocks)),
                ("max_seq_len", it.max_seq_len),
                ("max_sequences", it.max_sequences),
                ("paged", it.paged.into()),
                ("layers_per_group", it.layers_per_group),
                // 0 is no window.
                ("window", it.window.unwrap_or(0)),
            ]
        };
        if self.kv_dtype != other.kv_dtype {
            return Some(("kv_dtype", other.kv_dtype.to_string(), self.kv_dtype.to_string()));
        }
        let differs = of(other).into_iter().zip(of(self)).find(|(theirs, ours)| theirs != ours);
        differs.map(|((name, theirs), (_, ours))| (name, theirs.to_string(), ours.to_string()))
    }

    /// Cuts a layer's K pool, and its V pool alike, into head shards of at most `max_binding_bytes`.
    ///
    /// There are as few head shards as possible, and their sizes differ as little as possible. The wider of K and V
    /// decides, with as many blocks as the pool may ever have.
    ///
    /// # Errors
    /// [`LayoutError::HeadTooLarge`] if not even one head fits; where there are several groups, as
    /// [`group_head_shards`](Self::group_head_shards), of which this is the first.
    pub fn head_shards(&self, max_binding_bytes: u64) -> Result<HeadShards, LayoutError> {
        Ok(self.group_head_shards(max_binding_bytes)?[0])
    }

    /// The fewest head shards that fit, of this group alone.
    fn shards_within(&self, max_binding_bytes: u64) -> Result<HeadShards, LayoutError> {
        let limit = max_binding_bytes.min(MAX_SHARD_BYTES);
        let head_bytes = self.head_bytes();
        let fitting = (limit / head_bytes).min(self.num_kv_heads.into()) as u32;
        if fitting == 0 {
            let max_blocks = self.max_blocks_within(limit);
            return Err(LayoutError::HeadTooLarge { head_bytes, limit, num_blocks: self.max_num_blocks, max_blocks });
        }
        Ok(self.shards(self.num_kv_heads.div_ceil(fitting)))
    }

    /// Bytes of K or V of one head, whichever are more, in a pool that has grown to the full.
    fn head_bytes(&self) -> u64 {
        u64::from(self.max_num_blocks) * self.k_block_bytes(1).max(self.v_block_bytes(1))
    }

    /// `count` head shards.
    fn shards(&self, count: u32) -> HeadShards {
        let heads_per_shard = self.num_kv_heads.div_ceil(count);
        HeadShards {
            heads_per_shard,
            count,
            bytes: self.head_bytes() * u64::from(heads_per_shard),
            num_kv_heads: self.num_kv_heads,
        }
    }
}

/// How the KV heads of a layer are dealt out to bindings; the last head shard may have fewer heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShards {
    /// Heads in every head shard but the last.
    pub heads_per_shard: u32,
    /// HeadShards of a layer.
    pub count: u32,
    /// Bytes of K or V, whichever are more, in a head shard of `heads_per_shard` heads, in a pool that has grown to the full.
    pub bytes: u64,
    num_kv_heads: u32,
}

impl HeadShards {
    /// `(first_head, num_heads)` of every head shard, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + use<> {
        let Self { heads_per_shard, num_kv_heads, .. } = *self;
        (0..self.count).map(move |head_shard| {
            let first = head_shard * heads_per_shard;
            (first, heads_per_shard.min(num_kv_heads - first))
        })
    }
}

#[cfg(test)]
mod tests;
