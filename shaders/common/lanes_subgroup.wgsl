// lanes_subgroup.wgsl — what the lanes of a workgroup hand to each other, through subgroup operations.
// LANES lanes are exactly one subgroup: everything stays in registers and nothing needs a barrier.
// Same functions as lanes_workgroup.wgsl, called by all lanes together.
// Needs     SoftmaxState from softmax.wgsl

var<private> weights: array<f32, SCORES>;
var<private> kv_rows: array<u32, KEYS_PER_LANE>;

// Each lane shares what it found for its key k: the row of K and V and, per query row, the weight.
fn set_kv_row(k: u32, lane: u32, kv_row: u32) {
    kv_rows[k] = kv_row;
}

fn get_kv_row(k: u32, lane: u32) -> u32 {
    return subgroupShuffle(kv_rows[k], lane);
}

fn set_weight(k: u32, lane: u32, r: u32, weight: f32) {
    weights[k * Q_ROWS + r] = weight;
}

fn get_weight(k: u32, lane: u32, r: u32) -> f32 {
    return subgroupShuffle(weights[k * Q_ROWS + r], lane);
}

// Makes what was set visible to all lanes, and what was got free to be set again.
fn exchange() {}

// Over all lanes, for every query row at once. A butterfly of shuffles: Mesa's lavapipe compiles subgroupMax to a loop
// over the lanes.
fn lanes_max(x: ptr<function, array<f32, Q_ROWS>>, lane: u32) {
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        for (var i = 0u; i < LOG2_LANES; i++) { // unroll
            (*x)[r] = max((*x)[r], subgroupShuffleXor((*x)[r], 1u << i));
        }
    }
}

// Of states that share their maximum.
fn lanes_sum_exp(state: ptr<function, array<SoftmaxState, Q_ROWS>>, lane: u32) {
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        for (var i = 0u; i < LOG2_LANES; i++) { // unroll
            (*state)[r].sum_exp += subgroupShuffleXor((*state)[r].sum_exp, 1u << i);
        }
    }
}

fn lanes_any(flag: bool, lane: u32) -> bool {
    return subgroupAny(flag);
}

// All key groups add up all, and the first is to write it.
const KEY_GROUPS_TAKE_TURNS: bool = false;

fn key_group_has(i: u32, lane: u32) -> bool {
    return true;
}

// Over the key groups: the lanes at the same place across a row of V.
fn key_groups_sum(x: vec4<f32>, i: u32, lane: u32) -> vec4<f32> {
    var sum = x;
    for (var other = 1u; other < KEY_GROUPS; other++) {
        sum += subgroupShuffle(x, (lane + other * LANES_PER_ROW) % LANES);
    }
    return sum;
}
