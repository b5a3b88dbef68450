// exchange_subgroup.wgsl — what the lanes of a workgroup hand to each other, through subgroup operations.
// The workgroup is exactly one subgroup of LANES lanes: everything stays in registers and nothing needs a barrier.
// Same functions as exchange_workgroup.wgsl. Calls in divergent control flow are not allowed.

// vec4 i of a query head lives in lane i % LANES: what all lanes need is held once and handed round.
var<private> query: array<vec4<f32>, GROUP_TILE * QUERY_REGS>;
var<private> weights: array<f32, SCORES>;
var<private> rows: array<u32, KEYS_PER_LANE>;

fn set_query(row: u32, first_head: u32, lane: u32) {
    for (var g = 0u; g < GROUP_TILE; g++) { // unroll
        for (var r = 0u; r < QUERY_REGS; r++) { // unroll
            query[g * QUERY_REGS + r] = query_vec4(row, first_head, g, r * LANES + lane);
        }
    }
}

fn get_query(g: u32, i: u32) -> vec4<f32> {
    return subgroupShuffle(query[g * QUERY_REGS + i / LANES], i % LANES);
}

// Each lane shares what it found for its key k: the row and, per query head, the weight.
fn set_row(k: u32, lane: u32, row: u32) {
    rows[k] = row;
}

fn get_row(k: u32, lane: u32) -> u32 {
    return subgroupShuffle(rows[k], lane);
}

fn set_weight(k: u32, lane: u32, g: u32, weight: f32) {
    weights[k * GROUP_TILE + g] = weight;
}

fn get_weight(k: u32, lane: u32, g: u32) -> f32 {
    return subgroupShuffle(weights[k * GROUP_TILE + g], lane);
}

// Makes what was set visible to all lanes, and what was got free to be set again.
fn exchange() {}

// Over all lanes, for every query head at once. A butterfly of shuffles: Mesa's lavapipe compiles subgroupMax to a loop
// over the lanes.
fn lanes_max(x: ptr<function, array<f32, GROUP_TILE>>, lane: u32) {
    for (var g = 0u; g < GROUP_TILE; g++) { // unroll
        for (var i = 0u; i < LOG2_LANES; i++) { // unroll
            (*x)[g] = max((*x)[g], subgroupShuffleXor((*x)[g], 1u << i));
        }
    }
}

fn lanes_sum(x: ptr<function, array<f32, GROUP_TILE>>, lane: u32) {
    for (var g = 0u; g < GROUP_TILE; g++) { // unroll
        for (var i = 0u; i < LOG2_LANES; i++) { // unroll
            (*x)[g] += subgroupShuffleXor((*x)[g], 1u << i);
        }
    }
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
    run(linear_index(group, groups), lane);
}
