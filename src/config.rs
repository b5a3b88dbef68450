//! What a cache should look like, as it is written in code or in a file.

use serde::{Deserialize, Serialize};

use crate::setters::setters;

pub use crate::formats::KvDtype;

/// The widest head that the kernels hold in registers.
pub const MAX_HEAD_DIM: u32 = 512;
/// The largest block, in tokens, of a paged cache.
pub const MAX_BLOCK_SIZE: u32 = 65_536;
/// Largest [`CacheConfig::max_seq_len`]: beyond, distances between positions could wrap in 32 bits.
pub const MAX_SEQ_LEN: u32 = 1 << 30;
/// The most layers or KV heads; far above any model, and low enough that sizes stay countable.
pub const MAX_LAYERS_OR_HEADS: u32 = 65_536;
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
    /// Layers of the model that keep K and V.
    pub num_layers: u32,
    /// KV heads per layer; fewer than query heads where heads share their K and V.
    pub num_kv_heads: u32,
    /// Elements of one head, 1 to [`MAX_HEAD_DIM`].
    pub head_dim: u32,
    /// Elements of one head's V, where they differ from K's `head_dim`; 1 to [`MAX_HEAD_DIM`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v_head_dim: Option<u32>,
    /// Storage of the elements; half precision unless set.
    #[serde(default, alias = "kv_dtype")]
    #[serde(rename = "kv_format")]
    pub kv_dtype: KvDtype,
    /// Tokens per block, any size from 1 to [`MAX_BLOCK_SIZE`]; 16 unless set.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Blocks in the pool.
    #[serde(default, alias = "max_blocks", skip_serializing_if = "Option::is_none")]
    pub num_blocks: Option<u32>,
    /// Bytes that K and V of all layers may take; the pool gets as many whole blocks as fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_budget_bytes: Option<u64>,
    /// `false` reserves `max_seq_len` tokens in one piece for every sequence, as caches without paging do.
    #[serde(default = "default_paged", alias = "enable_paged")]
    pub paged: bool,
    /// The longest sequence, in tokens; 4,096 unless set.
    #[serde(default = "default_max_seq_len")]
    pub max_seq_len: u32,
    /// Sequences that may live at a time; 256 unless set.
    #[serde(default = "default_max_sequences")]
    pub max_sequences: u32,
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
            kv_dtype: KvDtype::default(),
            block_size: default_block_size(),
            num_blocks: None,
            memory_budget_bytes: None,
            paged: default_paged(),
            max_seq_len: default_max_seq_len(),
            max_sequences: default_max_sequences(),
        }
    }

    setters! {
        /// Sets [`v_head_dim`](Self::v_head_dim).
        with_v_head_dim(v_head_dim: u32) => Some(v_head_dim);
        /// Sets [`kv_dtype`](Self::kv_dtype).
        with_kv_dtype(kv_dtype: KvDtype);
        /// Sets [`block_size`](Self::block_size).
        with_block_size(block_size: u32);
        /// Sets [`num_blocks`](Self::num_blocks).
        with_num_blocks(num_blocks: u32) => Some(num_blocks);
        /// Sets [`memory_budget_bytes`](Self::memory_budget_bytes).
        with_memory_budget_bytes(memory_budget_bytes: u64) => Some(memory_budget_bytes);
        /// Sets [`paged`](Self::paged).
        with_paged(paged: bool);
        /// Sets [`max_seq_len`](Self::max_seq_len).
        with_max_seq_len(max_seq_len: u32);
        /// Sets [`max_sequences`](Self::max_sequences).
        with_max_sequences(max_sequences: u32);
    }
}

#[cfg(test)]
mod tests;
