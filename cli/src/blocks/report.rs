//! The result of a study, for machines.

use serde::{Deserialize, Serialize};

use super::measure::DecodeTime;
use crate::report::{Adapter, Head};
use wgpu_paged_attention::config::KvDtype;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSizesReport {
    #[serde(flatten)]
    pub head: Head,
    /// The longest sequence, in tokens.
    pub max_seq_len: u32,
    pub model: String,
    /// Storage of K and V that was measured.
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
    /// Bad rows of the log that were left out.
    pub skipped: u64,
    /// Tokens of a sequence, on average over its steps.
    pub mean_tokens: f64,
    /// Utilisation where every sequence reserves the longest length.
    pub contiguous_utilisation: f64,
    /// One per block size, in the order in which they were given.
    pub rows: Vec<BlockSizeRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSizeRow {
    pub block_size: u32,
    /// Table entries of the longest sequence.
    pub entries_at_max_len: u32,
    /// Share of the reserved tokens that are empty, over all steps of all requests.
    pub fragmentation: f64,
    /// The rest.
    pub utilisation: f64,
    /// Fragmentation by the rougher formula: half a block per sequence of mean length.
    pub half_block_fragmentation: f64,
    /// Bytes of a sequence's row in the block table, for all layers together.
    pub table_bytes_per_seq: u64,
    /// Blocks of a sequence, on average over its steps.
    pub mean_blocks: f64,
    /// Share of the prompt tokens that a prefix cache finds which forgets nothing, where the log has ids.
    pub prefix_hit_share: Option<f64>,
    /// Time of a decode step, where it was measured.
    pub decode: Option<DecodeTime>,
    /// What was published, where the workload is the one it is about.
    pub published: Option<Published>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// Share of the reserved tokens that are empty.
    pub fragmentation: f64,
    /// The rest.
    pub utilisation: f64,
}
