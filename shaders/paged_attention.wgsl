// paged_attention.wgsl — attention of query tiles over their paged K and V: decode, prefill, and what lies between.
// Dispatch  one workgroup per (split of a query tile, KV head of the head shard, tile of its query heads), folded into x and y;
//           with a window, z counts the splits that a tile can see, and x and y all the rest
// Shapes    row-major
//   step        header, positions, query tiles and their members              see common/step.wgsl
//   tables      block tables                                            u32   only the blocks of visible keys are read
//   k_pool      [num_blocks, num_kv_heads, BLOCK_SIZE, K_ROW_UNITS]           16-byte units in the storage format
//   v_pool      [num_blocks, num_kv_heads, BLOCK_SIZE, V_ROW_UNITS]           alike
//   q           [num_queries, num_q_heads, HEAD_DIM]                          f32, or f16 in pairs; queries have a stride
//   out         [num_queries, num_q_heads, V_HEAD_DIM]                        alike
//   lse         [num_queries, num_q_heads]                              u32   bits of f32, natural logarithm; if WRITE_LSE
//   partials    [num_partials, num_q_heads, PARTIAL_VEC4S]              vec4  see common/partials.wgsl
//   head_terms  [num_q_heads]                                           vec4  ALiBi slope and sink, times log2(e), if used
// Twin      src/reference.rs
// Source    PagedAttention (Kwon et al. 2023); online softmax (Milakov & Gimelshein 2018); Flash-Decoding (Dao et al. 2023);
//           ALiBi (Press et al. 2022); attention sinks (Xiao et al. 2024)
// const     the numbers and flags of src/gpu/kernel/attention_shape.rs, prepended by the host
//
// A query row (`r`) is one query head of one query; Q_ROWS of them share every K and V that is loaded. A lane ends up with
// the scores of one key (common/score_*.wgsl); to add up values, the lanes lie across a row of V. What all lanes need
// (queries, weights, places) goes round through common/queries_*.wgsl and common/lanes_*.wgsl. The host expands the loops
// marked `unroll`, because some drivers keep an array in registers only if every index is a constant. Key tiles begin at
// multiples of KEY_TILE and a masked key changes no bit, so what a query row sums up, and in which order, depends on its own
// keys alone.
//
// Read from `main` at the end upwards: attend → serve → locate_keys, score_keys, update_softmax, add_values → write_results.

// What a workgroup serves: one split of a query tile's keys, for a tile of the query heads of one KV head.
struct Work {
    tile: QueryTile,
    split: u32,
    kv_head: u32,    // of the head shard
    first_head: u32, // the query head of query row 0
    num_heads: u32,  // the last tile of a KV head's query heads may be short
}

// The queries of a tile.
struct TileQueries {
    position: array<i32, TOKENS>,
    seen: array<vec2<u32>, TOKENS>, // keys of this split: the first, and past the last
}

// One pass over the keys of a split: the queries of the tile that it serves, and the keys that any of them sees.
struct Pass {
    first: u32, // query
    last: u32,  // past the last query
    begin: u32, // first key
    end: u32,   // past the last key; 0 if there is none
}

// A key group is as many lanes as lie across one row of V; the first argument is 0 whenever there is but one.
fn key_group(lane: u32) -> u32 {
    return select(lane / LANES_PER_ROW, 0u, KEY_GROUPS == 1u);
}

// Finds the queries of a tile and the keys of the split that each sees, and loads the query rows.
fn load_queries(queries: ptr<function, TileQueries>, header: StepHeader, work: Work, member: u32, lane: u32) {
    let tile = work.tile;
    let begin = max(tile.key_begin, work.split * tile.split_tokens);
    // No plan has as many keys; the loop over them must not wrap, whatever the plan says.
    let end = min(min(tile.key_end, (work.split + 1u) * tile.split_tokens), 0x40000000u);
    for (var t = 0u; t < TOKENS; t++) { // unroll
        let position = query_position(header, tile_query(header, tile, t));
        (*queries).position[t] = position;
        (*queries).seen[t] = visible_keys(position, params.window, begin, end);
    }
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        set_query(r, tile_query(header, tile, r / GROUP_TILE), work.first_head + r % GROUP_TILE, member, lane);
    }
    queries_ready();
}

// Pass 0 serves all queries of a tile, pass i only query i - 1.
fn find_pass(queries: ptr<function, TileQueries>, num_members: u32, pass_idx: u32) -> Pass {
    var served = Pass(0u, num_members, 0xffffffffu, 0u);
    if (pass_idx > 0u) { served = Pass(pass_idx - 1u, pass_idx, 0xffffffffu, 0u); }
    for (var t = 0u; t < TOKENS; t++) { // unroll
        let seen = (*queries).seen[t];
        if (t >= served.first && t < served.last && seen.x < seen.y) {
            served.begin = min(served.begin, seen.x);
            served.end = max(served.end, seen.y);
        }
    }
    return served;
}

// Finds where the lane's keys of the tile at `at` are stored. Keys that none sees repeat one that is seen, and count for
// nothing.
fn locate_keys(kv_row: ptr<function, array<u32, KEYS_PER_LANE>>, work: Work, served: Pass, at: u32, lane: u32) {
    let tile_block = key_block(work.tile, max(at, served.begin));
    for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
        let key = clamp(at + k * LANES + lane, served.begin, served.end - 1u);
        var block = tile_block;
        if (!TILE_IN_BLOCK) { block = key_block(work.tile, key); }
        (*kv_row)[k] = row_in_block(block, params.num_kv_heads, work.kv_head, key % BLOCK_SIZE);
        set_kv_row(k, lane, (*kv_row)[k]);
    }
}

// Turns scores into weights under the new maximum, and brings what was accumulated under the old one down to it.
fn update_softmax(
    state: ptr<function, array<SoftmaxState, Q_ROWS>>,
    acc: ptr<function, array<vec4<f32>, Q_ROWS * OUT_VEC4S>>,
    score: ptr<function, array<f32, SCORES>>,
    kv_row: ptr<function, array<u32, KEYS_PER_LANE>>,
    queries: ptr<function, TileQueries>,
    first_head: u32,
    at: u32,
    lane: u32,
) {
    var max_score: array<f32, Q_ROWS>;
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        max_score[r] = (*state)[r].max_score;
    }
    for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
        let key = at + k * LANES + lane;
        var scale = 1.0;
        if (SCALE_PER_ROW) { scale = k_scale((*kv_row)[k], 0u); }
        for (var r = 0u; r < Q_ROWS; r++) { // unroll
            let t = r / GROUP_TILE;
            let distance = i32(key) - (*queries).position[t];
            let x = finish_score((*score)[k * Q_ROWS + r], scale, first_head + r % GROUP_TILE, distance);
            (*score)[k * Q_ROWS + r] = x;
            if (sees((*queries).seen[t], key)) { max_score[r] = max(max_score[r], x); }
        }
    }
    lanes_max(&max_score, lane);
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        let shrink = softmax_shrink((*state)[r], max_score[r]);
        (*state)[r] = softmax_raise((*state)[r], max_score[r]);
        for (var i = 0u; i < OUT_VEC4S; i++) { // unroll
            (*acc)[r * OUT_VEC4S + i] *= shrink;
        }
        for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
            let is_seen = sees((*queries).seen[r / GROUP_TILE], at + k * LANES + lane);
            let weight = select(0.0, exp2((*score)[k * Q_ROWS + r] - max_score[r]), is_seen);
            (*state)[r].sum_exp += weight;
            (*score)[k * Q_ROWS + r] = weight;
        }
    }
}

// Hands the weights of the lane's keys round, scaled as V is stored.
fn share_weights(
    weight: ptr<function, array<f32, SCORES>>,
    kv_row: ptr<function, array<u32, KEYS_PER_LANE>>,
    queries: ptr<function, TileQueries>,
    at: u32,
    lane: u32,
) {
    for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
        var scale = 1.0;
        if (SCALE_PER_ROW) { scale = v_scale((*kv_row)[k], 0u); }
        let key = at + k * LANES + lane;
        for (var r = 0u; r < Q_ROWS; r++) { // unroll
            var scaled = (*weight)[k * Q_ROWS + r];
            if (SCALE_PER_ROW) { scaled = select(0.0, scaled * scale, sees((*queries).seen[r / GROUP_TILE], key)); }
            set_weight(k, lane, r, scaled);
        }
    }
    exchange();
}

// Adds up the weighted values of a key tile. A key that none sees gives zeros, not 0 · V, which is NaN if V holds one.
fn add_values(acc: ptr<function, array<vec4<f32>, Q_ROWS * OUT_VEC4S>>, served: Pass, at: u32, lane: u32) {
    for (var s = 0u; s < SLICES; s++) { // unroll
        let unit_idx = min(s * LANES_PER_ROW + lane % LANES_PER_ROW, V_UNITS - 1u);
        for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
            for (var h = 0u; h < V_GROUPS; h++) { // unroll
                for (var first = h * V_GROUP; first < h * V_GROUP + V_GROUP; first += V_BATCH) { // once if V_GROUP == V_BATCH
                    var unit: array<vec4<u32>, V_BATCH>;
                    var scale: array<f32, V_BATCH>;
                    for (var b = 0u; b < V_BATCH; b++) { // unroll
                        let source = key_group(lane) * LANES_PER_ROW + first + b;
                        let key = at + k * LANES + source;
                        let kv_row = get_kv_row(k, source);
                        if (SCALE_PER_UNIT) { scale[b] = v_scale(kv_row, unit_idx); }
                        let is_served = key >= served.begin && key < served.end;
                        unit[b] = select(vec4<u32>(0u), v_unit(kv_row * V_ROW_UNITS + unit_idx), is_served);
                    }
                    for (var b = 0u; b < V_BATCH; b++) { // unroll
                        let source = key_group(lane) * LANES_PER_ROW + first + b;
                        for (var p = 0u; p < PARTS; p++) { // unroll
                            let value = v_part(unit[b], p, scale[b]);
                            let column = s * PARTS + p;
                            for (var r = 0u; r < Q_ROWS; r++) { // unroll
                                (*acc)[r * OUT_VEC4S + column] += get_weight(k, source, r) * value;
                            }
                        }
                    }
                }
            }
        }
    }
    exchange();
}

// Where a query row's values go: units from `base` on of `out` if direct, and else vec4s of `partials`.
struct Target {
    writes: bool,
    direct: bool,
    base: u32,
    factor: f32, // of a direct result
}

// Merges vec4 i of query row r over the lanes and writes it. Returns whether it is finite.
fn write_vec4(row_target: Target, acc: vec4<f32>, r: u32, i: u32, lane: u32) -> bool {
    var value = acc;
    var writes = row_target.writes;
    if (KEY_GROUPS > 1u) {
        value = key_groups_sum(acc, r * OUT_VEC4S + i, lane);
        writes = writes && key_group_has(r * OUT_VEC4S + i, lane);
    }
    let d = (((i / PARTS) * LANES_PER_ROW + lane % LANES_PER_ROW) * PARTS + i % PARTS) * 4u;
    if (writes && row_target.direct) { write_output(row_target.base, d, value * row_target.factor); }
    if (writes && !row_target.direct && d < V_HEAD_DIM) { partials[row_target.base + d / 4u] = value; }
    return is_finite(value);
}

// Merges the lanes and writes the results of a pass, or its partials. Returns whether the lane's values are finite. What is
// known of a query is read again: held until here, it would cost the loop over keys its registers.
fn write_results(
    state: ptr<function, array<SoftmaxState, Q_ROWS>>,
    acc: ptr<function, array<vec4<f32>, Q_ROWS * OUT_VEC4S>>,
    queries: ptr<function, TileQueries>,
    work: Work,
    served: Pass,
    member: u32,
    lane: u32,
) -> bool {
    lanes_sum_exp(state, lane);
    team_join(state, acc, member, lane);
    let header = step_header();
    let tile = work.tile;
    let first_partial = tile.first_partial + (work.split - tile.key_begin / tile.split_tokens) * tile.num_members;
    let is_writer = member == 0u && (KEY_GROUPS_TAKE_TURNS || key_group(lane) == 0u);
    var finite = true;
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        let t = r / GROUP_TILE;
        let head = work.first_head + r % GROUP_TILE;
        let sees_key = (*queries).seen[t].x < (*queries).seen[t].y;
        let is_only = sees_key && sees_one_split((*queries).position[t], params.window, tile.split_tokens);
        let direct = tile.first_partial == NO_PARTIAL || is_only;
        // A query that sees no key of this split leaves no partial either.
        let is_served = t >= served.first && t < served.last && r % GROUP_TILE < work.num_heads;
        let writes = is_served && (direct || sees_key) && is_writer;
        let result = softmax_finish((*state)[r], sink(head));
        let query = tile_query(header, tile, t);
        let partial = partial_base(first_partial + t, params.num_q_heads, head);
        let row_target = Target(writes, direct, select(partial, output_base(query, head), direct), result.factor);
        for (var i = 0u; i < OUT_VEC4S; i++) { // unroll
            finite = write_vec4(row_target, (*acc)[r * OUT_VEC4S + i], r, i, lane) && finite;
        }
        if (writes && lane == 0u) {
            if (!direct) {
                partials[partial + PARTIAL_VEC4S - 1u] = vec4<f32>((*state)[r].max_score, (*state)[r].sum_exp, 0.0, 0.0);
            } else if (WRITE_LSE) {
                lse[lse_place(query, head)] = result.lse_bits;
            }
        }
    }
    return finite;
}

// One pass: all key tiles of the split, each member of the team its own, then the results. Which tiles are a member's depends on
// their place in the sequence alone.
fn serve(queries: ptr<function, TileQueries>, work: Work, served: Pass, member: u32, lane: u32) -> bool {
    var state: array<SoftmaxState, Q_ROWS>;
    var acc: array<vec4<f32>, Q_ROWS * OUT_VEC4S>;
    for (var r = 0u; r < Q_ROWS; r++) { // unroll
        state[r] = softmax_init();
        for (var i = 0u; i < OUT_VEC4S; i++) { // unroll
            acc[r * OUT_VEC4S + i] = vec4<f32>(0.0);
        }
    }
    let first = served.begin / KEY_TILE;
    var at = (first + (member + SUBGROUPS - first % SUBGROUPS) % SUBGROUPS) * KEY_TILE;
    if (served.begin < served.end && at < served.end) {
        // Tested at its end: Mesa's lavapipe pays for one more round of a loop that is tested at its start.
        loop {
            var kv_row: array<u32, KEYS_PER_LANE>;
            var score: array<f32, SCORES>;
            locate_keys(&kv_row, work, served, at, lane);
            score_keys(&score, &kv_row, lane);
            update_softmax(&state, &acc, &score, &kv_row, queries, work.first_head, at, lane);
            share_weights(&score, &kv_row, queries, at, lane);
            add_values(&acc, served, at, lane);
            continuing {
                at += SUBGROUPS * KEY_TILE;
                break if at >= served.end;
            }
        }
    }
    return write_results(&state, &acc, queries, work, served, member, lane);
}

// The first pass serves all queries. A key that only some of them see has the weight 0 for the others, but 0 · V is NaN
// where V is not finite: if a sum comes out like that, the queries are served again, one by one.
fn attend(header: StepHeader, work: Work, member: u32, lane: u32) {
    var queries: TileQueries;
    load_queries(&queries, header, work, member, lane);
    var served = find_pass(&queries, work.tile.num_members, 0u);
    // A split of which no query sees a key leaves no partial: the merge does not look for it.
    if (served.end == 0u && work.tile.first_partial != NO_PARTIAL) { return; }
    var pass_idx = 0u;
    var passes = 1u;
    loop {
        let finite = serve(&queries, work, served, member, lane);
        if (TOKENS > 1u && pass_idx == 0u) {
            if (team_any(!finite, member, lane)) { passes = 1u + work.tile.num_members; }
        }
        continuing {
            pass_idx++;
            // After the last pass for nothing: where it depended on that, Apple's compiler would take more registers.
            served = find_pass(&queries, work.tile.num_members, pass_idx);
            break if pass_idx >= passes;
        }
    }
}

@compute @workgroup_size(SUBGROUPS * LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    // A subgroup has numbers of its own, and so have its lanes; see Kernel::wgsl.
    @builtin(local_invocation_index) lane: u32,
) {
    let member = 0u;
    let header = step_header();
    let item = find_item(header, group, groups);
    let first_head = (params.first_kv_head + item.kv_head) * GROUP + item.part * GROUP_TILE;
    let num_heads = min(GROUP - item.part * GROUP_TILE, GROUP_TILE);
    if (item.exists) { attend(header, Work(item.tile, item.split, item.kv_head, first_head, num_heads), member, lane); }
}
