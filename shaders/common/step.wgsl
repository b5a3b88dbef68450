// step.wgsl — the words of one step, uploaded once for all layers, and the block tables they point to.
// Twin      src/plan/words.rs: StepHeader, QueryTile, Merge
//
// Offsets count words from the start of `step`. Behind the header lie
//   classes    [TILE_CLASSES]        TileClass; class c has room for 2^c tokens, the last for a part of a chunk
//   positions  [num_queries]   i32   of each query in its sequence; negative before its first key
//   slots      [num_slots]     u32   places of the tokens to append
//   updates    [num_updates]         see table_update.wgsl
//   copies     [num_copies, 2] u32   blocks (source, target) to copy before the first append
//   clears     [num_clears]    u32   blocks to clear before that
//   tables                     u32   where they travel with the step
//   tiles                            QueryTile, class after class
//   merges     [num_merges]          Merge: queries whose result is merged from partials
//   members                    u32   the queries of the query tiles
//   cu_seqlens [num_requests + 1], last_rows [num_last_rows]   for engines, as is the header up to num_updates
//   axes       [num_queries, 3] u32   positions of each query in time, height and width, where the step has them

const HEADER_WORDS: u32 = 18u;
const NO_PARTIAL: u32 = 0xffffffffu;

struct StepHeader {
    version: u32,
    num_queries: u32,
    num_slots: u32,
    num_requests: u32,
    num_last_rows: u32,
    positions_base: u32,
    slots_base: u32,
    cu_seqlens_base: u32,
    last_rows_base: u32,
    num_updates: u32,
    num_merges: u32,
    members_base: u32,
    merges_base: u32,
    updates_base: u32,
    num_copies: u32,
    copies_base: u32,
    num_clears: u32,
    clears_base: u32,
}

// The query tiles of one class.
struct TileClass {
    tiles_base: u32,
    num_tiles: u32,
    num_items: u32, // work items: splits of these tiles
}

// Queries that are served together: they read the same blocks.
struct QueryTile {
    first_member: u32,  // first of its queries, in the list of members
    num_members: u32,
    table_base: u32,    // its block table: an element of `tables`
    key_begin: u32,     // it serves the keys from here
    key_end: u32,       // to here, less what a query may not see
    split_tokens: u32,  // keys of one work item
    item_start: u32,    // work items of the tiles before it, in its class
    first_partial: u32, // first of its partials, or NO_PARTIAL: then it has one split, whose result is the query's
}

// A query whose result is merged from the partials of two tiles: one that shares its first splits, and its own.
struct Merge {
    query: u32,
    kv_len: u32,         // keys of its sequence
    shared_splits: u32,  // splits that the shared tile served, from the first
    shared_partial: u32, // of the first split
    shared_stride: u32,  // from one split's partial to the next
    own_partial: u32,    // of the first split that its own tile served
    own_stride: u32,
    split_tokens: u32,   // keys of a split
}

@group(0) @binding(0) var<storage, read> step: array<u32>;

fn step_header() -> StepHeader {
    return StepHeader(
        step[0], step[1], step[2], step[3], step[4], step[5], step[6], step[7], step[8], step[9], step[10],
        step[11], step[12], step[13], step[14], step[15], step[16], step[17],
    );
}

fn tile_class(class_idx: u32) -> TileClass {
    let at = HEADER_WORDS + 3u * class_idx;
    return TileClass(step[at], step[at + 1u], step[at + 2u]);
}

fn query_tile(tiles: TileClass, idx: u32) -> QueryTile {
    let at = tiles.tiles_base + 8u * idx;
    return QueryTile(
        step[at], step[at + 1u], step[at + 2u], step[at + 3u],
        step[at + 4u], step[at + 5u], step[at + 6u], step[at + 7u],
    );
}

fn step_merge(header: StepHeader, idx: u32) -> Merge {
    let at = header.merges_base + 8u * idx;
    return Merge(
        step[at], step[at + 1u], step[at + 2u], step[at + 3u],
        step[at + 4u], step[at + 5u], step[at + 6u], step[at + 7u],
    );
}

fn query_position(header: StepHeader, query: u32) -> i32 {
    return bitcast<i32>(step[header.positions_base + query]);
}
