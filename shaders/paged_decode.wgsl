// paged_decode.wgsl — attention of one query token per row over its paged K and V.
// Dispatch  one workgroup per (split of a row, KV head of the segment, tile of its query heads), folded into x and y
// Shapes    row-major
//   step      header and rows [num_rows]                                 see common/step.wgsl
//   tables    block tables                                               u32   only the first ceil(kv_len / BLOCK_SIZE) of a row are read
//   k_pool    [num_blocks, num_kv_heads, BLOCK_SIZE, UNITS]              16-byte units in the storage format (v_pool alike)
//   q         [num_rows, num_q_heads, HEAD_DIM]                          f32
//   out       [num_rows, num_q_heads, HEAD_DIM]                          f32
//   lse       [num_rows, num_q_heads]                                    f32 bits, natural logarithm; written if WRITE_LSE
//   partials  [num_partials, num_q_heads, HEAD_DIM + 2]                  f32   acc[HEAD_DIM], top (log2), sum; rows with one split skip it
// Twin      src/reference.rs: attend
// Source    PagedAttention (Kwon et al. 2023); online softmax (Milakov & Gimelshein 2018); Flash-Decoding (Dao et al. 2023)
// const     BLOCK_SIZE, HEAD_DIM, PAGED, SPLIT_TOKENS, TILE_IN_BLOCK, WRITE_LSE and the numbers of src/gpu/shape.rs: DecodeShape, put in front by the host
//
// To score, a lane takes one key and reads its whole row; to add up values, the lanes lie across a row of V. What all
// lanes need (queries, weights, rows) goes round through common/exchange_*.wgsl. Loops marked `unroll` are expanded by
// the host: some drivers keep an array in registers only if every index is a constant.

const LOWEST: f32 = -3.4028234e38; // start of the running top: finite, for WGSL may assume that there is no infinity

struct DecodeParams {
    scale_log2e: f32,   // scores are powers of two: exp2 is what devices have
    first_kv_head: u32, // of this segment
    num_kv_heads: u32,  // in this segment
    num_q_heads: u32,   // of the layer
}

@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(1) @binding(0) var<storage, read> k_pool: array<vec4<u32>>;
@group(1) @binding(1) var<storage, read> v_pool: array<vec4<u32>>;
@group(2) @binding(0) var<uniform> params: DecodeParams;
@group(2) @binding(1) var<storage, read> q: array<f32>;
@group(2) @binding(2) var<storage, read_write> out: array<f32>;
@group(2) @binding(3) var<storage, read_write> lse: array<u32>;
@group(2) @binding(4) var<storage, read_write> partials: array<f32>;

// vec4 i of a query head, scaled; zeros beyond HEAD_DIM and beyond the group's last head.
fn query_vec4(row: u32, first_head: u32, g: u32, i: u32) -> vec4<f32> {
    let head = first_head + g;
    var x = vec4<f32>(0.0);
    for (var e = 0u; e < 4u; e++) { // unroll
        if (4u * i + e < HEAD_DIM && head < params.num_q_heads) {
            x[e] = q[(row * params.num_q_heads + head) * HEAD_DIM + 4u * i + e] * params.scale_log2e;
        }
    }
    return x;
}

// The block that holds a position. In the contiguous twin a sequence has but one: the compiler sees that looking it up
// does not depend on the key.
fn key_block(row: Row, position: u32) -> u32 {
    if (PAGED) { return tables[row.table_base + position / BLOCK_SIZE]; }
    return tables[row.table_base];
}

// Attention of row `row_idx` over one split of its keys, for the query heads of one tile of one KV head.
fn attend(row_idx: u32, row: Row, split: u32, head: u32, tile_idx: u32, lane: u32) {
    let num_splits = max(1u, (row.kv_len + SPLIT_TOKENS - 1u) / SPLIT_TOKENS);
    let begin = split * SPLIT_TOKENS;
    let end = min(begin + SPLIT_TOKENS, row.kv_len);
    let first_head = (params.first_kv_head + head) * GROUP + tile_idx * GROUP_TILE;
    // A key group is as many lanes as lie across one row of V; the first argument is 0 whenever there is but one.
    let key_group = select(lane / LANES_PER_ROW, 0u, KEY_GROUPS == 1u);
    let row_lane = lane % LANES_PER_ROW;

    set_query(row_idx, first_head, lane);
    var acc: array<vec4<f32>, GROUP_TILE * HEAD_VEC4S>;
    var top: array<f32, GROUP_TILE>;
    var sum: array<f32, GROUP_TILE>;
    for (var g = 0u; g < GROUP_TILE; g++) { // unroll
        top[g] = LOWEST;
        sum[g] = 0.0;
        for (var i = 0u; i < HEAD_VEC4S; i++) { // unroll
            acc[g * HEAD_VEC4S + i] = vec4<f32>(0.0);
        }
    }

    for (var tile = begin; tile < end; tile += TILE) {
        // locate the lane's keys; those behind the end repeat the last one, and count for nothing
        var key_at: array<u32, KEYS_PER_LANE>;
        let tile_block = key_block(row, tile);
        for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
            let position = min(tile + k * LANES + lane, end - 1u);
            var block = tile_block;
            if (!TILE_IN_BLOCK) { block = key_block(row, position); }
            key_at[k] = row_in_block(block, params.num_kv_heads, head, position % BLOCK_SIZE);
            set_row(k, lane, key_at[k]);
        }

        // score
        var score: array<f32, SCORES>;
        for (var i = 0u; i < SCORES; i++) { // unroll
            score[i] = 0.0;
        }
        for (var u = 0u; u < UNITS; u++) { // unroll
            var unit: array<vec4<u32>, KEYS_PER_LANE>;
            for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                unit[k] = k_pool[key_at[k] + u];
            }
            for (var p = 0u; p < PARTS; p++) { // unroll
                for (var g = 0u; g < GROUP_TILE; g++) { // unroll
                    let query_part = get_query(g, u * PARTS + p);
                    for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                        score[k * GROUP_TILE + g] += dot(query_part, kv_load(unit[k], p));
                    }
                }
            }
        }

        // running softmax
        var new_top: array<f32, GROUP_TILE>;
        for (var g = 0u; g < GROUP_TILE; g++) { // unroll
            new_top[g] = top[g];
            for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                if (tile + k * LANES + lane < end) { new_top[g] = max(new_top[g], score[k * GROUP_TILE + g]); }
            }
        }
        lanes_max(&new_top, lane);
        for (var g = 0u; g < GROUP_TILE; g++) { // unroll
            let shrink = exp2(top[g] - new_top[g]);
            top[g] = new_top[g];
            sum[g] *= shrink;
            for (var i = 0u; i < HEAD_VEC4S; i++) { // unroll
                acc[g * HEAD_VEC4S + i] *= shrink;
            }
            for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                let seen = tile + k * LANES + lane < end;
                let weight = select(0.0, exp2(score[k * GROUP_TILE + g] - new_top[g]), seen);
                sum[g] += weight;
                set_weight(k, lane, g, weight);
            }
        }
        exchange();

        // add up values; a key behind the end gives zeros, not 0 · V, which is NaN if V holds one
        for (var s = 0u; s < SLICES; s++) { // unroll
            let unit_idx = min(s * LANES_PER_ROW + row_lane, UNITS - 1u);
            for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                for (var j = 0u; j < KEY_STEPS; j++) { // unroll up to 16
                    let source = j * KEY_GROUPS + key_group;
                    let seen = tile + k * LANES + source < end;
                    let unit = select(vec4<u32>(0u), v_pool[get_row(k, source) + unit_idx], seen);
                    for (var p = 0u; p < PARTS; p++) { // unroll
                        let value = kv_load(unit, p);
                        for (var g = 0u; g < GROUP_TILE; g++) { // unroll
                            acc[g * HEAD_VEC4S + s * PARTS + p] += get_weight(k, source, g) * value;
                        }
                    }
                }
            }
        }
        exchange();
    }

    // merge lanes and write
    lanes_sum(&sum, lane);
    for (var g = 0u; g < GROUP_TILE; g++) { // unroll
        let head_idx = first_head + g;
        // The last tile of a group may be short. A row of no key, or of none that counts, has a sum of zero.
        let writes = g + tile_idx * GROUP_TILE < GROUP && key_group == 0u;
        let inverse = select(1.0 / sum[g], 0.0, sum[g] == 0.0);
        let out_base = (row_idx * params.num_q_heads + head_idx) * HEAD_DIM;
        let record = ((row.partial_start + split) * params.num_q_heads + head_idx) * (HEAD_DIM + 2u);
        for (var i = 0u; i < HEAD_VEC4S; i++) { // unroll
            var value = acc[g * HEAD_VEC4S + i];
            if (KEY_GROUPS > 1u) { value = key_groups_sum(value, lane); }
            let d = (((i / PARTS) * LANES_PER_ROW + row_lane) * PARTS + i % PARTS) * 4u;
            for (var e = 0u; e < 4u; e++) { // unroll
                if (writes && d + e < HEAD_DIM) {
                    if (num_splits == 1u) {
                        out[out_base + d + e] = value[e] * inverse;
                    } else {
                        partials[record + d + e] = value[e];
                    }
                }
            }
        }
        if (writes && row_lane == 0u) {
            if (num_splits > 1u) {
                partials[record + HEAD_DIM] = top[g];
                partials[record + HEAD_DIM + 1u] = sum[g];
            } else if (WRITE_LSE) {
                lse[row_idx * params.num_q_heads + head_idx] = lse_bits(top[g], sum[g]);
            }
        }
    }
}

fn run(item: u32, lane: u32) {
    let header = step_header();
    let tile_idx = item % GROUP_TILES;
    let head = (item / GROUP_TILES) % params.num_kv_heads;
    let work = item / (GROUP_TILES * params.num_kv_heads);
    if (work < header.num_splits) {
        // the last row whose splits start at or before this one
        var low = 0u;
        var high = header.num_rows;
        while (high - low > 1u) {
            let middle = (low + high) / 2u;
            if (step_row(header, middle).split_start <= work) { low = middle; } else { high = middle; }
        }
        let row = step_row(header, low);
        attend(low, row, work - row.split_start, head, tile_idx, lane);
    }
}
