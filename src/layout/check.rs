//! From a configuration to its layout: every size is checked here, once.

use super::KvLayout;
use crate::config::{
    CacheConfig, MAX_BLOCK_SIZE, MAX_HEAD_DIM, MAX_LAYERS_OR_HEADS, MAX_SEQ_LEN, MAX_SLOTS, MAX_TABLE_ENTRIES,
};
use crate::error::ConfigError;
use crate::ids::BlockId;

impl CacheConfig {
    /// Checks the configuration and works out sizes and strides.
    ///
    /// A contiguous cache goes through the same machinery: its blocks are `max_seq_len` tokens long and every
    /// sequence owns exactly one. Its pool has as many of them as fit into the configured tokens or bytes.
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

        let mut layout = KvLayout {
            num_layers: self.num_layers,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            v_head_dim: self.v_head_dim.unwrap_or(self.head_dim),
            kv_dtype: self.kv_dtype,
            paged: self.paged,
            block_size: if self.paged { self.block_size } else { self.max_seq_len },
            num_blocks: 0,
            max_num_blocks: 0,
            max_seq_len: self.max_seq_len,
            max_sequences: self.max_sequences,
        };
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
        layout.num_blocks = self.pool_blocks(&layout)?;
        layout.max_num_blocks = match self.max_num_blocks {
            None => layout.num_blocks,
            Some(most) => self.most_blocks(&layout, most)?,
        };
        Ok(layout)
    }

    /// Blocks to which the pool may grow, in units of the layout's own block size; `most` and its limits count the
    /// configured blocks.
    fn most_blocks(&self, layout: &KvLayout, most: u32) -> Result<u32, ConfigError> {
        let min = layout.num_slots().div_ceil(self.block_size.into());
        let (value, max) = (most.into(), u64::from(BlockId::MAX.get()) + 1);
        if value < min || value > max {
            return Err(ConfigError::OutOfRange { name: "max_num_blocks", value, min, max });
        }
        self.clone().with_num_blocks(most).pool_blocks(layout)
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
