//! How a step's work is cut: a property of the device, never of the batch.

use super::words::{CHUNK_CLASS, MAX_CHUNK_TOKENS, MAX_TILE_TOKENS};

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
    /// Tokens of a query tile of a chunk, at most [`MAX_CHUNK_TOKENS`]; 0 where chunks are served in the tiles of all others.
    pub chunk_tokens: u32,
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
            chunk_tokens: self.chunk_tokens.min(MAX_CHUNK_TOKENS),
            ..self
        }
    }

    /// The class of the tiles that serve a sequence of so many queries.
    pub(crate) fn class(&self, queries: u32) -> usize {
        if self.chunk_tokens > 0 && self.is_chunk(queries) { CHUNK_CLASS } else { self.tile_class(queries) }
    }

    /// The class of the tiles with room for `tokens`, or of the widest, if they are no chunk's.
    pub(crate) fn tile_class(&self, tokens: u32) -> usize {
        tokens.clamp(1, self.tile_tokens).next_power_of_two().ilog2() as usize
    }

    /// Tokens for which a tile of a class has room.
    pub(crate) fn room(&self, class: usize) -> u32 {
        if class == CHUNK_CLASS { self.chunk_tokens } else { 1 << class }
    }

    /// Whether steps may have tiles of a class if no tile has more than `max_queries` tokens.
    pub(crate) fn needs(&self, class: usize, max_queries: u32) -> bool {
        match class {
            CHUNK_CLASS => self.chunk_tokens > 0 && max_queries >= self.chunk_queries.min(MAX_TILE_TOKENS),
            _ => class <= self.tile_class(max_queries),
        }
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
            chunk_tokens: 0,
            share_prefixes: true,
        }
    }
}
