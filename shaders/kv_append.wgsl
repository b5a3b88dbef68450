// kv_append.wgsl — writes the K and V rows of this step into their slots.
// Dispatch  one invocation per (token, KV head of the segment, unit of 16 bytes), folded into x and y
// Shapes    row-major
//   step     header and slots [num_tokens]                       u32   SKIP_SLOT is padding: nothing is written
//   k, v     [num_tokens, total_kv_heads, HEAD_DIM]              f32
//   k_pool   [num_blocks, num_kv_heads, BLOCK_SIZE, UNITS]       16-byte units in the storage format (v_pool alike)
// Elements between HEAD_DIM and the end of the last unit are written as zeros, so that no row holds old bits.
// Twin      tests/common/pools.rs: Pools      Source  slot_mapping of vLLM's reshape_and_cache
// const     BLOCK_SIZE, HEAD_DIM, PARTS, UNITS, put in front by the host

const SKIP_SLOT: u32 = 0xffffffffu;
const APPEND_LANES: u32 = 64u;

struct AppendParams {
    first_kv_head: u32,  // of this segment
    num_kv_heads: u32,   // in this segment
    total_kv_heads: u32, // of the layer
    padding: u32,
}

@group(1) @binding(0) var<storage, read_write> k_pool: array<vec4<u32>>;
@group(1) @binding(1) var<storage, read_write> v_pool: array<vec4<u32>>;
@group(2) @binding(0) var<uniform> params: AppendParams;
@group(2) @binding(1) var<storage, read> k: array<f32>;
@group(2) @binding(2) var<storage, read> v: array<f32>;

fn k_vec4(first: u32, d: u32) -> vec4<f32> {
    var x = vec4<f32>(0.0);
    for (var e = 0u; e < 4u; e++) {
        if (d + e < HEAD_DIM) { x[e] = k[first + d + e]; }
    }
    return x;
}

fn v_vec4(first: u32, d: u32) -> vec4<f32> {
    var x = vec4<f32>(0.0);
    for (var e = 0u; e < 4u; e++) {
        if (d + e < HEAD_DIM) { x[e] = v[first + d + e]; }
    }
    return x;
}

@compute @workgroup_size(APPEND_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // locate
    let item = linear_index(group, groups) * APPEND_LANES + lane;
    let unit = item % UNITS;
    let head = (item / UNITS) % params.num_kv_heads;
    let token = item / (UNITS * params.num_kv_heads);
    let header = step_header();
    if (token >= header.num_slots) { return; }
    let slot = step[header.slots_base + token];
    if (slot == SKIP_SLOT) { return; }
    let first = (token * params.total_kv_heads + params.first_kv_head + head) * HEAD_DIM;
    let row = slot_row(slot, params.num_kv_heads, head);

    // convert and write
    let d = unit * PARTS * 4u;
    k_pool[row + unit] = kv_store(k_vec4(first, d), k_vec4(first, d + 4u));
    v_pool[row + unit] = kv_store(v_vec4(first, d), v_vec4(first, d + 4u));
}
