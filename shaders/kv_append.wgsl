// kv_append.wgsl — writes the K and V rows of this step into their slots.
// Dispatch  one invocation per (token, KV head of the head shard, data unit of the wider of K and V), or per (token, KV head)
//           where the format has scales, for these depend on many elements; folded into x and y
// Shapes    row-major
//   step     header and slots [num_tokens]                         u32   SKIP_SLOT is padding: nothing is written;
//            positions [num_tokens], or [num_tokens, 3], where K is turned
//   k        [num_tokens, heads of the layer, HEAD_DIM]            f32, or f16 in pairs, read as bits; tokens have a stride
//   v        [num_tokens, heads of the layer, V_HEAD_DIM]          the same
//   k_pool   [num_blocks, num_kv_heads, BLOCK_SIZE, K_ROW_UNITS]   16-byte units in the storage format
//   v_pool   [num_blocks, num_kv_heads, BLOCK_SIZE, V_ROW_UNITS]   16-byte units in the storage format
//   rotations, norm_weights   see common/rotary.wgsl and common/norm_rms.wgsl
// Elements between HEAD_DIM and the end of the last unit are written as zeros, so that no row holds old bits. A row is
// whole units in every format: no word is shared by two tokens, and none is read before it is written.
// An invocation takes fewer than 4,000 loop rounds: two for each of 2 · 512 elements, and a few for each word; a norm takes
// 128 more.
// Twin      src/formats/row.rs: encode_row      Source  slot_mapping of vLLM's reshape_and_cache
// Needs     begin_token(header, token, k_begin) and source_bits(is_v, at), from common/source_plain.wgsl or source_rows.wgsl
// const     BLOCK_SIZE, IO_PER_WORD, ROW_LANES and those of common/kv_store.wgsl, prepended by the host

const SKIP_SLOT: u32 = 0xffffffffu;

struct AppendParams {
    first_kv_head: u32,  // of this head shard
    num_kv_heads: u32,   // in this head shard
    k_base: u32,         // words before the first token's K
    k_stride: u32,       // words from one token to the next
    v_base: u32,         // the same of V
    v_stride: u32,
    norm_base: u32,      // words before the weights of K's norm
    norm_eps: f32,
}

@group(1) @binding(0) var<storage, read_write> k_pool: array<vec4<u32>>;
@group(1) @binding(1) var<storage, read_write> v_pool: array<vec4<u32>>;
@group(2) @binding(0) var<uniform> params: AppendParams;
@group(2) @binding(1) var<storage, read> k: array<u32>;
@group(2) @binding(2) var<storage, read> v: array<u32>;

// An element of K as it was given.
fn row_element(at: u32) -> u32 {
    return io_bits(k[at / IO_PER_WORD], at);
}

// The same of V.
fn v_element(at: u32) -> u32 {
    return io_bits(v[at / IO_PER_WORD], at);
}

fn put_unit(is_v: bool, at: u32, unit: vec4<u32>) {
    if (is_v) { v_pool[at] = unit; } else { k_pool[at] = unit; }
}

@compute @workgroup_size(ITEM_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // locate
    let item = linear_index(group, groups) * ITEM_LANES + lane;
    let head = (item / ROW_LANES) % params.num_kv_heads;
    let token = item / (ROW_LANES * params.num_kv_heads);
    let header = step_header();
    if (token >= header.num_slots) { return; }
    let slot = step[header.slots_base + token];
    if (slot == SKIP_SLOT) { return; }

    // convert and write
    let kv_row = slot_row(slot, params.num_kv_heads, head);
    let given_head = params.first_kv_head + head;
    let k_begin = (params.k_base + token * params.k_stride) * IO_PER_WORD + given_head * HEAD_DIM;
    let v_begin = (params.v_base + token * params.v_stride) * IO_PER_WORD + given_head * V_HEAD_DIM;
    begin_token(header, token, k_begin);
    store_row(false, kv_row, k_begin, item % ROW_LANES);
    store_row(true, kv_row, v_begin, item % ROW_LANES);
}
