//! The result of a study, for machines.

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::config::KvDtype;

use super::DecodeTime;
use crate::report::{Adapter, Head};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSizesReport {
    #[serde(flatten)]
    pub head: Head,
    pub max_seq_len: u32,
    pub model: String,
    #[serde(rename = "kv_format")]
    pub kv_dtype: KvDtype,
    pub adapter: Option<Adapter>,
    pub workloads: Vec<BlockSizeStudy>,
    /// The size to take; `None` if the run ended before there was anything to judge by.
    pub recommendation: Option<Recommendation>,
    pub interrupted: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    pub block_size: u32,
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSizeStudy {
    pub name: String,
    pub requests: u64,
    /// Of these, requests whose answer ends at the longest sequence.
    pub cut: u64,
    /// Requests without an answer, or with a prompt longer than the longest sequence.
    pub refused: u64,
    pub skipped: u64,
    pub mean_tokens: f64,
    /// Utilisation where every sequence reserves the longest length.
    pub contiguous_utilisation: f64,
    pub rows: Vec<BlockSizeRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSizeRow {
    pub block_size: u32,
    pub entries_at_max_len: u32,
    /// Share of the reserved tokens that are empty, over all steps of all requests.
    pub fragmentation: f64,
    pub utilisation: f64,
    /// Fragmentation by the rougher formula: half a block per sequence of mean length.
    pub half_block_fragmentation: f64,
    /// Bytes of a sequence's row in the block table, for all layers together.
    pub table_bytes_per_seq: u64,
    pub mean_blocks: f64,
    /// Share of the prompt tokens that a prefix cache finds which forgets nothing, where the log has ids.
    pub prefix_hit_share: Option<f64>,
    pub decode: Option<DecodeTime>,
    pub published: Option<Published>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    pub fragmentation: f64,
    pub utilisation: f64,
}
