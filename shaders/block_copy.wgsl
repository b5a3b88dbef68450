// block_copy.wgsl — copies whole blocks of a head shard, K and V, before the step's first append.
// Dispatch  see common/whole_blocks.wgsl; the list is the step's copies
// Shapes    row-major
//   step     header and copies [num_copies, 2]          u32   source, target
// No target is a source or another copy's target, which the host sees to: the copies may run in any order.
// Twin      src/plan/words.rs: BlockCopy
// const     that of common/whole_blocks.wgsl

@compute @workgroup_size(ITEM_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // locate
    let at = block_unit(linear_index(group, groups) * ITEM_LANES + lane);
    let header = step_header();
    if (at.entry >= header.num_copies) { return; }
    let copy = header.copies_base + 2u * at.entry;
    let source = step[copy];
    let target_block = step[copy + 1u];

    // move
    if (at.unit < at.k_units) { k_pool[target_block * at.k_units + at.unit] = k_pool[source * at.k_units + at.unit]; }
    if (at.unit < at.v_units) { v_pool[target_block * at.v_units + at.unit] = v_pool[source * at.v_units + at.unit]; }
}
