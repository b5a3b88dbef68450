//! What a cache should look like, as it is written in code or in a file.

use serde::{Deserialize, Serialize};

use crate::blocks::BlockId;
use crate::error::ConfigError;
use crate::layout::KvLayout;
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

    /// Checks the configuration and works out sizes and strides.
    ///
    /// A contiguous cache goes through the same machinery: its blocks are `max_seq_len` tokens long and every
    /// sequence owns exactly one. Its pool has as many of them as fit into the configured tokens or bytes.
    ///
    /// # Errors
    /// [`ConfigError`] names the field, its value and the limit.
    pub fn layout(&self) -> Result<KvLayout, ConfigError> {
        let heads = u64::from(MAX_LAYERS_OR_HEADS);
        let any = u64::from(u32::MAX);
        check("num_layers", self.num_layers, heads)?;
        check("num_kv_heads", self.num_kv_heads, heads)?;
        check("head_dim", self.head_dim, MAX_HEAD_DIM.into())?;
        check("v_head_dim", self.v_head_dim.unwrap_or(self.head_dim), MAX_HEAD_DIM.into())?;
        check("block_size", self.block_size, MAX_BLOCK_SIZE.into())?;
        check("max_seq_len", self.max_seq_len, MAX_SEQ_LEN.into())?;
        check("max_sequences", self.max_sequences, any)?;

        let mut layout = KvLayout::without_pool(self);
        let max_blocks_per_seq = layout.max_blocks_per_seq();
        let entries = u64::from(self.max_sequences) * u64::from(max_blocks_per_seq);
        if entries > MAX_TABLE_ENTRIES {
            return Err(ConfigError::TableTooLarge {
                max_sequences: self.max_sequences,
                max_blocks_per_seq,
                entries,
                limit: MAX_TABLE_ENTRIES,
            });
        }
        layout.set_num_blocks(self.pool_blocks(&layout)?);
        Ok(layout)
    }

    /// Blocks of the pool, in units of the layout's own block size.
    fn pool_blocks(&self, layout: &KvLayout) -> Result<u32, ConfigError> {
        let block_size = layout.block_size();
        let block_bytes = layout.block_bytes();
        let too_large = |num_blocks| ConfigError::CacheTooLarge { num_blocks, block_bytes, limit: u64::MAX - 1 };
        // A contiguous block of 2^32 tokens can be that large, and then the size is saturated.
        if block_bytes == u64::MAX {
            return Err(too_large(1));
        }
        let blocks = match (self.num_blocks, self.memory_budget_bytes) {
            (None, None) => return Err(ConfigError::NoPoolSize),
            (Some(num_blocks), Some(memory_budget_bytes)) => {
                return Err(ConfigError::TwoPoolSizes { num_blocks, memory_budget_bytes });
            }
            (Some(num_blocks), None) => {
                check("num_blocks", num_blocks, u64::from(BlockId::MAX.get()) + 1)?;
                let tokens = u64::from(num_blocks) * u64::from(self.block_size);
                let blocks = tokens / u64::from(block_size);
                if blocks == 0 {
                    return Err(ConfigError::PoolTooSmall {
                        num_blocks,
                        block_size: self.block_size,
                        tokens,
                        max_seq_len: self.max_seq_len,
                    });
                }
                blocks
            }
            (None, Some(budget)) => {
                let blocks = budget / block_bytes;
                if blocks == 0 {
                    return Err(ConfigError::BudgetTooSmall { budget, block_bytes, block_size });
                }
                blocks
            }
        };
        let slots = blocks.saturating_mul(block_size.into());
        if slots > MAX_SLOTS {
            return Err(ConfigError::TooManySlots { num_blocks: blocks, block_size, slots, limit: MAX_SLOTS });
        }
        let max_blocks = u64::from(BlockId::MAX.get()) + 1;
        let num_blocks = u32::try_from(blocks)
            .ok()
            .filter(|_| blocks <= max_blocks)
            .ok_or(ConfigError::OutOfRange { name: "num_blocks", value: blocks, min: 1, max: max_blocks })?;
        match u64::from(num_blocks).checked_mul(block_bytes) {
            Some(_) => Ok(num_blocks),
            None => Err(too_large(num_blocks)),
        }
    }
}

fn check(name: &'static str, value: u32, max: u64) -> Result<(), ConfigError> {
    let value = u64::from(value);
    if value == 0 || value > max {
        return Err(ConfigError::OutOfRange { name, value, min: 1, max });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
