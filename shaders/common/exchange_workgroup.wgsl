// exchange_workgroup.wgsl — what the lanes of a workgroup hand to each other, through workgroup memory.
// For devices without subgroups, or where the size of a subgroup is not known beforehand.
// Same functions as exchange_subgroup.wgsl. Calls in divergent control flow are not allowed.

var<workgroup> query: array<vec4<f32>, GROUP_TILE * QUERY_VEC4S>;
var<workgroup> weights: array<f32, LANES * SCORES>;
var<workgroup> rows: array<u32, LANES * KEYS_PER_LANE>;
var<workgroup> scalars: array<f32, GROUP_TILE * LANES>;
var<workgroup> vectors: array<vec4<f32>, LANES>;

fn set_query(row: u32, first_head: u32, lane: u32) {
    for (var i = lane; i < GROUP_TILE * QUERY_VEC4S; i += LANES) {
        query[i] = query_vec4(row, first_head, i / QUERY_VEC4S, i % QUERY_VEC4S);
    }
    workgroupBarrier();
}

fn get_query(g: u32, i: u32) -> vec4<f32> {
    return query[g * QUERY_VEC4S + i];
}

// Each lane shares what it found for its key k: the row and, per query head, the weight.
fn set_row(k: u32, lane: u32, row: u32) {
    rows[k * LANES + lane] = row;
}

fn get_row(k: u32, lane: u32) -> u32 {
    return rows[k * LANES + lane];
}

fn set_weight(k: u32, lane: u32, g: u32, weight: f32) {
    weights[(k * LANES + lane) * GROUP_TILE + g] = weight;
}

fn get_weight(k: u32, lane: u32, g: u32) -> f32 {
    return weights[(k * LANES + lane) * GROUP_TILE + g];
}

// Makes what was set visible to all lanes, and what was got free to be set again.
fn exchange() {
    workgroupBarrier();
}

// Over all lanes, for every query head at once: barriers are dear, above all on software devices.
fn lanes_max(x: ptr<function, array<f32, GROUP_TILE>>, lane: u32) {
    for (var g = 0u; g < GROUP_TILE; g++) { // unroll
        scalars[g * LANES + lane] = (*x)[g];
    }
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            for (var g = 0u; g < GROUP_TILE; g++) {
                let at = g * LANES + lane;
                scalars[at] = max(scalars[at], scalars[at + half]);
            }
        }
    }
    workgroupBarrier();
    for (var g = 0u; g < GROUP_TILE; g++) { // unroll
        (*x)[g] = scalars[g * LANES];
    }
    workgroupBarrier();
}

fn lanes_sum(x: ptr<function, array<f32, GROUP_TILE>>, lane: u32) {
    for (var g = 0u; g < GROUP_TILE; g++) { // unroll
        scalars[g * LANES + lane] = (*x)[g];
    }
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            for (var g = 0u; g < GROUP_TILE; g++) {
                let at = g * LANES + lane;
                scalars[at] += scalars[at + half];
            }
        }
    }
    workgroupBarrier();
    for (var g = 0u; g < GROUP_TILE; g++) { // unroll
        (*x)[g] = scalars[g * LANES];
    }
    workgroupBarrier();
}

// Over the key groups: the lanes at the same place across a row of V.
fn key_groups_sum(x: vec4<f32>, lane: u32) -> vec4<f32> {
    vectors[lane] = x;
    workgroupBarrier();
    var sum = x;
    for (var other = 1u; other < KEY_GROUPS; other++) {
        sum += vectors[(lane + other * LANES_PER_ROW) % LANES];
    }
    workgroupBarrier();
    return sum;
}

@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    run(linear_index(group, groups), lane);
}
