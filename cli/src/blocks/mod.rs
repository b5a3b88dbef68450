//! What the size of a block costs and saves, on a request log or a workload.
//!
//! A sequence reserves whole blocks, so the last one of each is partly empty: *internal fragmentation*, as a share of what
//! is reserved. *Utilisation* is the rest of it. Both are taken as a server meets its sequences: a request with a prompt of
//! `p` and an answer of `n` tokens is in the cache for `n` steps, with `p` to `p + n − 1` tokens in it, for the K and V of
//! the last token are never needed. Over all steps of all requests,
//!
//! ```text
//! utilisation = Σ tokens / Σ block_size · ceil(tokens / block_size)
//! ```
//!
//! exactly, in whole numbers. The published figures ([`PUBLISHED`]) follow from a rougher formula, half a block lost per
//! sequence: `fragmentation = (block_size / 2) / (mean tokens + block_size / 2)`. [`BlockSizeRow`] has both.
//!
//! Larger blocks need fewer table entries and fewer look-ups; what that is worth to the kernels is measured, on batches drawn
//! from the same requests, all sizes in alternation. Smaller blocks share more: a prefix is found in whole blocks only.

pub mod command;
mod life;
pub mod measure;
mod page;
mod recommend;
mod report;
mod sharing;
mod study;

use measure::reference;
pub use measure::{DecodeMeasure, DecodeTime};
pub use recommend::recommend;
pub use report::{BlockSizeRow, BlockSizeStudy, BlockSizesReport, Published, Recommendation};
pub use study::{BlockSizesError, study};

#[cfg(test)]
pub(crate) mod tests;
