//! How a step's work is cut: a property of the device, never of the batch.

use super::words::MAX_TILE_TOKENS;

/// How queries are gathered into tiles, and keys cut into splits; set the fields of a [`default`](Self::default).
///
/// All of it is fixed per device, so that a row's sums are grouped by its own length only: its result does not depend on
/// what else is in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Schedule {
    /// Keys in one split of a row.
    pub split_tokens: u32,
    /// Tokens of the widest query tile: a power of two, at most [`MAX_TILE_TOKENS`].
    pub tile_tokens: u32,
    /// A sequence that brings this many queries to a step, or more, is a chunk of a prompt: its many tiles keep a device
    /// busy, and the partials of so many rows take memory, so its splits are longer.
    pub chunk_queries: u32,
    /// Keys in one split of a row of a chunk.
    pub chunk_split_tokens: u32,
    /// Whether sequences that begin with the same blocks are looked for, to serve their first splits once.
    pub share_prefixes: bool,
}

impl Schedule {
    /// The schedule with every number in its range: no split of 0 keys, tiles of a power of two.
    pub(crate) fn sane(self) -> Self {
        let tile_tokens = self.tile_tokens.clamp(1, MAX_TILE_TOKENS);
        Self {
            split_tokens: self.split_tokens.max(1),
            tile_tokens: 1 << tile_tokens.ilog2(),
            chunk_split_tokens: self.chunk_split_tokens.max(1),
            ..self
        }
    }

    /// The class of the tiles that serve `queries` tokens.
    pub(crate) fn class(&self, queries: u32) -> usize {
        queries.clamp(1, self.tile_tokens).next_power_of_two().ilog2() as usize
    }

    /// Whether a sequence with so many queries is a chunk.
    pub(crate) fn is_chunk(&self, queries: u32) -> bool {
        queries >= self.chunk_queries
    }

    /// Keys in one split of a sequence with so many queries.
    pub(crate) fn split_tokens(&self, queries: u32) -> u32 {
        if self.is_chunk(queries) { self.chunk_split_tokens } else { self.split_tokens }
    }
}

impl Default for Schedule {
    /// Splits of 256 keys, the widest tiles, chunks of nine queries and more in splits of 16,384 keys.
    fn default() -> Self {
        Self {
            split_tokens: 256,
            tile_tokens: MAX_TILE_TOKENS,
            chunk_queries: 9,
            chunk_split_tokens: 16_384,
            share_prefixes: true,
        }
    }
}
