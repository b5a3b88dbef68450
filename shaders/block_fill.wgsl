// block_fill.wgsl — overwrites whole blocks of a segment, K and V, so that nothing is left of what they held.
// Dispatch  one invocation per (block to fill, unit of a block of K or of V, whichever has more), folded into x and y
// Shapes    row-major
//   step     header and clears [num_clears]             u32   blocks
//   k_pool   [NUM_BLOCKS, units of a block of K]        16-byte units
//   v_pool   [NUM_BLOCKS, units of a block of V]        16-byte units
// const     NUM_BLOCKS and FILL, the word that is written, put in front by the host

const FILL_LANES: u32 = 64u;

@group(1) @binding(0) var<storage, read_write> k_pool: array<vec4<u32>>;
@group(1) @binding(1) var<storage, read_write> v_pool: array<vec4<u32>>;

@compute @workgroup_size(FILL_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = linear_index(group, groups) * FILL_LANES + lane;
    let k_units = arrayLength(&k_pool) / NUM_BLOCKS;
    let v_units = arrayLength(&v_pool) / NUM_BLOCKS;
    let units = max(k_units, v_units);
    let idx = item / units;
    let unit = item % units;
    let header = step_header();
    if (idx >= header.num_clears) { return; }
    let block = step[header.clears_base + idx];
    if (unit < k_units) { k_pool[block * k_units + unit] = vec4<u32>(FILL); }
    if (unit < v_units) { v_pool[block * v_units + unit] = vec4<u32>(FILL); }
}
