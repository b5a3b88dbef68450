// lanes_subgroup.wgsl — what the lanes of a workgroup hand to each other, through subgroup operations.
// The workgroup is exactly one subgroup of LANES lanes: everything stays in registers and nothing needs a barrier.
// Same functions as lanes_workgroup.wgsl. Calls in divergent control flow are not allowed.

// vec4 i of a row's query lives in lane i % LANES: what all lanes need is held once and handed round.
var<private> query: array<vec4<f32>, ROWS * QUERY_REGS>;
var<private> weights: array<f32, SCORES>;
var<private> rows: array<u32, KEYS_PER_LANE>;

fn set_query(r: u32, token_row: u32, head: u32, lane: u32) {
    for (var i = 0u; i < QUERY_REGS; i++) { // unroll
        query[r * QUERY_REGS + i] = query_vec4(token_row, head, i * LANES + lane);
    }
}

fn get_query(r: u32, i: u32) -> vec4<f32> {
    return subgroupShuffle(query[r * QUERY_REGS + i / LANES], i % LANES);
}

// Each lane shares what it found for its key k: the row and, per row, the weight.
fn set_row(k: u32, lane: u32, row: u32) {
    rows[k] = row;
}

fn get_row(k: u32, lane: u32) -> u32 {
    return subgroupShuffle(rows[k], lane);
}

fn set_weight(k: u32, lane: u32, r: u32, weight: f32) {
    weights[k * ROWS + r] = weight;
}

fn get_weight(k: u32, lane: u32, r: u32) -> f32 {
    return subgroupShuffle(weights[k * ROWS + r], lane);
}

// Makes what was set visible to all lanes, and what was got free to be set again.
fn exchange() {}

// Over all lanes, for every row at once. A butterfly of shuffles: Mesa's lavapipe compiles subgroupMax to a loop
// over the lanes.
fn lanes_max(x: ptr<function, array<f32, ROWS>>, lane: u32) {
    for (var r = 0u; r < ROWS; r++) { // unroll
        for (var i = 0u; i < LOG2_LANES; i++) { // unroll
            (*x)[r] = max((*x)[r], subgroupShuffleXor((*x)[r], 1u << i));
        }
    }
}

fn lanes_sum(x: ptr<function, array<f32, ROWS>>, lane: u32) {
    for (var r = 0u; r < ROWS; r++) { // unroll
        for (var i = 0u; i < LOG2_LANES; i++) { // unroll
            (*x)[r] += subgroupShuffleXor((*x)[r], 1u << i);
        }
    }
}

fn lanes_any(flag: bool, lane: u32) -> bool {
    return subgroupAny(flag);
}

// Over the key groups: the lanes at the same place across a row of V.
fn key_groups_sum(x: vec4<f32>, lane: u32) -> vec4<f32> {
    var sum = x;
    for (var other = 1u; other < KEY_GROUPS; other++) {
        sum += subgroupShuffle(x, (lane + other * LANES_PER_ROW) % LANES);
    }
    return sum;
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    run(linear_index(group, groups), group.z, lane);
}
