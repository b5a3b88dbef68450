//! Sequences and their K and V as bytes, for another run, device or backend.
//!
//! A [`Snapshot`] knows nothing of head shards, and of blocks only which sequences share them: it can be loaded into a
//! cache with another block size and other limits, if the model's shape and the storage format are the same. Slots that
//! belong to no sequence are left out, so nothing gets into a file that its sequences cannot see.
//!
//! ```text
//! magic       8 bytes     "pagedkv\n"
//! version     u32
//! header_len  u32         bytes of the header
//! data_len    u64         bytes of the data
//! header      postcard    the shape, and a record of every sequence, whose blocks are pages
//! data                    page after page: [num_layers] of K [num_kv_heads, filled, k_row_bytes], V alike
//! checksum    32 bytes    SHA-256 of everything before
//! ```
//!
//! Numbers are little-endian, rows as they are on the device: codes, then scales. A *page* is a block of the cache that was
//! saved; `filled` is the number of its tokens that some sequence has. Pages are numbered in the order in which the
//! sequences name them first.
//!
//! Nothing that a file says of itself is believed: no more is read than the caller allows, the checksum comes before
//! the header, and every number in the header is held against the others and against the bytes that are there.
//!
//! ```no_run
//! # use wgpu_paged_attention::{blocks::{CacheManager, SeqId}, gpu::KvCache, host::distinct_blocks, wgpu};
//! use wgpu_paged_attention::host::snapshot::Snapshot;
//! # fn save(device: &wgpu::Device, queue: &wgpu::Queue, cache: &KvCache, manager: &mut CacheManager, seqs: &[SeqId])
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let records = seqs.iter().map(|&seq| manager.export_sequence(seq)).collect::<Result<Vec<_>, _>>()?;
//! let mut encoder = device.create_command_encoder(&Default::default());
//! let out = cache.swap_out(&mut encoder, &distinct_blocks(&records))?;
//! queue.submit([encoder.finish()]);
//! device.poll(wgpu::PollType::wait_indefinitely())?;
//! Snapshot::new(&records, &out.read()?)?.save("talk.pagedkv".as_ref())?;
//!
//! // another day, another cache
//! let snapshot = Snapshot::load("talk.pagedkv".as_ref(), 1 << 30)?; // at most a GiB
//! let (records, blocks) = snapshot.fit(cache.layout())?;
//! let mut encoder = device.create_command_encoder(&Default::default());
//! let seqs = cache.swap_in_sequences(&mut encoder, manager, &records, &blocks)?;
//! queue.submit([encoder.finish()]);
//! # Ok(()) }
//! ```

mod check;
mod error;
mod file;
mod fit;

pub use error::SnapshotError;
pub use file::{MAGIC, VERSION};

use crate::blocks::SequenceRecord;
use crate::host::{BlockShape, HostBlocks, Side};

/// Sequences with everything that it takes to go on with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The model's shape, and the block size of the cache that was saved.
    shape: BlockShape,
    /// Their blocks are pages.
    records: Vec<SequenceRecord>,
    pages: Vec<Page>,
    data: Vec<u8>,
}

/// A block of the cache that was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    /// Tokens of it that some sequence has: at least one.
    filled: u32,
    /// The column in which all of its sequences have it.
    column: u32,
    /// Where its rows begin in the data.
    start: usize,
}

impl Snapshot {
    /// A snapshot of sequences that were exported, and of the blocks that they name.
    ///
    /// # Errors
    /// [`SnapshotError::Groups`] for sequences of a cache with several groups of layers, [`SnapshotError::NotHeld`] if a block
    /// is missing, [`SnapshotError::Record`] for a record that contradicts itself or another one,
    /// [`SnapshotError::HostMemory`].
    pub fn new(records: &[SequenceRecord], blocks: &HostBlocks) -> Result<Self, SnapshotError> {
        let shape = *blocks.shape();
        if blocks.num_groups() > 1 {
            return Err(SnapshotError::Groups { groups: blocks.num_groups() });
        }
        let (records, sources) = check::number_pages(records, &shape)?;
        let mut pages = check::pages(&records, &shape)?;
        let mut data = Vec::new();
        let bytes = check::place_pages(&mut pages, &shape)?;
        data.try_reserve_exact(bytes).map_err(|_| SnapshotError::HostMemory { bytes: bytes as u64 })?;
        for (page, &source) in pages.iter().zip(&sources) {
            let block = blocks.block(source).ok_or(SnapshotError::NotHeld { block: source })?;
            for_each_head(&shape, |layer, side, head| {
                // The block is in memory, and what is taken of it ends in it.
                let from = shape.head_offset(layer, side, head) as usize;
                let len = page.filled as usize * shape.row_bytes(side) as usize;
                data.extend_from_slice(&block[from..from + len]);
            });
        }
        Ok(Self { shape, records, pages, data })
    }

    /// The sequences; their blocks are numbers of pages.
    pub fn records(&self) -> &[SequenceRecord] {
        &self.records
    }

    /// The model's shape, and the block size of the cache that was saved.
    pub fn shape(&self) -> &BlockShape {
        &self.shape
    }

    /// Bytes of K and V.
    pub fn data_bytes(&self) -> u64 {
        self.data.len() as u64
    }

    /// The rows of a head in a page.
    fn head_rows(&self, page: &Page, layer: u32, side: Side, head: u32) -> &[u8] {
        // A page is laid out like a block of as many tokens as it has; all of it is in memory.
        let shape = BlockShape { block_size: page.filled, ..self.shape };
        let start = page.start + shape.head_offset(layer, side, head) as usize;
        &self.data[start..start + page.filled as usize * shape.row_bytes(side) as usize]
    }
}

fn for_each_head(shape: &BlockShape, mut visit: impl FnMut(u32, Side, u32)) {
    for layer in 0..shape.num_layers {
        for side in Side::BOTH {
            for head in 0..shape.num_kv_heads {
                visit(layer, side, head);
            }
        }
    }
}

#[cfg(test)]
mod tests;
