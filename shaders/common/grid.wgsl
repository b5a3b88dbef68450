// grid.wgsl — the number of a workgroup.
// Twin      src/plan/dispatch.rs: workgroups

// A linear index from a dispatch that was folded into two dimensions or three.
fn linear_index(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return (group.z * groups.y + group.y) * groups.x + group.x;
}
