//! What sliding windows save.

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::config::CacheConfig;

use super::SizingError;
use crate::models::Model;

/// What a sequence takes at most while it decodes, with and without giving back what no query will see again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowRecord {
    pub window: u32,
    pub windowed_layers: u32,
    pub seq_len: u32,
    pub kept_bytes: u64,
    /// Its bytes if blocks return that left the windows of all layers. The same, if a layer sees everything: a block is
    /// of all layers.
    pub one_cache_bytes: u64,
    pub own_cache_bytes: u64,
}

impl WindowRecord {
    /// `None` for a model without windows; `config` is that of a paged cache for all layers.
    pub(super) fn of(model: &Model, config: &CacheConfig) -> Result<Option<Self>, SizingError> {
        let Some(window) = model.window else { return Ok(None) };
        let seq_len = model.max_seq_len.max(config.max_seq_len());
        let bytes = |num_layers: u32, blocks: u32| {
            if num_layers == 0 {
                return Ok(0);
            }
            Ok::<_, SizingError>(
                config.clone().with_num_layers(num_layers).with_num_blocks(blocks).layout()?.total_bytes(),
            )
        };
        let all = seq_len.div_ceil(config.block_size());
        let seen = most_blocks(window, seq_len, config.block_size());
        let full_layers = model.num_layers - model.windowed_layers;
        Ok(Some(Self {
            window,
            windowed_layers: model.windowed_layers,
            seq_len,
            kept_bytes: bytes(model.num_layers, all)?,
            one_cache_bytes: bytes(model.num_layers, if full_layers == 0 { seen } else { all })?,
            own_cache_bytes: bytes(model.windowed_layers, seen)? + bytes(full_layers, all)?,
        }))
    }
}

/// The most blocks that a sequence owns until it has `seq_len` tokens, one token a step.
pub(super) fn most_blocks(window: u32, seq_len: u32, block_size: u32) -> u32 {
    // While a step computes token `len`, the blocks are those that the window left before it.
    let owned = |len: u32| len.div_ceil(block_size) - len.saturating_sub(window) / block_size;
    // Until the window is full the number grows; from then on it repeats with every block.
    let full = window.min(seq_len);
    (full..=full.saturating_add(block_size).min(seq_len)).map(owned).max().unwrap_or_default()
}
