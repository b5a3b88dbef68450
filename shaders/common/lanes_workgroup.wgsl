// lanes_workgroup.wgsl — what the lanes of a workgroup hand to each other, through workgroup memory.
// For devices without subgroups, or where the size of a subgroup is not known beforehand.
// Same functions as lanes_subgroup.wgsl, called by all lanes together.
// Needs     SoftmaxState from softmax.wgsl

var<workgroup> weights: array<f32, LANES * SCORES>; // and numbers of a reduction, while there are none
var<workgroup> kv_rows: array<u32, LANES * KEYS_PER_LANE>;
var<workgroup> vectors: array<vec4<f32>, LANES>;
var<workgroup> any_flag: u32;

// Each lane shares what it found for its key k: the row of K and V and, per query row, the weight.
fn set_kv_row(k: u32, lane: u32, kv_row: u32) {
    kv_rows[k * LANES + lane] = kv_row;
}

fn get_kv_row(k: u32, lane: u32) -> u32 {
    return kv_rows[k * LANES + lane];
}

fn set_weight(k: u32, lane: u32, r: u32, weight: f32) {
    weights[(k * LANES + lane) * Q_ROWS + r] = weight;
}

fn get_weight(k: u32, lane: u32, r: u32) -> f32 {
    return weights[(k * LANES + lane) * Q_ROWS + r];
}

// Makes what was set visible to all lanes, and what was got free to be set again.
fn exchange() {
    workgroupBarrier();
}

// Over all lanes, for every query row at once: barriers are dear, above all on software devices.
fn lanes_max(x: ptr<function, array<f32, Q_ROWS>>, lane: u32) {
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        weights[r * LANES + lane] = (*x)[r];
    }
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            for (var r = 0u; r < Q_ROWS; r++) {
                let at = r * LANES + lane;
                weights[at] = max(weights[at], weights[at + half]);
            }
        }
    }
    workgroupBarrier();
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        (*x)[r] = weights[r * LANES];
    }
    workgroupBarrier();
}

// Of states that share their maximum.
fn lanes_sum_exp(state: ptr<function, array<SoftmaxState, Q_ROWS>>, lane: u32) {
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        weights[r * LANES + lane] = (*state)[r].sum_exp;
    }
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            for (var r = 0u; r < Q_ROWS; r++) {
                let at = r * LANES + lane;
                weights[at] += weights[at + half];
            }
        }
    }
    workgroupBarrier();
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        (*state)[r].sum_exp = weights[r * LANES];
    }
    workgroupBarrier();
}

fn lanes_any(flag: bool, lane: u32) -> bool {
    weights[lane] = select(0.0, 1.0, flag);
    workgroupBarrier();
    if (lane == 0u) {
        var any = 0.0;
        for (var other = 0u; other < LANES; other++) { any = max(any, weights[other]); }
        any_flag = u32(any);
    }
    return workgroupUniformLoad(&any_flag) != 0u;
}

// Key groups take turns: each adds up other vec4s of the output.
const KEY_GROUPS_TAKE_TURNS: bool = true;

// Whether the lane gets the sum of vec4 i; the others get zeros.
fn key_group_has(i: u32, lane: u32) -> bool {
    return lane / LANES_PER_ROW == i % KEY_GROUPS;
}

// Over the key groups: the lanes at the same place across a row of V.
fn key_groups_sum(x: vec4<f32>, i: u32, lane: u32) -> vec4<f32> {
    vectors[lane] = x;
    workgroupBarrier();
    var sum = vec4<f32>(0.0);
    if (key_group_has(i, lane)) {
        let first = lane % LANES_PER_ROW;
        // Intel's compiler writes a loop out whose rounds it can tell, and then spills.
        for (var at = first; at < first + LANES; at += LANES_PER_ROW) {
            sum += vectors[at];
        }
    }
    workgroupBarrier();
    return sum;
}
