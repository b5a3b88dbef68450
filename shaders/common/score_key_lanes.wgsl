// score_key_lanes.wgsl — scores with the lanes across the keys: each reads the whole row of its own key, and the queries go
// round. Same function as score_row_lanes.wgsl.
// Needs     get_query(r, reg, i) of queries_*.wgsl, kv_load, k_unit, k_scale

// Scores the lane's keys against all query rows: a batch of units at a time, whose loads are in flight together. In a group
// of units the query parts lie in one register of each lane.
fn score_keys(score: ptr<function, array<f32, SCORES>>, kv_row: ptr<function, array<u32, KEYS_PER_LANE>>, lane: u32) {
    for (var i = 0u; i < SCORES; i++) { // unroll
        (*score)[i] = 0.0;
    }
    for (var g = 0u; g < K_GROUPS; g++) { // unroll
        for (var first = g * K_GROUP; first < min(g * K_GROUP + K_GROUP, K_UNITS); first += K_BATCH) { // once if K_GROUP == K_BATCH
            var unit: array<vec4<u32>, K_BATCH * KEYS_PER_LANE>;
            for (var b = 0u; b < K_BATCH; b++) { // unroll
                for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                    unit[b * KEYS_PER_LANE + k] = k_unit((*kv_row)[k] * K_ROW_UNITS + first + b);
                }
            }
            for (var b = 0u; b < K_BATCH; b++) { // unroll
                for (var p = 0u; p < PARTS; p++) { // unroll
                    let i = (first + b) * PARTS + p;
                    let reg = ((g * K_GROUP + b) * PARTS + p) / LANES;
                    var part: array<vec4<f32>, KEYS_PER_LANE>;
                    for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                        part[k] = kv_load(unit[b * KEYS_PER_LANE + k], p);
                        if (SCALE_PER_UNIT) { part[k] *= k_scale((*kv_row)[k], first + b); }
                    }
                    for (var r = 0u; r < Q_ROWS; r++) { // unroll
                        let query = get_query(r, reg, i);
                        for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                            (*score)[k * Q_ROWS + r] += dot(query, part[k]);
                        }
                    }
                }
            }
        }
    }
}
