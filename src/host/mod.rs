//! K and V away from the device: copies of blocks in host memory, and [snapshots](snapshot) of whole sequences.

mod blocks;
mod file;
pub mod snapshot;

pub use blocks::{BlockShape, HostBlocks, Side, distinct_blocks};
pub use file::AtomicFile;
