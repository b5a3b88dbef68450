// block_copy.wgsl — copies whole blocks of a segment, K and V, before the step's first append.
// Dispatch  one invocation per (copy, unit of a block of K or of V, whichever has more), folded into x and y
// Shapes    row-major
//   step     header and copies [num_copies, 2]          u32   source, target
//   k_pool   [NUM_BLOCKS, units of a block of K]        16-byte units in the storage format, scales included
//   v_pool   [NUM_BLOCKS, units of a block of V]        16-byte units
// A block lies in one piece whatever its format, so bits are moved and nothing is known of rows. No target is a source or
// another copy's target, which the host sees to: the copies may run in any order.
// Twin      src/plan/words.rs: BlockCopy
// const     NUM_BLOCKS, put in front by the host; the length of a pool then tells the units of its blocks

const COPY_LANES: u32 = 64u;

@group(1) @binding(0) var<storage, read_write> k_pool: array<vec4<u32>>;
@group(1) @binding(1) var<storage, read_write> v_pool: array<vec4<u32>>;

@compute @workgroup_size(COPY_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // locate
    let item = linear_index(group, groups) * COPY_LANES + lane;
    let k_units = arrayLength(&k_pool) / NUM_BLOCKS;
    let v_units = arrayLength(&v_pool) / NUM_BLOCKS;
    let units = max(k_units, v_units);
    let copy = item / units;
    let unit = item % units;
    let header = step_header();
    if (copy >= header.num_copies) { return; }
    let at = header.copies_base + 2u * copy;
    let source = step[at];
    let target_block = step[at + 1u];

    // move
    if (unit < k_units) { k_pool[target_block * k_units + unit] = k_pool[source * k_units + unit]; }
    if (unit < v_units) { v_pool[target_block * v_units + unit] = v_pool[source * v_units + unit]; }
}
