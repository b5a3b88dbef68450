//! One log, all block sizes.

use super::life::Life;
use super::sharing::hit_shares;
use super::{BlockSizeRow, BlockSizeStudy, Published};
use crate::bench::{CaseError, TimerError};
use crate::trace::{Log, SampleError};
use crate::workload::SHORT_CHAT;

const ENTRY_BYTES: u64 = 4;
const PUBLISHED_MAX_SEQ_LEN: u32 = 4096;

/// The published table, of block size and figures, for short chats in a cache of up to 4,096 tokens per sequence.
pub const PUBLISHED: [(u32, Published); 4] = [
    (8, Published { fragmentation: 0.04, utilisation: 0.96 }),
    (16, Published { fragmentation: 0.06, utilisation: 0.94 }),
    (32, Published { fragmentation: 0.10, utilisation: 0.90 }),
    (64, Published { fragmentation: 0.18, utilisation: 0.82 }),
];

pub fn study(log: &Log, block_sizes: &[u32], max_seq_len: u32) -> Result<BlockSizeStudy, BlockSizesError> {
    if block_sizes.is_empty() {
        return Err(BlockSizesError::NoSizes);
    }
    let served = || log.requests.iter().filter_map(|request| Some((request, Life::of(request, max_seq_len)?)));
    let steps: u64 = served().map(|(_, life)| u64::from(life.steps)).sum();
    if steps == 0 {
        let (name, requests) = (log.name.clone(), log.requests.len());
        return Err(BlockSizesError::Nothing { name, requests, max_seq_len });
    }
    let tokens: u128 = served().map(|(_, life)| life.tokens()).sum();
    let mean_tokens = tokens as f64 / steps as f64;
    let sizes: Vec<u32> = block_sizes.iter().map(|&size| size.max(1)).collect();
    let prompts = || served().map(|(request, _)| request);
    let hits = log.tokens_per_id.and_then(|tokens_per_id| hit_shares(prompts(), tokens_per_id, &sizes));
    let published = log.name == SHORT_CHAT && max_seq_len >= PUBLISHED_MAX_SEQ_LEN;
    let row = |(at, &block_size): (usize, &u32)| {
        let blocks: u128 = served().map(|(_, life)| life.blocks(block_size)).sum();
        let utilisation = tokens as f64 / (blocks * u128::from(block_size)) as f64;
        let entries = max_seq_len.div_ceil(block_size);
        let half = f64::from(block_size) / 2.0;
        BlockSizeRow {
            block_size,
            entries_at_max_len: entries,
            fragmentation: 1.0 - utilisation,
            utilisation,
            half_block_fragmentation: half / (mean_tokens + half),
            table_bytes_per_seq: ENTRY_BYTES * u64::from(entries),
            mean_blocks: blocks as f64 / steps as f64,
            prefix_hit_share: hits.as_ref().map(|hits| hits[at]),
            decode: None,
            published: PUBLISHED.iter().find(|(size, _)| published && *size == block_size).map(|(_, figures)| *figures),
        }
    };
    Ok(BlockSizeStudy {
        name: log.name.clone(),
        requests: served().count() as u64,
        cut: served().filter(|(request, life)| life.is_cut(request)).count() as u64,
        refused: log.requests.len() as u64 - served().count() as u64,
        skipped: log.skipped,
        mean_tokens,
        contiguous_utilisation: mean_tokens / f64::from(max_seq_len),
        rows: sizes.iter().enumerate().map(row).collect(),
    })
}

#[derive(Debug, thiserror::Error)]
pub enum BlockSizesError {
    #[error(
        "{name}: no request, of {requests} in all, has an answer and a prompt of at most {max_seq_len} tokens; raise --max-len"
    )]
    Nothing { name: String, requests: usize, max_seq_len: u32 },
    #[error("no block sizes to compare")]
    NoSizes,
    #[error(transparent)]
    Lengths(#[from] SampleError),
    #[error(transparent)]
    Timer(#[from] TimerError),
    #[error("decode with blocks of {block_size}: {source}")]
    Case { block_size: u32, source: CaseError },
}
