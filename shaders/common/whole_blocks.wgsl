// whole_blocks.wgsl — blocks of a head shard as a whole, K and V: which unit of which one an invocation serves.
// Dispatch  one invocation per (entry of a list, unit of a block of K or of V, whichever has more), folded into x and y
// Shapes    row-major
//   k_pool   [num_blocks, units of a block of K]        16-byte units in the storage format, scales included
//   v_pool   [num_blocks, units of a block of V]
// A block lies in one piece whatever its format, so nothing is known of rows.
// const     K_HEAD_UNITS, V_HEAD_UNITS: units of one KV head in a block, prepended by the host

@group(1) @binding(0) var<storage, read_write> k_pool: array<vec4<u32>>;
@group(1) @binding(1) var<storage, read_write> v_pool: array<vec4<u32>>;

// Twin      src/gpu/kernel/params.rs: ShardParams
struct ShardParams {
    num_kv_heads: u32, // in this head shard
    padding_0: u32,
    padding_1: u32,
    padding_2: u32,
}

@group(2) @binding(0) var<uniform> shard: ShardParams;

struct BlockUnit {
    entry: u32,   // in the list
    unit: u32,    // of the block
    k_units: u32, // of a block of K
    v_units: u32, // of a block of V
}

fn block_unit(item: u32) -> BlockUnit {
    let k_units = shard.num_kv_heads * K_HEAD_UNITS;
    let v_units = shard.num_kv_heads * V_HEAD_UNITS;
    let units = max(k_units, v_units);
    return BlockUnit(item / units, item % units, k_units, v_units);
}
