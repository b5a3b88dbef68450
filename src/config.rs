//! What a cache should look like, as it is written in code or in a file.

mod kind;

use serde::{Deserialize, Serialize};

use crate::setters::options;

pub use self::kind::LayerKind;
pub use crate::formats::KvDtype;

/// The widest head that the kernels hold in registers.
pub const MAX_HEAD_DIM: u32 = 512;
/// The largest block, in tokens, of a paged cache.
pub const MAX_BLOCK_SIZE: u32 = 65_536;
/// Largest [`CacheConfig::max_seq_len`]: beyond, distances between positions could wrap in 32 bits.
pub const MAX_SEQ_LEN: u32 = 1 << 30;
/// The most layers or KV heads; far above any model, and low enough that sizes stay countable.
pub const MAX_LAYERS_OR_HEADS: u32 = 65_536;
/// The most groups of layers in one cache.
pub const MAX_GROUPS: usize = 16;
/// The most slots in a pool: numbers below `u32::MAX`, which means "skip".
pub const MAX_SLOTS: u64 = u32::MAX as u64 - 1;
/// The most entries in the block tables of all sequences together.
pub const MAX_TABLE_ENTRIES: u64 = 1 << 30;

/// The shape of the model's K and V, the size of the pool, and the limits of one batch.
///
/// Exactly one of [`num_blocks`](Self::num_blocks) and [`memory_budget_bytes`](Self::memory_budget_bytes) is set.
/// [`layout`](Self::layout) checks everything and works out what follows from it.
///
/// ```
/// use wgpu_paged_attention::config::CacheConfig;
///
/// // LLaMA-13B: 40 layers, 40 KV heads of 128 elements, half precision, 8 GiB of cache.
/// let layout = CacheConfig::new(40, 40, 128).with_memory_budget_bytes(8 << 30).layout()?;
/// assert_eq!(layout.bytes_per_token(), 819_200);
/// assert_eq!(layout.num_blocks(), 655);
/// # Ok::<(), wgpu_paged_attention::error::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct CacheConfig {
    /// 0 is not said, here and below, as a file may do that has `layers`.
    #[serde(default, skip_serializing_if = "is_unsaid")]
    pub(crate) num_layers: u32,
    #[serde(default, skip_serializing_if = "is_unsaid")]
    pub(crate) num_kv_heads: u32,
    #[serde(default, skip_serializing_if = "is_unsaid")]
    pub(crate) head_dim: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) v_head_dim: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) window: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) layers: Vec<LayerKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layers_per_group: Option<u32>,
    #[serde(default, alias = "kv_dtype")]
    #[serde(rename = "kv_format")]
    pub(crate) kv_dtype: KvDtype,
    #[serde(default = "default_block_size")]
    pub(crate) block_size: u32,
    #[serde(default, alias = "max_blocks", skip_serializing_if = "Option::is_none")]
    pub(crate) num_blocks: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_budget_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_num_blocks: Option<u32>,
    #[serde(default = "default_paged", alias = "enable_paged")]
    pub(crate) paged: bool,
    #[serde(default = "default_max_seq_len")]
    pub(crate) max_seq_len: u32,
    #[serde(default = "default_max_sequences")]
    pub(crate) max_sequences: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_unsaid(size: &u32) -> bool {
    *size == 0
}

const fn default_block_size() -> u32 {
    16
}

const fn default_paged() -> bool {
    true
}

const fn default_max_seq_len() -> u32 {
    4096
}

const fn default_max_sequences() -> u32 {
    256
}

impl CacheConfig {
    /// The defaults for a model of this shape; the size of the pool is still to be set.
    pub fn new(num_layers: u32, num_kv_heads: u32, head_dim: u32) -> Self {
        Self {
            num_layers,
            num_kv_heads,
            head_dim,
            v_head_dim: None,
            window: None,
            layers: Vec::new(),
            layers_per_group: None,
            kv_dtype: KvDtype::default(),
            block_size: default_block_size(),
            num_blocks: None,
            memory_budget_bytes: None,
            max_num_blocks: None,
            paged: default_paged(),
            max_seq_len: default_max_seq_len(),
            max_sequences: default_max_sequences(),
        }
    }

    /// The defaults for a model whose layers are of several kinds: one of these for each, in its order. Layers of one kind
    /// share block tables, and all share one pool.
    pub fn of_layers(layers: &[LayerKind]) -> Self {
        let same = |of: fn(&LayerKind) -> u32| {
            let first = layers.first().map_or(0, of);
            if layers.iter().all(|layer| of(layer) == first) { first } else { 0 }
        };
        let num_layers = u32::try_from(layers.len()).unwrap_or(u32::MAX);
        let config = Self::new(num_layers, same(LayerKind::num_kv_heads), same(LayerKind::head_dim));
        Self { layers: layers.to_vec(), ..config }
    }

    options! {
        /// Layers of the model that keep K and V.
        num_layers: u32, with_num_layers(u32);
        /// KV heads per layer; fewer than query heads where heads share their K and V. 0 where layers differ in them.
        num_kv_heads: u32;
        /// Elements of one head, 1 to [`MAX_HEAD_DIM`]. 0 where layers differ in them.
        head_dim: u32;
        /// Elements of one head's V, where they differ from K's `head_dim`; 1 to [`MAX_HEAD_DIM`].
        v_head_dim: Option<u32>, with_v_head_dim(u32) => Some(v_head_dim);
        /// Keys that a query of any layer sees, its own included; `None` where some layers see all. Blocks that left the window
        /// return to the pool. Where layers have unlike windows, this is the widest, or they are [told](Self::of_layers) one by
        /// one and each group of them gives back its own.
        window: Option<u32>, with_window(u32) => Some(window);
        /// Layers that share a table, at most; by default a number that leaves few places empty. Every group of layers has as
        /// many places.
        layers_per_group: Option<u32>, with_layers_per_group(u32) => Some(layers_per_group);
        /// Storage of the elements; half precision unless set.
        kv_dtype: KvDtype, with_kv_dtype(KvDtype);
        /// Tokens per block, any size from 1 to [`MAX_BLOCK_SIZE`]; 16 unless set. Where layers are of several kinds, that is so of
        /// those with the widest rows, and blocks of the others have more tokens in the same bytes.
        block_size: u32, with_block_size(u32);
        /// Blocks in the pool.
        num_blocks: Option<u32>;
        /// Bytes that K and V of all layers may take; the pool gets as many whole blocks as fit.
        memory_budget_bytes: Option<u64>;
        /// Blocks to which the pool may grow: [`KvCache::resize_layer`](crate::gpu::KvCache::resize_layer). As many as it has unless
        /// set. The host keeps its books for so many from the start, and KV heads share bindings as if there were so many.
        max_num_blocks: Option<u32>, with_max_num_blocks(u32) => Some(max_num_blocks);
        /// `false` reserves `max_seq_len` tokens in one piece for every sequence, as caches without paging do.
        paged: bool, with_paged(bool);
        /// The longest sequence, in tokens; 4,096 unless set.
        max_seq_len: u32, with_max_seq_len(u32);
        /// Sequences that may live at a time; 256 unless set.
        max_sequences: u32, with_max_sequences(u32);
    }

    /// The kind of every layer, if they were told one by one.
    pub fn layers(&self) -> &[LayerKind] {
        &self.layers
    }

    /// Sets [`num_blocks`](Self::num_blocks), in place of a memory budget.
    #[must_use]
    pub fn with_num_blocks(self, num_blocks: u32) -> Self {
        Self { num_blocks: Some(num_blocks), memory_budget_bytes: None, ..self }
    }

    /// Sets [`memory_budget_bytes`](Self::memory_budget_bytes), in place of a number of blocks.
    #[must_use]
    pub fn with_memory_budget_bytes(self, memory_budget_bytes: u64) -> Self {
        Self { memory_budget_bytes: Some(memory_budget_bytes), num_blocks: None, ..self }
    }
}

#[cfg(test)]
mod tests;
