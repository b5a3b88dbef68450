// external.wgsl — pools of other engines: what a dispatch copies, and where a row of theirs lies.
// Theirs are [blocks, BLOCK_SIZE, heads, HEAD_DIM] if TOKEN_MAJOR, [blocks, heads, BLOCK_SIZE, HEAD_DIM] otherwise; a
// word holds EXTERNAL_PER_WORD elements, the first in its low bits. A dispatch copies K or V, and HEAD_DIM is its width.
// Twin      src/gpu/ops/transfer.rs: ExternalOrder, BlockPair
// const     BLOCK_SIZE, EXTERNAL_PER_WORD, HEAD_DIM, TOKEN_MAJOR, prepended by the host

struct TransferParams {
    num_pairs: u32,
    first_kv_head: u32,  // of this head shard
    num_kv_heads: u32,   // in this head shard
    total_kv_heads: u32, // of the layer, and of their pool
}

@group(0) @binding(0) var<uniform> params: TransferParams;
@group(0) @binding(1) var<storage, read> pairs: array<vec2<u32>>; // their block, our block

// One row in both pools.
struct Place {
    theirs: u32, // its first element
    ours: u32,   // its number in the head shard
}

fn num_kv_rows() -> u32 {
    return params.num_pairs * params.num_kv_heads * BLOCK_SIZE;
}

// The place of row `idx` of those that the pairs' blocks have in a head shard.
fn place(idx: u32) -> Place {
    let within = idx % BLOCK_SIZE;
    let head = (idx / BLOCK_SIZE) % params.num_kv_heads;
    let pair = pairs[idx / (BLOCK_SIZE * params.num_kv_heads)];
    let their_head = params.first_kv_head + head;
    let token_major = (pair.x * BLOCK_SIZE + within) * params.total_kv_heads + their_head;
    let head_major = (pair.x * params.total_kv_heads + their_head) * BLOCK_SIZE + within;
    return Place(
        select(head_major, token_major, TOKEN_MAJOR) * HEAD_DIM,
        row_in_block(pair.y, params.num_kv_heads, head, within),
    );
}
