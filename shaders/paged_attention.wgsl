// paged_attention.wgsl — attention of query tiles over their paged K and V: decode, prefill, and what lies between.
// Dispatch  one workgroup per (split of a query tile, KV head of the head shard, tile of its query heads), folded into x and y;
//           with a window, per (query tile, KV head, head tile) in x and y, and as many splits as it can touch in z
// Shapes    row-major
//   step        header, positions, query tiles and their members              see common/step.wgsl
//   tables      block tables                                            u32   only the blocks of visible keys are read
//   k_pool      [num_blocks, num_kv_heads, BLOCK_SIZE, K_ROW_UNITS]           16-byte units in the storage format
//   v_pool      [num_blocks, num_kv_heads, BLOCK_SIZE, V_ROW_UNITS]           alike
//   q           [num_rows, num_q_heads, HEAD_DIM]                             f32, or f16 in pairs
//   out         [num_rows, num_q_heads, V_HEAD_DIM]                           alike
//   lse         [num_rows, num_q_heads]                                 u32   bits of f32, natural logarithm; if WRITE_LSE
//   partials    [records, num_q_heads, V_HEAD_DIM + 2]                  f32   acc[V_HEAD_DIM], top (log2), sum
//   head_terms  [num_q_heads]                                           vec4  ALiBi slope and sink, times log2(e), if used
// Twin      src/reference.rs
// Source    PagedAttention (Kwon et al. 2023); online softmax (Milakov & Gimelshein 2018); Flash-Decoding (Dao et al. 2023);
//           ALiBi (Press et al. 2022); attention sinks (Xiao et al. 2024)
// const     the numbers and flags of src/gpu/shape.rs: AttentionShape, put in front by the host
//
// A row of this kernel is one query head of one token; ROWS of them share every K and V that is loaded. To score, a lane
// takes one key and reads its whole row; to add up values, the lanes lie across a row of V. What all lanes need (queries,
// weights, places) goes round through common/exchange_*.wgsl. Loops marked `unroll` are expanded by the host: some drivers
// keep an array in registers only if every index is a constant. Key tiles begin at multiples of KEY_TILE and a masked key
// changes no bit, so what a row sums up, and in which order, depends on its own keys alone.

struct AttentionParams {
    query_factor: f32,  // of q: the scale, times log2(e), for scores are powers of two; with a soft cap, the scale over the cap
    score_factor: f32,  // the soft cap times log2(e)
    window: u32,        // keys that a query sees, its own included; if WINDOW
    first_kv_head: u32, // of this head_shard
    num_kv_heads: u32,  // in this head_shard
    num_q_heads: u32,   // of the layer
    first_item: u32,    // of this dispatch
    padding: u32,
}

@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(1) @binding(0) var<storage, read> k_pool: array<vec4<u32>>;
@group(1) @binding(1) var<storage, read> v_pool: array<vec4<u32>>;
@group(2) @binding(0) var<uniform> params: AttentionParams;
@group(2) @binding(1) var<storage, read> q: array<IoWord>;
@group(2) @binding(2) var<storage, read_write> out: array<IoWord>;
@group(2) @binding(3) var<storage, read_write> lse: array<u32>;
@group(2) @binding(4) var<storage, read_write> partials: array<f32>;
@group(2) @binding(5) var<uniform> head_terms: array<vec4<f32>, HEAD_TERMS>;

// vec4 i of a query head of a token, scaled; zeros beyond HEAD_DIM and beyond the last head.
fn query_vec4(token_row: u32, head: u32, i: u32) -> vec4<f32> {
    var x = vec4<f32>(0.0);
    for (var e = 0u; e < 4u; e++) { // unroll
        if (4u * i + e < HEAD_DIM && head < params.num_q_heads) {
            let at = (token_row * params.num_q_heads + head) * HEAD_DIM + 4u * i + e;
            x[e] = io_element(q[at / IO_PER_WORD], at) * params.query_factor;
        }
    }
    return x;
}

fn slope(head: u32) -> f32 {
    return select(0.0, head_terms[min(head, HEAD_TERMS - 1u)].x, ALIBI);
}

fn sink(head: u32) -> f32 {
    return select(0.0, head_terms[min(head, HEAD_TERMS - 1u)].y, SINKS);
}

// The block that holds a position. In the contiguous twin a sequence has but one: the compiler sees that looking it up
// does not depend on the key.
fn key_block(tile: QueryTile, position: u32) -> u32 {
    if (PAGED) { return tables[tile.table_base + position / BLOCK_SIZE]; }
    return tables[tile.table_base];
}

// The factor of a stored row's unit; a format without scales has none.
fn k_scale(row: u32, u: u32) -> f32 {
    if (SCALE_PER_UNIT) { return bitcast<f32>(k_pool[row * K_ROW_UNITS + K_UNITS + u / 4u][u % 4u]); }
    return bitcast<f32>(k_pool[row * K_ROW_UNITS + K_UNITS].x);
}

fn v_scale(row: u32, u: u32) -> f32 {
    if (SCALE_PER_UNIT) { return bitcast<f32>(v_pool[row * V_ROW_UNITS + V_UNITS + u / 4u][u % 4u]); }
    return bitcast<f32>(v_pool[row * V_ROW_UNITS + V_UNITS].x);
}

// One unit of V as numbers, less the row's own scale.
fn v_part(unit: vec4<u32>, part: u32, scale: f32) -> vec4<f32> {
    if (SCALE_PER_UNIT) { return kv_load(unit, part) * scale; }
    return kv_load(unit, part);
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn is_finite(x: vec4<f32>) -> bool {
    return all((bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u));
}

// Who of a query tile takes part in a pass, and which keys of the split they see.
struct Audience {
    first: u32, // token
    last: u32,  // behind the last token
    begin: u32, // first key that any of them sees
    end: u32,   // behind the last one; 0 if there is none
}

// Attention of a query tile over one split of its keys, for one tile of the query heads of one KV head.
fn attend(header: StepHeader, tile: QueryTile, split: u32, head: u32, head_tile: u32, lane: u32) {
    let first_head = (params.first_kv_head + head) * GROUP + head_tile * GROUP_TILE;
    // A key group is as many lanes as lie across one row of V; the first argument is 0 whenever there is but one.
    let key_group = select(lane / LANES_PER_ROW, 0u, KEY_GROUPS == 1u);
    let row_lane = lane % LANES_PER_ROW;
    let split_begin = max(tile.key_begin, split * tile.split_tokens);
    let split_end = min(tile.key_end, (split + 1u) * tile.split_tokens);

    // locate the tokens and the keys that they see
    var token_row: array<u32, TOKENS>;
    var position: array<i32, TOKENS>;
    var seen: array<vec2<u32>, TOKENS>;
    for (var t = 0u; t < TOKENS; t++) { // unroll
        token_row[t] = step[header.members_base + tile.first_member + min(t, tile.num_members - 1u)];
        position[t] = row_position(header, token_row[t]);
        seen[t] = visible_keys(position[t], params.window, split_begin, split_end);
    }
    for (var r = 0u; r < ROWS; r++) { // unroll
        set_query(r, token_row[r / GROUP_TILE], first_head + r % GROUP_TILE, lane);
    }
    exchange();

    // The first pass serves all tokens. A key that only some of them see has the weight 0 for the others, but 0 · V is NaN
    // where V is not finite: if a sum comes out like that, the tokens are served again, one by one.
    var pass_idx = 0u;
    var passes = 1u;
    loop {
        var audience = Audience(0u, tile.num_members, split_end, 0u);
        if (pass_idx > 0u) { audience = Audience(pass_idx - 1u, pass_idx, split_end, 0u); }
        for (var t = 0u; t < TOKENS; t++) { // unroll
            if (t >= audience.first && t < audience.last && seen[t].x < seen[t].y) {
                audience.begin = min(audience.begin, seen[t].x);
                audience.end = max(audience.end, seen[t].y);
            }
        }
        // A split of which nobody sees a key leaves no record: the merge does not look for it.
        if (pass_idx == 0u && audience.end == 0u && tile.record_start != NO_RECORD) { return; }
        let begin = audience.begin;
        let end = audience.end;
        var acc: array<vec4<f32>, ROWS * OUT_VEC4S>;
        var top: array<f32, ROWS>;
        var sum: array<f32, ROWS>;
        for (var r = 0u; r < ROWS; r++) { // unroll
            top[r] = LOWEST;
            sum[r] = 0.0;
            for (var i = 0u; i < OUT_VEC4S; i++) { // unroll
                acc[r * OUT_VEC4S + i] = vec4<f32>(0.0);
            }
        }

        if (begin < end) {
            // Tested at its end: Mesa's lavapipe pays for one more round of a loop that is tested at its start.
            var at = begin / KEY_TILE * KEY_TILE;
            loop {
                // locate the lane's keys; those that nobody sees repeat one that is seen, and count for nothing
                var key_row: array<u32, KEYS_PER_LANE>;
                let tile_block = key_block(tile, max(at, begin));
                for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                    let key = clamp(at + k * LANES + lane, begin, end - 1u);
                    var block = tile_block;
                    if (!TILE_IN_BLOCK) { block = key_block(tile, key); }
                    key_row[k] = row_in_block(block, params.num_kv_heads, head, key % BLOCK_SIZE);
                    set_row(k, lane, key_row[k]);
                }

                // score
                var score: array<f32, SCORES>;
                for (var i = 0u; i < SCORES; i++) { // unroll
                    score[i] = 0.0;
                }
                for (var u = 0u; u < K_UNITS; u++) { // unroll
                    var unit: array<vec4<u32>, KEYS_PER_LANE>;
                    for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                        unit[k] = k_pool[key_row[k] * K_ROW_UNITS + u];
                    }
                    for (var p = 0u; p < PARTS; p++) { // unroll
                        var part: array<vec4<f32>, KEYS_PER_LANE>;
                        for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                            part[k] = kv_load(unit[k], p);
                            if (SCALE_PER_UNIT) { part[k] *= k_scale(key_row[k], u); }
                        }
                        for (var r = 0u; r < ROWS; r++) { // unroll
                            let query_part = get_query(r, u * PARTS + p);
                            for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                                score[k * ROWS + r] += dot(query_part, part[k]);
                            }
                        }
                    }
                }

                // cap, mask, bias; then the running softmax
                var new_top: array<f32, ROWS>;
                for (var r = 0u; r < ROWS; r++) { // unroll
                    new_top[r] = top[r];
                }
                for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                    let key = at + k * LANES + lane;
                    var scale = 1.0;
                    if (SCALE_PER_ROW) { scale = k_scale(key_row[k], 0u); }
                    for (var r = 0u; r < ROWS; r++) { // unroll
                        let t = r / GROUP_TILE;
                        var x = score[k * ROWS + r];
                        if (SCALE_PER_ROW) { x *= scale; }
                        // Beyond 15 tanh is 1, and beyond 88 WGSL leaves it open; what clamp makes of NaN is open too.
                        if (SOFT_CAP) { x = select(tanh(clamp(x, -15.0, 15.0)) * params.score_factor, x, is_nan(x)); }
                        if (ALIBI) { x += slope(first_head + r % GROUP_TILE) * f32(i32(key) - position[t]); }
                        score[k * ROWS + r] = x;
                        if (key >= seen[t].x && key < seen[t].y) { new_top[r] = max(new_top[r], x); }
                    }
                }
                lanes_max(&new_top, lane);
                for (var r = 0u; r < ROWS; r++) { // unroll
                    let t = r / GROUP_TILE;
                    let shrink = exp2(top[r] - new_top[r]);
                    top[r] = new_top[r];
                    sum[r] *= shrink;
                    for (var i = 0u; i < OUT_VEC4S; i++) { // unroll
                        acc[r * OUT_VEC4S + i] *= shrink;
                    }
                    for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                        let key = at + k * LANES + lane;
                        let sees = key >= seen[t].x && key < seen[t].y;
                        let weight = select(0.0, exp2(score[k * ROWS + r] - new_top[r]), sees);
                        sum[r] += weight;
                        score[k * ROWS + r] = weight;
                    }
                }
                for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                    var scale = 1.0;
                    if (SCALE_PER_ROW) { scale = v_scale(key_row[k], 0u); }
                    let key = at + k * LANES + lane;
                    for (var r = 0u; r < ROWS; r++) { // unroll
                        let t = r / GROUP_TILE;
                        var weight = score[k * ROWS + r];
                        if (SCALE_PER_ROW) { weight = select(0.0, weight * scale, key >= seen[t].x && key < seen[t].y); }
                        set_weight(k, lane, r, weight);
                    }
                }
                exchange();

                // add up values; a key that nobody sees gives zeros, not 0 · V, which is NaN if V holds one
                for (var s = 0u; s < SLICES; s++) { // unroll
                    let unit_idx = min(s * LANES_PER_ROW + row_lane, V_UNITS - 1u);
                    for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
                        for (var j = 0u; j < KEY_STEPS; j++) { // unroll up to 16
                            let source = j * KEY_GROUPS + key_group;
                            let key = at + k * LANES + source;
                            let row = get_row(k, source);
                            var scale = 1.0;
                            if (SCALE_PER_UNIT) { scale = v_scale(row, unit_idx); }
                            let unit = select(vec4<u32>(0u), v_pool[row * V_ROW_UNITS + unit_idx], key >= begin && key < end);
                            for (var p = 0u; p < PARTS; p++) { // unroll
                                let value = v_part(unit, p, scale);
                                for (var r = 0u; r < ROWS; r++) { // unroll
                                    acc[r * OUT_VEC4S + s * PARTS + p] += get_weight(k, source, r) * value;
                                }
                            }
                        }
                    }
                }
                exchange();
                continuing {
                    at += KEY_TILE;
                    break if at >= end;
                }
            }
        }

        // merge lanes and write
        lanes_sum(&sum, lane);
        var finite = true;
        for (var r = 0u; r < ROWS; r++) { // unroll
            let t = r / GROUP_TILE;
            let head_idx = first_head + r % GROUP_TILE;
            // The last head tile of a group may be short.
            let writes = t >= audience.first && t < audience.last && r % GROUP_TILE + head_tile * GROUP_TILE < GROUP && key_group == 0u;
            let finish = finish_softmax(top[r], sum[r], sink(head_idx));
            let out_base = (token_row[t] * params.num_q_heads + head_idx) * V_HEAD_DIM;
            let record_idx = tile.record_start + (split - tile.key_begin / tile.split_tokens) * tile.num_members + t;
            let record = (record_idx * params.num_q_heads + head_idx) * (V_HEAD_DIM + 2u);
            for (var i = 0u; i < OUT_VEC4S; i++) { // unroll
                var value = acc[r * OUT_VEC4S + i];
                if (KEY_GROUPS > 1u) { value = key_groups_sum(value, lane); }
                finite = finite && is_finite(value);
                let d = (((i / PARTS) * LANES_PER_ROW + row_lane) * PARTS + i % PARTS) * 4u;
                if (tile.record_start == NO_RECORD) {
                    value *= finish.factor;
                    for (var w = 0u; w < IO_WORDS; w++) { // unroll
                        let e = w * IO_PER_WORD;
                        if (writes && d + e < V_HEAD_DIM) {
                            out[(out_base + d + e) / IO_PER_WORD] = io_word(value[e], value[e + IO_PER_WORD - 1u]);
                        }
                    }
                } else {
                    for (var e = 0u; e < 4u; e++) { // unroll
                        if (writes && d + e < V_HEAD_DIM) { partials[record + d + e] = value[e]; }
                    }
                }
            }
            if (writes && row_lane == 0u) {
                if (tile.record_start != NO_RECORD) {
                    partials[record + V_HEAD_DIM] = top[r];
                    partials[record + V_HEAD_DIM + 1u] = sum[r];
                } else if (WRITE_LSE) {
                    lse[token_row[t] * params.num_q_heads + head_idx] = finish.lse_bits;
                }
            }
        }
        if (TOKENS > 1u && pass_idx == 0u) {
            if (lanes_any(!finite, lane)) { passes = 1u + tile.num_members; }
        }
        continuing {
            pass_idx++;
            break if pass_idx >= passes;
        }
    }
}

// The first split of which a member of a query tile sees a key, if its window shows it any.
fn first_split(header: StepHeader, tile: QueryTile) -> u32 {
    var low = tile.key_end;
    for (var t = 0u; t < tile.num_members; t++) {
        let position = row_position(header, step[header.members_base + tile.first_member + t]);
        low = min(low, visible_keys(position, params.window, tile.key_begin, tile.key_end).x);
    }
    return low / tile.split_tokens;
}

// An item numbers the splits of all query tiles, times heads and head tiles. Where a window hides most splits, it numbers the
// tiles, and `window_split` their splits from the first that is seen.
fn run(group_idx: u32, window_split: u32, lane: u32) {
    let item = params.first_item + group_idx;
    let header = step_header();
    let tiles = tile_class(TILE_CLASS);
    let head_tile = item % HEAD_TILES;
    let head = (item / HEAD_TILES) % params.num_kv_heads;
    let work = item / (HEAD_TILES * params.num_kv_heads);
    var tile_idx = work;
    if (!WINDOW) {
        // the last tile whose splits start at or before this one
        tile_idx = 0u;
        var high = tiles.num_tiles;
        while (high - tile_idx > 1u) {
            let middle = (tile_idx + high) / 2u;
            let starts = query_tile(tiles.tiles_base + 8u * middle).item_start;
            if (starts <= work) { tile_idx = middle; } else { high = middle; }
        }
    }
    let tile = query_tile(tiles.tiles_base + 8u * min(tile_idx, tiles.num_tiles - 1u));
    var split = tile.key_begin / tile.split_tokens + work - tile.item_start;
    var exists = work < tiles.num_items;
    if (WINDOW) {
        split = first_split(header, tile) + window_split;
        // A sequence without keys has one split.
        exists = work < tiles.num_tiles && (split == 0u || split * tile.split_tokens < tile.key_end);
    }
    if (exists) { attend(header, tile, split, head, head_tile, lane); }
}
