//! The words of an encoded step, as the shaders read them.

use bytemuck::{Pod, Zeroable};

use crate::ids::BlockId;

/// Classes of query tiles: class `c` has room for `2^c` tokens, and the last, for chunks of prompts, for
/// [`MAX_CHUNK_TOKENS`].
pub const TILE_CLASSES: usize = 6;
/// The class of the query tiles of chunks, if these have one of their own. The members of such a tile are neighbours, in
/// the step and in their sequence.
pub const CHUNK_CLASS: usize = TILE_CLASSES - 1;
/// The tokens of the widest query tile but for those of chunks.
pub const MAX_TILE_TOKENS: u32 = 1 << (CHUNK_CLASS - 1);
/// The tokens of the widest query tile of a chunk.
pub const MAX_CHUNK_TOKENS: u32 = 64;
/// In [`QueryTile::first_partial`]: the tile leaves no partials, because the result of its one split is that of
/// its queries.
pub const NO_PARTIAL: u32 = u32::MAX;

/// The version of the words that [`Step::words`](crate::gpu::Step::words) describes; a step begins with it. It changes when
/// one of them gets another place or meaning.
pub const STEP_WORDS_VERSION: u32 = 1;

/// What an encoded step begins with; offsets count words from its start. What stands before `num_updates` is public:
/// [`STEP_WORDS_VERSION`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct StepHeader {
    /// [`STEP_WORDS_VERSION`].
    pub version: u32,
    /// Query tokens.
    pub num_queries: u32,
    /// Tokens to append.
    pub num_slots: u32,
    /// Requests, those without tokens included.
    pub num_requests: u32,
    /// Requests with tokens.
    pub num_last_rows: u32,
    /// Offset of the positions, `[num_queries]` i32.
    pub positions_base: u32,
    /// Offset of the slots.
    pub slots_base: u32,
    /// Offset of the first rows of the requests and the end of the last one's, `[num_requests + 1]`.
    pub cu_seqlens_base: u32,
    /// Offset of the last rows, `[num_last_rows]`.
    pub last_rows_base: u32,
    /// Changed entries of the resident table.
    pub num_updates: u32,
    /// Queries that are merged from partials.
    pub num_merges: u32,
    /// Offset of the members of the query tiles.
    pub members_base: u32,
    /// Offset of the [`Merge`]s.
    pub merges_base: u32,
    /// Offset of the [`TableUpdate`]s.
    pub updates_base: u32,
    /// Blocks to copy before the first append.
    pub num_copies: u32,
    /// Offset of the [`BlockCopy`]s.
    pub copies_base: u32,
    /// Blocks to clear before that.
    pub num_clears: u32,
    /// Offset of these blocks; inline tables follow them.
    pub clears_base: u32,
}

/// The query tiles of one class; [`TILE_CLASSES`] of them follow the header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TileClass {
    /// Offset of the [`QueryTile`]s.
    pub tiles_base: u32,
    /// Query tiles.
    pub num_tiles: u32,
    /// Work items: splits of these tiles.
    pub num_items: u32,
}

/// Query tokens that are served together, because they read the same blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QueryTile {
    /// Its first member: an element of the list of members, which are queries.
    pub first_member: u32,
    /// Members, at least one.
    pub num_members: u32,
    /// Where their block table starts: an element of the resident table, or a word of the encoded step.
    pub table_base: u32,
    /// First key that the tile serves.
    pub key_begin: u32,
    /// End of these keys; what a member may not see is left out when it is served.
    pub key_end: u32,
    /// Keys of one work item; items begin at multiples of it.
    pub split_tokens: u32,
    /// Work items of the tiles before it, in its class.
    pub item_start: u32,
    /// First of its partials, one per split and member; or [`NO_PARTIAL`].
    pub first_partial: u32,
}

/// A query whose result is merged from partials: those of a tile that served its first splits for several sequences, and
/// those of its own tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Merge {
    /// The query.
    pub query: u32,
    /// Keys of its sequence.
    pub kv_len: u32,
    /// Splits that the shared tile served, from the first on.
    pub shared_splits: u32,
    /// The query's partial of the first split.
    pub shared_partial: u32,
    /// Partials from there to the one of the next split.
    pub shared_stride: u32,
    /// The query's partial of the first split that its own tile served.
    pub own_partial: u32,
    /// Partials from there to the one of the next split.
    pub own_stride: u32,
    /// Keys of a split.
    pub split_tokens: u32,
}

/// An entry of the resident table that changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TableUpdate {
    /// Element of the flat `[max_sequences, max_blocks_per_seq]` table.
    pub index: u32,
    /// The block that goes there.
    pub block: BlockId,
}

/// A block that is copied whole, K and V of all layers, before the step's first append: its writer shares it with others
/// who are to keep what it holds.
///
/// No target is a source, so the order of the copies does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BlockCopy {
    /// The shared block, which is only read.
    pub source: BlockId,
    /// The new block of the writer.
    pub target: BlockId,
}
