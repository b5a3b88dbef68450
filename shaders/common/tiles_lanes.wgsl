// tiles_lanes.wgsl — tiles in workgroup memory that the lanes multiply, each for its own rows. Same functions as
// tiles_matrices.wgsl.
// Source    register tiles of a matrix product in workgroup memory (Goto and van de Geijn 2008)
// const     those of paged_prefill.wgsl
//
// Workgroup memory is lines of WIDTH vec4s, one more to spread them over its banks, and blocks of lines. naga limits every
// index that is no constant: here these are the same few for all of a slice, and the compilers add the rest to an address.

// Queries and keys of a slice; then weights, a block for each slice of values, and behind them a slice of values.
var<workgroup> staged: array<array<array<vec4<f32>, WIDTH + 1u>, BLOCK_LINES>, BLOCKS>;

// The lanes add up where the scores will be.
alias Products = u32;

fn no_products() -> Products {
    return 0u;
}

// Queries go in as they are.
fn measure_queries(work: Work, lane: u32) {}

// Where key k of a lane stands in its key tile.
fn lane_key(lane: u32, k: u32) -> u32 {
    return lane % COL_GROUPS + k * COL_GROUPS;
}

fn stage_query(r: u32, d: u32, part: vec4<f32>) {
    let line = r / WIDTH * SLICE_VEC4S + d;
    staged[line / BLOCK_LINES][line % BLOCK_LINES][r % WIDTH] = part;
}

fn stage_key(key: u32, d: u32, part: vec4<f32>) {
    let line = KEYS_LINE + key / WIDTH * SLICE_VEC4S + d;
    staged[line / BLOCK_LINES][line % BLOCK_LINES][key % WIDTH] = part;
}

fn stage_value(key: u32, i: u32, part: vec4<f32>) {
    let line = VALUES_LINE + key * ROW_LINES + i / WIDTH;
    staged[line / BLOCK_LINES][line % BLOCK_LINES][i % WIDTH] = part;
}

// The weights of a part of the lane's keys, each for its 4 rows.
fn stage_weights(weights: ptr<function, array<vec4<f32>, PART_LANE_KEYS>>, lane: u32) {
    for (var j = 0u; j < PART_LANE_KEYS; j++) { // unroll
        let key = lane_key(lane, j);
        let within = key % V_KEYS * ROW_GROUPS;
        staged[key / V_KEYS][within / WIDTH][within % WIDTH + lane / COL_GROUPS] = (*weights)[j];
    }
}

fn add_product(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// Adds the products of a slice to the scores of the lane's rows and keys.
fn add_slice(products: ptr<function, Products>, score: ptr<function, array<f32, SCORES>>, again: bool, member: u32, lane: u32) {
    let row = lane / COL_GROUPS;
    let col = lane % COL_GROUPS;
    for (var d = 0u; d < SLICE_VEC4S; d++) { // unroll
        var query: array<vec4<f32>, 4>;
        for (var i = 0u; i < 4u; i++) { // unroll
            let line = i * ROW_GROUPS / WIDTH * SLICE_VEC4S + d;
            query[i] = staged[line / BLOCK_LINES][line % BLOCK_LINES][row + i * ROW_GROUPS % WIDTH];
        }
        for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
            let line = KEYS_LINE + k * COL_GROUPS / WIDTH * SLICE_VEC4S + d;
            let key = staged[line / BLOCK_LINES][line % BLOCK_LINES][col + k * COL_GROUPS % WIDTH];
            for (var i = 0u; i < 4u; i++) { // unroll
                (*score)[k * 4u + i] = add_product((*score)[k * 4u + i], query[i], key);
            }
        }
    }
}

// After the last slice.
fn read_scores(products: ptr<function, Products>, score: ptr<function, array<f32, SCORES>>, again: bool, member: u32, lane: u32) {
    // Some lanes may still read keys where parts of rows will be.
    if (SLICE_LINES > VALUES_LINE) { workgroupBarrier(); }
}

// Adds up the weighted values of a slice.
fn add_values(acc: ptr<function, array<vec4<f32>, SUMS>>, slice: u32, again: bool, member: u32, lane: u32) {
    let row = lane / COL_GROUPS;
    let col = lane % COL_GROUPS;
    for (var k = 0u; k < V_KEYS; k++) { // unroll
        let weight = staged[slice][k * ROW_GROUPS / WIDTH][row + k * ROW_GROUPS % WIDTH];
        for (var c = 0u; c < OUT_VEC4S; c++) { // unroll
            let line = VALUES_LINE + k * ROW_LINES + c * COL_GROUPS / WIDTH;
            let value = staged[line / BLOCK_LINES][line % BLOCK_LINES][col + c * COL_GROUPS % WIDTH];
            for (var i = 0u; i < 4u; i++) { // unroll
                (*acc)[i * OUT_VEC4S + c] = fma(vec4<f32>(weight[i]), value, (*acc)[i * OUT_VEC4S + c]);
            }
        }
    }
}

// Shares the lane's part of its 4 rows with the lanes of the same rows, where there will be values.
fn set_row_part(part: vec4<f32>, lane: u32) {
    let within = lane % COL_GROUPS * ROW_GROUPS;
    let line = VALUES_LINE + within / WIDTH;
    staged[line / BLOCK_LINES][line % BLOCK_LINES][within % WIDTH + lane / COL_GROUPS] = part;
    workgroupBarrier();
}

fn row_part(col: u32, lane: u32) -> vec4<f32> {
    let line = VALUES_LINE + col * ROW_GROUPS / WIDTH;
    return staged[line / BLOCK_LINES][line % BLOCK_LINES][lane / COL_GROUPS + col * ROW_GROUPS % WIDTH];
}
