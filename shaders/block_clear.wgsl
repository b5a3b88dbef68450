// block_clear.wgsl — overwrites whole blocks of a head shard, K and V, so that nothing is left of what they held.
// Dispatch  see common/whole_blocks.wgsl; the list is the blocks to clear
// Shapes    row-major
//   step     header and clears [num_clears]             u32   blocks
// const     that of common/whole_blocks.wgsl, and CLEAR_WORD, which is written, prepended by the host

@compute @workgroup_size(ITEM_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = block_unit(linear_index(group, groups) * ITEM_LANES + lane);
    let header = step_header();
    if (at.entry >= header.num_clears) { return; }
    let block = step[header.clears_base + at.entry];
    if (at.unit < at.k_units) { k_pool[block * at.k_units + at.unit] = vec4<u32>(CLEAR_WORD); }
    if (at.unit < at.v_units) { v_pool[block * at.v_units + at.unit] = vec4<u32>(CLEAR_WORD); }
}
