// score_row_lanes.wgsl — scores with the lanes across a row of K, as across a row of V: a load takes whole lines of memory.
// Each lane sums up its own elements for K_STEPS keys. Then lanes exchange halves of what they hold until each holds the
// score of one key: the same key that it takes when lanes lie across the keys. Same functions as score_key_lanes.wgsl.
// Needs     query_vec4(query, head, i) of query_*.wgsl, kv_load, k_unit, k_scale, get_kv_row; subgroups
// Source    the halving butterfly: recursive halving of Thakur, Rabenseifner, Gropp (2005), between lanes

// The lane's own elements of every query row.
var<private> query_parts: array<vec4<f32>, Q_ROWS * K_SLICES * PARTS>;

// The unit of a row that the lane takes in a slice.
fn k_unit_of(slice: u32, lane: u32) -> u32 {
    return slice * K_LANES_PER_ROW + lane % K_LANES_PER_ROW;
}

fn set_query(r: u32, query: u32, head: u32, member: u32, lane: u32) {
    for (var s = 0u; s < K_SLICES; s++) { // unroll
        for (var p = 0u; p < PARTS; p++) { // unroll
            // 0 past the row.
            query_parts[(r * K_SLICES + s) * PARTS + p] = query_vec4(query, head, k_unit_of(s, lane) * PARTS + p);
        }
    }
}

fn queries_ready() {}

// Element sums of K_STEPS keys from `first` on, of those that the lane's key group takes: a batch whose loads are in flight
// together.
fn sum_elements(sum: ptr<function, array<f32, K_STEPS * Q_ROWS>>, k: u32, first: u32, lane: u32) {
    var kv_row: array<u32, K_STEPS>;
    var unit: array<vec4<u32>, K_STEPS * K_SLICES>;
    for (var j = 0u; j < K_STEPS; j++) { // unroll
        kv_row[j] = get_kv_row(k, lane / K_LANES_PER_ROW * K_LANES_PER_ROW + first + j);
        for (var s = 0u; s < K_SLICES; s++) { // unroll
            let idx = k_unit_of(s, lane);
            unit[j * K_SLICES + s] = k_unit(kv_row[j] * K_ROW_UNITS + min(idx, K_UNITS - 1u));
            // Past the row the query is 0, but 0 times infinity is not.
            if (K_SLICES * K_LANES_PER_ROW > K_UNITS && idx >= K_UNITS) { unit[j * K_SLICES + s] = vec4<u32>(0u); }
        }
    }
    for (var j = 0u; j < K_STEPS; j++) { // unroll
        for (var r = 0u; r < Q_ROWS; r++) { // unroll
            (*sum)[j * Q_ROWS + r] = 0.0;
        }
        for (var s = 0u; s < K_SLICES; s++) { // unroll
            for (var p = 0u; p < PARTS; p++) { // unroll
                var part = kv_load(unit[j * K_SLICES + s], p);
                if (SCALE_PER_UNIT) { part *= k_scale(kv_row[j], min(k_unit_of(s, lane), K_UNITS - 1u)); }
                for (var r = 0u; r < Q_ROWS; r++) { // unroll
                    (*sum)[j * Q_ROWS + r] += dot(query_parts[(r * K_SLICES + s) * PARTS + p], part);
                }
            }
        }
    }
}

// Adds the sums up over the lanes of a row. Lane l is left with key l % K_STEPS, in the first Q_ROWS sums.
fn halve(sum: ptr<function, array<f32, K_STEPS * Q_ROWS>>, lane: u32) {
    for (var step = 0u; step < LOG2_K_STEPS; step++) { // unroll
        let distance = K_STEPS >> (step + 1u);
        let is_upper = (lane & distance) != 0u;
        for (var i = 0u; i < (HALF_SUMS >> step); i++) { // unroll
            let low = (*sum)[i];
            let high = (*sum)[i + (HALF_SUMS >> step)];
            (*sum)[i] = select(low, high, is_upper) + subgroupShuffleXor(select(high, low, is_upper), distance);
        }
    }
    for (var bit = 0u; bit < SPARE_BITS; bit++) { // unroll
        for (var r = 0u; r < Q_ROWS; r++) { // unroll
            (*sum)[r] += subgroupShuffleXor((*sum)[r], K_STEPS << bit);
        }
    }
}

fn score_keys(score: ptr<function, array<f32, SCORES>>, kv_row: ptr<function, array<u32, KEYS_PER_LANE>>, lane: u32) {
    for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
        for (var first = 0u; first < K_LANES_PER_ROW; first += K_STEPS) { // once if K_LANES_PER_ROW == K_STEPS
            var sum: array<f32, K_STEPS * Q_ROWS>;
            sum_elements(&sum, k, first, lane);
            halve(&sum, lane);
            let is_own = lane % K_LANES_PER_ROW / K_STEPS == first / K_STEPS;
            for (var r = 0u; r < Q_ROWS; r++) { // unroll
                (*score)[k * Q_ROWS + r] = select((*score)[k * Q_ROWS + r], sum[r], is_own);
            }
        }
    }
}
