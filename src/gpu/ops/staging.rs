//! Which bytes go where when blocks pass between the pools and the host.
//!
//! A block lies in one piece in every pool, and neighbours lie side by side: what moves is *runs* of neighbours, one per
//! pool, through as few *chunks* of staging memory as the device's limits allow.

use crate::blocks::BlockId;
use crate::gpu::cache::KvCache;
use crate::gpu::error::DeviceError;
use crate::host::{BlockShape, HostBlocks, Side};
use crate::layout::KvLayout;

/// Staging memory is dealt out in pieces of at most so many bytes, where no block needs more: drivers find them sooner
/// than one piece of all.
const MAX_CHUNK_BYTES: u64 = 64 << 20;

/// Neighbouring blocks of one pool.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) pool: wgpu::Buffer,
    /// Of the first block in the pool.
    pub(crate) pool_offset: u64,
    pub(crate) chunk: usize,
    /// Of the first block in the chunk.
    pub(crate) chunk_offset: u64,
    /// Place of the first block in the list; the others follow there, too.
    first: usize,
    count: usize,
    /// Bytes of one block in this pool.
    piece: u64,
    /// Where they lie in a block on the host.
    host_offset: u64,
}

impl Run {
    pub(crate) fn bytes(&self) -> u64 {
        self.count as u64 * self.piece
    }

    /// For every block of the run its place in the list, the bytes of a block on the host that the run moves, and their
    /// offset in the chunk.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (usize, std::ops::Range<usize>, usize)> + use<> {
        // All of it is host memory or a buffer that will be mapped.
        let (piece, host, chunk) = (self.piece as usize, self.host_offset as usize, self.chunk_offset as usize);
        let first = self.first;
        (0..self.count).map(move |at| (first + at, host..host + piece, chunk + at * piece))
    }
}

/// How some blocks pass.
#[derive(Debug, Default)]
pub(crate) struct Route {
    pub(crate) runs: Vec<Run>,
    /// Bytes of every chunk.
    pub(crate) chunks: Vec<u64>,
}

impl Route {
    /// The route of these blocks, which exist.
    pub(crate) fn new(cache: &KvCache, blocks: &[BlockId]) -> Self {
        let shape = BlockShape::of(cache.layout());
        let limit = MAX_CHUNK_BYTES.min(cache.profile().max_buffer_bytes);
        let mut route = Self::default();
        for (place, head_shards) in (0..).zip(cache.places()) {
            for head_shard in head_shards {
                let (layout, heads) = (cache.layout(), head_shard.num_heads);
                let pools = [
                    (Side::K, &head_shard.k, layout.k_block_bytes(heads)),
                    (Side::V, &head_shard.v, layout.v_block_bytes(heads)),
                ];
                for (side, pool, piece) in pools {
                    let host_offset = shape.head_offset(place, side, head_shard.first_head);
                    let mut first = 0;
                    while first < blocks.len() {
                        let (chunk, chunk_offset) = route.room(piece, limit);
                        let most = (limit.saturating_sub(chunk_offset) / piece).max(1) as usize;
                        let pairs = blocks[first..].windows(2).take(most - 1);
                        let count = 1 + pairs.take_while(|pair| pair[1].get() == pair[0].get() + 1).count();
                        let pool_offset = u64::from(blocks[first].get()) * piece;
                        let pool = pool.clone();
                        let run = Run { pool, pool_offset, chunk, chunk_offset, first, count, piece, host_offset };
                        route.chunks[chunk] += run.bytes();
                        route.runs.push(run);
                        first += count;
                    }
                }
            }
        }
        route
    }

    /// The chunk with room for a piece, and its end; a block larger than a chunk should be has one of its own.
    fn room(&mut self, piece: u64, limit: u64) -> (usize, u64) {
        match self.chunks.last() {
            Some(&end) if end + piece <= limit => {}
            _ => self.chunks.push(0),
        }
        let chunk = self.chunks.len() - 1;
        (chunk, self.chunks[chunk])
    }
}

/// An empty copy of these blocks on the host.
pub(crate) fn host_blocks(layout: &KvLayout, ids: &[BlockId]) -> Result<HostBlocks, DeviceError> {
    HostBlocks::of_cache(layout, ids.to_vec())
        .map_err(|bytes| DeviceError::HostMemory { what: "a copy of the blocks", bytes })
}
