//! What can be wrong with a study.

use crate::bench::{CaseError, TimerError};
use crate::trace::SampleError;

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
