//! What can be wrong with a study.

use crate::bench::case::CaseError;
use crate::bench::timer::TimerError;
use crate::trace::SampleError;

/// Why a block size was not studied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlockSizesError {
    /// No request stays in a cache of this length.
    #[error(
        "{name}: no request, of {requests} in all, has an answer and a prompt of at most {max_seq_len} tokens; raise --max-len"
    )]
    Nothing {
        /// Name of the log.
        name: String,
        /// Requests in it.
        requests: usize,
        /// The longest sequence.
        max_seq_len: u32,
    },
    /// No sizes were given.
    #[error("no block sizes to compare")]
    NoSizes,
    /// No batch can be drawn from the log.
    #[error(transparent)]
    Lengths(#[from] SampleError),
    /// The device cannot be timed.
    #[error(transparent)]
    Timer(#[from] TimerError),
    /// A size could not be run, or its result is wrong.
    #[error("decode with blocks of {block_size}: {source}")]
    Case {
        /// The size.
        block_size: u32,
        /// What is wrong with it.
        source: CaseError,
    },
}
