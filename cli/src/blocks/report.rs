//! The result of a study, for machines.

use serde::{Deserialize, Serialize};

use super::measure::DecodeTime;
use super::recommend::Recommendation;
use super::study::Published;
use crate::bench::report::Adapter;
use crate::report;
use wgpu_paged_attention::config::KvDtype;

/// Block sizes, compared on one or several logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSizesReport {
    /// Always `blocks`.
    pub kind: String,
    /// Version of this format.
    pub schema: u32,
    /// The command line.
    pub command: String,
    /// Version of the program.
    pub version: String,
    /// Seed of drawn requests and measured inputs.
    pub seed: u64,
    /// The longest sequence, in tokens.
    pub max_seq_len: u32,
    /// Name of the shape that was measured.
    pub model: String,
    /// Storage of K and V that was measured.
    #[serde(rename = "kv_format")]
    pub kv_dtype: KvDtype,
    /// What was measured on; `None` if nothing was.
    pub adapter: Option<Adapter>,
    /// The logs.
    pub workloads: Vec<BlockSizeStudy>,
    /// The size to take; `None` if the run ended before there was anything to judge by.
    pub recommendation: Option<Recommendation>,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
}

/// All block sizes on one log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSizeStudy {
    /// Name of the log or workload.
    pub name: String,
    /// Requests that were counted.
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

/// One block size on one log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSizeRow {
    /// Tokens per block.
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

impl BlockSizesReport {
    /// Version of the format that this program writes.
    pub const SCHEMA: u32 = 1;
    /// What [`kind`](Self::kind) says.
    pub const KIND: &'static str = "blocks";

    /// The report as indented JSON.
    ///
    /// # Errors
    /// If a number is not finite.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        report::to_json(self)
    }

    /// The rows of all workloads as CSV with a header; what is not known is empty.
    ///
    /// # Errors
    /// None that is known of: every row is flat.
    pub fn to_csv(&self) -> Result<String, csv::Error> {
        report::to_csv(
            self.workloads.iter().flat_map(|study| study.rows.iter().map(|row| CsvRow::of(&study.name, row))),
        )
    }
}

/// A row of all workloads.
#[derive(Serialize)]
struct CsvRow<'a> {
    workload: &'a str,
    block_size: u32,
    entries_at_max_len: u32,
    fragmentation: f64,
    utilisation: f64,
    half_block_fragmentation: f64,
    table_bytes_per_seq: u64,
    mean_blocks: f64,
    prefix_hit_share: Option<f64>,
    decode_us: Option<f64>,
    decode_low_us: Option<f64>,
    decode_high_us: Option<f64>,
    decode_relative: Option<f64>,
    decode_noise: Option<f64>,
    published_fragmentation: Option<f64>,
    published_utilisation: Option<f64>,
}

impl<'a> CsvRow<'a> {
    fn of(workload: &'a str, row: &BlockSizeRow) -> Self {
        Self {
            workload,
            block_size: row.block_size,
            entries_at_max_len: row.entries_at_max_len,
            fragmentation: row.fragmentation,
            utilisation: row.utilisation,
            half_block_fragmentation: row.half_block_fragmentation,
            table_bytes_per_seq: row.table_bytes_per_seq,
            mean_blocks: row.mean_blocks,
            prefix_hit_share: row.prefix_hit_share,
            decode_us: row.decode.map(|decode| decode.median_us),
            decode_low_us: row.decode.map(|decode| decode.low_us),
            decode_high_us: row.decode.map(|decode| decode.high_us),
            decode_relative: row.decode.map(|decode| decode.relative),
            decode_noise: row.decode.map(|decode| decode.noise),
            published_fragmentation: row.published.map(|published| published.fragmentation),
            published_utilisation: row.published.map(|published| published.utilisation),
        }
    }
}
