// table_update.wgsl — writes the changed entries of this step into the resident block tables.
// Dispatch  one invocation per update, folded into x and y
// Shapes    step    header and updates [num_updates, 2]               u32   (index, block)
//           tables  [max_sequences, max_blocks_per_seq]               u32
// Twin      src/blocks/table.rs: BlockTables

@group(0) @binding(1) var<storage, read_write> tables: array<u32>;

@compute @workgroup_size(ITEM_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let update = linear_index(group, groups) * ITEM_LANES + lane;
    let header = step_header();
    if (update >= header.num_updates) { return; }
    let at = header.updates_base + 2u * update;
    tables[step[at]] = step[at + 1u];
}
