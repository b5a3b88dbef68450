// team_many.wgsl — the subgroups of a workgroup, each of which serves its own key tiles of the split: what they found meets in
// workgroup memory, once. More loads in flight on a core, and no more partials. Same functions as team_one.wgsl.
// Needs     SoftmaxState and its functions from softmax.wgsl, lanes_any of lanes_subgroup.wgsl

var<workgroup> team_acc: array<vec4<f32>, SUBGROUPS * OUT_VEC4S * LANES>;
var<workgroup> team_state: array<vec2<f32>, SUBGROUPS>;
var<workgroup> team_flag: u32;

// Merges the members' states and sums, row by row and in their order, into those of member 0. Lanes of a member have one state.
fn team_join(
    state: ptr<function, array<SoftmaxState, Q_ROWS>>,
    acc: ptr<function, array<vec4<f32>, Q_ROWS * OUT_VEC4S>>,
    member: u32,
    lane: u32,
) {
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        for (var i = 0u; i < OUT_VEC4S; i++) { // unroll
            team_acc[(member * OUT_VEC4S + i) * LANES + lane] = (*acc)[r * OUT_VEC4S + i];
        }
        if (lane == 0u) { team_state[member] = vec2<f32>((*state)[r].max_score, (*state)[r].sum_exp); }
        workgroupBarrier();
        var joined = (*state)[r];
        for (var other = 1u; other < SUBGROUPS; other++) {
            joined = softmax_merge(joined, SoftmaxState(team_state[other].x, team_state[other].y));
        }
        let shrink = softmax_shrink((*state)[r], joined.max_score);
        for (var i = 0u; i < OUT_VEC4S; i++) { // unroll
            (*acc)[r * OUT_VEC4S + i] *= shrink;
        }
        for (var other = 1u; other < SUBGROUPS; other++) {
            let factor = softmax_shrink(SoftmaxState(team_state[other].x, team_state[other].y), joined.max_score);
            for (var i = 0u; i < OUT_VEC4S; i++) { // unroll
                (*acc)[r * OUT_VEC4S + i] += factor * team_acc[(other * OUT_VEC4S + i) * LANES + lane];
            }
        }
        (*state)[r] = joined;
        workgroupBarrier();
    }
}

// What member 0 says; the others do not know.
fn team_any(flag: bool, member: u32, lane: u32) -> bool {
    let any = lanes_any(flag, lane);
    if (member == 0u && lane == 0u) { team_flag = u32(any); }
    return workgroupUniformLoad(&team_flag) != 0u;
}
