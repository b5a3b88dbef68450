// tiles_matrices.wgsl — tiles in workgroup memory that the matrix units of the subgroups multiply. Same functions as
// tiles_lanes.wgsl.
// Source    cooperative matrices (VK_KHR_cooperative_matrix), FlashAttention-2 (Dao 2023)
// const     those of paged_prefill.wgsl; a lane has 4 keys, which are neighbours
// alias     Left, Right, Sum: matrices of MATRIX rows and columns of f16, f16 and f32, prepended by the host
//
// The units take f16 and sum in f32. K and V are f16 as they are stored; an f32 query and a weight are the sum of two halves,
// each multiplied for itself, and so as exact as 21 bits are: of the largest element of a query row, which a power of two brings
// to where f16 has most of its numbers. Sums of products go through workgroup memory to the lanes that
// know their rows: subgroups may lay a matrix out as they like. A row of the result depends on its own row alone.
//
// Halves may be 0, and 0 · ∞ is NaN. A pass that serves tokens again takes what the lanes multiply in place of every product of
// the units that is not finite, and leaves all others: their bits are those of the first pass.

// Queries and keys of a slice; then weights, and a slice of values. Upper halves before the lower ones.
var<workgroup> operands: array<vec4<f16>, OPERANDS>;
// Of Q_ROWS rows, a vec4 for each lane of the row, and one more to spread them over the banks.
var<workgroup> results: array<vec4<f32>, Q_ROWS * RESULT_STRIDE>;
// Bits of the largest element of each query row.
var<workgroup> largest: array<atomic<u32>, Q_ROWS>;

// What a subgroup multiplies: MEMBER_ROWS times MEMBER_COLS matrices of the result.
alias Products = array<Sum, MEMBER_ROWS * MEMBER_COLS>;

// Weights are at most 1. So many times larger, the lower halves of small ones still are numbers in f16.
const WEIGHT_SCALE: f32 = 16384.0;

fn no_products() -> Products {
    return Products();
}

// Where key k of a lane stands in its key tile.
fn lane_key(lane: u32, k: u32) -> u32 {
    return lane % COL_GROUPS * 4u + k;
}

// What f16 holds of a number, towards 0. Compilers take a number that was rounded to f16 and back for the number itself: the
// bits are cut off before.
fn upper_half(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(x) & vec4<u32>(0xffffe000u));
}

// The rest; of infinity, nothing.
fn lower_half(x: vec4<f32>, upper: vec4<f32>) -> vec4<f16> {
    return vec4<f16>(select(x - upper, vec4<f32>(0.0), x == upper));
}

// What of `x` is finite, and of `other` where it is not.
fn finite_or(x: vec4<f32>, other: vec4<f32>) -> vec4<f32> {
    let exponent = vec4<u32>(0x7f800000u);
    return select(x, other, (bitcast<vec4<u32>>(x) & exponent) == exponent);
}

// Finds the largest element of every query row that goes in as two halves.
fn measure_queries(work: Work, lane: u32) {
    if (SPLIT_QUERIES) {
        if (lane < Q_ROWS) { atomicStore(&largest[lane], 0u); }
        workgroupBarrier();
        let r = lane % Q_ROWS;
        let query = work.query + min(r / GROUP_TILE, work.num_tokens - 1u);
        var most = vec4<f32>(0.0);
        for (var i = lane / Q_ROWS; 4u * i < HEAD_DIM; i += LANES / Q_ROWS) {
            most = max(most, abs(query_values(load_query(query, work.first_head + r % GROUP_TILE, i))));
        }
        atomicMax(&largest[r], bitcast<u32>(max(max(most.x, most.y), max(most.z, most.w))));
        workgroupBarrier();
    }
}

// The exponent of a row's largest element, as its bits hold it; of tiny rows one that leaves both factors normal numbers.
fn row_exponent(r: u32) -> u32 {
    return clamp(atomicLoad(&largest[r]) >> 23u, 15u, 254u);
}

// Brings the largest element to between 2^14 and 2^15.
fn query_scale(r: u32) -> f32 {
    if (!SPLIT_QUERIES) { return 1.0; }
    return bitcast<f32>((268u - row_exponent(r)) << 23u);
}

// And its scores back.
fn score_scale(r: u32) -> f32 {
    if (!SPLIT_QUERIES) { return 1.0; }
    return bitcast<f32>((row_exponent(r) - 14u) << 23u);
}

fn stage_query(r: u32, d: u32, part: vec4<f32>) {
    let at = r * SLICE_STRIDE + d;
    if (SPLIT_QUERIES) {
        let scaled = part * query_scale(r);
        let upper = upper_half(scaled);
        operands[at] = vec4<f16>(upper);
        operands[LOWER_QUERIES + at] = lower_half(scaled, upper);
    } else {
        operands[at] = vec4<f16>(part);
    }
}

fn stage_key(key: u32, d: u32, part: vec4<f32>) {
    operands[KEYS + key * SLICE_STRIDE + d] = vec4<f16>(part);
}

fn stage_value(key: u32, i: u32, part: vec4<f32>) {
    operands[VALUES + key * VALUE_STRIDE + i] = vec4<f16>(part);
}

// The weights of the lane's keys, each for its 4 rows.
fn stage_weights(weights: ptr<function, array<vec4<f32>, PART_LANE_KEYS>>, lane: u32) {
    for (var i = 0u; i < 4u; i++) { // unroll
        let of_row = vec4<f32>((*weights)[0][i], (*weights)[1][i], (*weights)[2][i], (*weights)[3][i]) * WEIGHT_SCALE;
        let at = lane_row(lane, i) * WEIGHT_STRIDE + lane % COL_GROUPS;
        let upper = upper_half(of_row);
        operands[at] = vec4<f16>(upper);
        operands[LOWER_WEIGHTS + at] = lower_half(of_row, upper);
    }
}

// The first row and column of the result that a subgroup multiplies.
fn member_row(member: u32) -> u32 {
    return member / (RESULT_COLS / MEMBER_COLS) * MEMBER_ROWS * MATRIX;
}

fn member_col(member: u32) -> u32 {
    return member % (RESULT_COLS / MEMBER_COLS) * MEMBER_COLS * MATRIX;
}

// Adds the products of a slice.
fn add_slice(products: ptr<function, Products>, score: ptr<function, array<f32, SCORES>>, again: bool, member: u32, lane: u32) {
    if (again) { add_slice_by_lanes(score, lane); }
    if (member < MEMBERS) { multiply_slice(products, member); }
}

// What matrix units do stands in functions without a condition: naga demands flow that it knows to be uniform.
fn multiply_slice(products: ptr<function, Products>, member: u32) {
    for (var step = 0u; step < SLICE_STEPS; step++) { // unroll
        for (var c = 0u; c < MEMBER_COLS; c++) { // unroll
            let key = KEYS + (member_col(member) + c * MATRIX) * SLICE_STRIDE + step * MATRIX / 4u;
            let keys = coopLoad<Right>(&operands[key], SLICE_STRIDE);
            for (var r = 0u; r < MEMBER_ROWS; r++) { // unroll
                let query = (member_row(member) + r * MATRIX) * SLICE_STRIDE + step * MATRIX / 4u;
                let i = r * MEMBER_COLS + c;
                let upper = coopLoadT<Left>(&operands[query], SLICE_STRIDE);
                (*products)[i] = coopMultiplyAdd(upper, keys, (*products)[i]);
                if (SPLIT_QUERIES) {
                    let lower = coopLoadT<Left>(&operands[LOWER_QUERIES + query], SLICE_STRIDE);
                    (*products)[i] = coopMultiplyAdd(lower, keys, (*products)[i]);
                }
            }
        }
    }
}

fn add_slice_by_lanes(score: ptr<function, array<f32, SCORES>>, lane: u32) {
    for (var d = 0u; d < SLICE_VEC4S; d++) {
        for (var i = 0u; i < 4u; i++) { // unroll
            let at = lane_row(lane, i) * SLICE_STRIDE + d;
            var query = vec4<f32>(operands[at]);
            if (SPLIT_QUERIES) { query += vec4<f32>(operands[LOWER_QUERIES + at]); }
            for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                (*score)[k * 4u + i] += dot(query, vec4<f32>(operands[KEYS + lane_key(lane, k) * SLICE_STRIDE + d]));
            }
        }
    }
}

fn write_products(products: ptr<function, Products>, member: u32) {
    for (var r = 0u; r < MEMBER_ROWS; r++) { // unroll
        for (var c = 0u; c < MEMBER_COLS; c++) { // unroll
            let at = (member_row(member) + r * MATRIX) * RESULT_STRIDE + (member_col(member) + c * MATRIX) / 4u;
            coopStoreT((*products)[r * MEMBER_COLS + c], &results[at], RESULT_STRIDE);
        }
    }
}

// After the last slice.
fn read_scores(products: ptr<function, Products>, score: ptr<function, array<f32, SCORES>>, again: bool, member: u32, lane: u32) {
    if (member < MEMBERS) { write_products(products, member); }
    workgroupBarrier();
    for (var i = 0u; i < 4u; i++) { // unroll
        let r = lane_row(lane, i);
        var of_row = results[r * RESULT_STRIDE + lane % COL_GROUPS];
        if (again) { of_row = finite_or(of_row, vec4<f32>((*score)[i], (*score)[4u + i], (*score)[8u + i], (*score)[12u + i])); }
        for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
            (*score)[k * 4u + i] = of_row[k] * score_scale(r);
        }
    }
}

// Adds up the weighted values of a slice, RESULT_COLS matrices of columns at a time.
fn add_values(acc: ptr<function, array<vec4<f32>, SUMS>>, slice: u32, again: bool, member: u32, lane: u32) {
    for (var c = 0u; c < OUT_VEC4S; c++) { // unroll
        if (member < MEMBERS) { multiply_values(slice, c, member); }
        workgroupBarrier();
        if (again) { mend_results(slice, c, lane); }
        for (var i = 0u; i < 4u; i++) { // unroll
            let sums = results[lane_row(lane, i) * RESULT_STRIDE + lane % COL_GROUPS];
            (*acc)[i * OUT_VEC4S + c] = fma(sums, vec4<f32>(1.0 / WEIGHT_SCALE), (*acc)[i * OUT_VEC4S + c]);
        }
        workgroupBarrier();
    }
}

fn multiply_values(slice: u32, chunk: u32, member: u32) {
    var products = no_products();
    for (var step = 0u; step < VALUE_STEPS; step++) { // unroll
        let k = step * MATRIX;
        for (var c = 0u; c < MEMBER_COLS; c++) { // unroll
            let value = VALUES + k * VALUE_STRIDE + chunk * COL_GROUPS + (member_col(member) + c * MATRIX) / 4u;
            let values = coopLoadT<Right>(&operands[value], VALUE_STRIDE);
            for (var r = 0u; r < MEMBER_ROWS; r++) { // unroll
                let weight = (member_row(member) + r * MATRIX) * WEIGHT_STRIDE + (slice * V_KEYS + k) / 4u;
                let i = r * MEMBER_COLS + c;
                products[i] = coopMultiplyAdd(coopLoadT<Left>(&operands[weight], WEIGHT_STRIDE), values, products[i]);
                let lower = coopLoadT<Left>(&operands[LOWER_WEIGHTS + weight], WEIGHT_STRIDE);
                products[i] = coopMultiplyAdd(lower, values, products[i]);
            }
        }
    }
    write_products(&products, member);
}

// Puts the lane's own sums in place of those that are not finite, where no other lane reads them.
fn mend_results(slice: u32, chunk: u32, lane: u32) {
    let rows = rounds(4u);
    let keys = rounds(V_KEYS);
    for (var i = 0u; i < rows; i++) {
        let r = lane_row(lane, i);
        let place = r * RESULT_STRIDE + lane % COL_GROUPS;
        var sum = vec4<f32>(0.0);
        for (var k = 0u; k < keys; k++) {
            let value = vec4<f32>(operands[VALUES + k * VALUE_STRIDE + chunk * COL_GROUPS + lane % COL_GROUPS]);
            let key = slice * V_KEYS + k;
            let at = r * WEIGHT_STRIDE + key / 4u;
            sum += (f32(operands[at][key % 4u]) + f32(operands[LOWER_WEIGHTS + at][key % 4u])) * value;
        }
        results[place] = finite_or(results[place], sum);
    }
}

// Shares the lane's part of its 4 rows with the lanes of the same rows, where it found its own results.
fn set_row_part(part: vec4<f32>, lane: u32) {
    results[lane / COL_GROUPS * RESULT_STRIDE + lane % COL_GROUPS] = part;
    workgroupBarrier();
}

fn row_part(col: u32, lane: u32) -> vec4<f32> {
    return results[lane / COL_GROUPS * RESULT_STRIDE + col];
}
