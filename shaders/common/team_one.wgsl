// team_one.wgsl — a workgroup that serves its keys as one. Same functions as team_many.wgsl.

fn team_join(
    state: ptr<function, array<SoftmaxState, Q_ROWS>>,
    acc: ptr<function, array<vec4<f32>, Q_ROWS * OUT_VEC4S>>,
    member: u32,
    lane: u32,
) {
}

fn team_any(flag: bool, member: u32, lane: u32) -> bool {
    return lanes_any(flag, lane);
}
