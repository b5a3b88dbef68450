//! What a cache takes: bytes, what paging saves, what fits into a budget and what a device allows, without running
//! anything.
//!
//! All sizes come from [`CacheConfig`] and [`KvLayout`], as the cache itself gets them.

mod byte_size;
pub mod command;
mod limits;
mod page;
mod scenario;
mod window;

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::error::ConfigError;
use wgpu_paged_attention::layout::KvLayout;

use crate::bench::LengthList;
use crate::common::Report;
use crate::models::Model;
use crate::report::Head;
use crate::trace::Log;

pub use byte_size::ByteSize;
pub use limits::{DeviceLimits, LimitRecord};
pub use scenario::Scenario;
pub use window::WindowRecord;

const ENTRY_BYTES: u64 = size_of::<u32>() as u64;
const ADDRESS_BYTES: u64 = size_of::<u64>() as u64;

#[derive(Clone, Debug)]
pub struct SizingOptions {
    pub model: Model,
    pub kv_dtype: KvDtype,
    pub block_size: u32,
    pub max_seq_len: u32,
    pub budget_bytes: u64,
    /// Lengths to compare for; empty means those of the published table, as far as `max_seq_len` lets them.
    pub lens: Vec<LengthList>,
    pub logs: Vec<Log>,
    pub devices: Vec<DeviceLimits>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizingError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("--lens has a sequence of {tokens} tokens, but the longest may have {max_seq_len}; raise --max-len")]
    TooLong { tokens: u32, max_seq_len: u32 },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizingReport {
    #[serde(flatten)]
    pub head: Head,
    pub model: Model,
    #[serde(rename = "kv_format")]
    pub kv_dtype: KvDtype,
    pub block_size: u32,
    pub max_seq_len: u32,
    pub budget_bytes: u64,
    pub bytes: Bytes,
    pub num_blocks: u32,
    pub scenarios: Vec<Scenario>,
    pub tables: Tables,
    pub window: Option<WindowRecord>,
    pub limits: Vec<LimitRecord>,
}

/// Exact bytes, K and V together unless they say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    pub token_in_layer: u64,
    pub token: u64,
    pub block: u64,
    pub sequence_k_in_layer: u64,
    pub sequence_v_in_layer: u64,
    /// The longest sequence in all layers: what a contiguous cache reserves.
    pub sequence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tables {
    pub entries: u32,
    pub bytes: u64,
    /// One table of addresses for each layer, KV head, and K or V, as the published figures count them: how many.
    pub per_head_tables: u64,
    pub per_head_table_bytes: u64,
    pub per_head_bytes: u64,
}

pub fn plan(options: &SizingOptions, command: String) -> Result<SizingReport, SizingError> {
    let SizingOptions { model, kv_dtype, block_size, max_seq_len, budget_bytes, .. } = options;
    let config = CacheConfig::new(model.num_layers, model.num_kv_heads, model.head_dim)
        .with_kv_dtype(*kv_dtype)
        .with_block_size(*block_size)
        .with_max_seq_len(*max_seq_len)
        // Tables of several sequences are of no matter here.
        .with_max_sequences(1)
        .with_memory_budget_bytes(*budget_bytes);
    let paged = config.layout()?;
    // One sequence in a contiguous cache, whatever the budget.
    let contiguous = config.clone().with_paged(false).with_num_blocks(paged.max_blocks_per_seq()).layout()?;
    let scenarios = scenario::all(options, &paged, &contiguous)?;
    let bytes = Bytes {
        token_in_layer: paged.bytes_per_token() / u64::from(paged.num_layers()),
        token: paged.bytes_per_token(),
        block: paged.block_bytes(),
        sequence_k_in_layer: contiguous.k_shard_bytes(contiguous.num_kv_heads()),
        sequence_v_in_layer: contiguous.v_shard_bytes(contiguous.num_kv_heads()),
        sequence: contiguous.block_bytes(),
    };
    let devices = std::iter::once(DeviceLimits::webgpu_defaults()).chain(options.devices.iter().cloned());
    Ok(SizingReport {
        head: Head::new(SizingReport::KIND, Some(command), None),
        model: model.clone(),
        kv_dtype: *kv_dtype,
        block_size: *block_size,
        max_seq_len: *max_seq_len,
        budget_bytes: *budget_bytes,
        bytes,
        num_blocks: paged.num_blocks(),
        scenarios,
        tables: Tables::of(&paged),
        window: WindowRecord::of(model, &config)?,
        limits: devices.map(|device| LimitRecord::of(device, &paged)).collect(),
    })
}

impl Tables {
    fn of(layout: &KvLayout) -> Self {
        let entries = layout.max_blocks_per_seq();
        let per_head_tables = 2 * u64::from(layout.num_layers()) * u64::from(layout.num_kv_heads());
        let per_head_table_bytes = u64::from(entries) * ADDRESS_BYTES;
        Self {
            entries,
            bytes: u64::from(entries) * ENTRY_BYTES,
            per_head_tables,
            per_head_table_bytes,
            // At most 2^33 tables of 2^33 bytes.
            per_head_bytes: per_head_tables.saturating_mul(per_head_table_bytes),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
