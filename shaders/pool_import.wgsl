// pool_import.wgsl — copies blocks of another engine's pool into a head shard of K or V, in the storage format.
// Dispatch  one invocation per (pair of blocks, KV head of the head shard, token of a block, data unit), or per (pair, KV
//           head, token) where the format has scales; folded into x and y
// Shapes    row-major
//   pairs          [num_pairs, 2]                                       u32   their block, our block
//   external_pool  see common/external.wgsl                             words of f32, or of two f16 or bf16
//   pool           [num_blocks, num_kv_heads, BLOCK_SIZE, K_ROW_UNITS]  16-byte units in the storage format; K's, or V's
// Twin      src/formats/row.rs: decode_row of theirs, encode_row of ours
// const     those of common/external.wgsl and common/kv_store.wgsl, prepended by the host; kv_load is theirs

@group(0) @binding(2) var<storage, read> external_pool: array<u32>;
@group(0) @binding(3) var<storage, read_write> pool: array<vec4<u32>>;

fn source_bits(is_v: bool, at: u32) -> u32 {
    let word = external_pool[at / EXTERNAL_PER_WORD];
    return bitcast<u32>(kv_load(vec4<u32>(word), 0u)[at % EXTERNAL_PER_WORD]);
}

fn put_unit(is_v: bool, at: u32, unit: vec4<u32>) {
    pool[at] = unit;
}

@compute @workgroup_size(ITEM_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = linear_index(group, groups) * ITEM_LANES + lane;
    let kv_row = item / ROW_LANES;
    if (kv_row >= num_kv_rows()) { return; }
    let at = place(kv_row);
    // The widths of this text are those of the one that it copies, so it need not know which.
    store_row(false, at.ours, at.theirs, item % ROW_LANES);
}
