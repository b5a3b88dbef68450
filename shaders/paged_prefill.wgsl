// paged_prefill.wgsl — attention of the chunks of prompts over their paged K and V, in tiles that meet in workgroup memory.
// Dispatch  PARTS_PER_ITEM workgroups per (split of a query tile, KV head of the head shard), folded into x and y;
//           with a window, z counts the splits that a tile can see, and x and y all the rest
// Shapes    those of paged_attention.wgsl. The queries of a tile are neighbours, in the step and in their sequence.
// Twin      src/reference.rs
// Source    FlashAttention (Dao et al. 2022), and those of paged_attention.wgsl; register tiles of a matrix product in
//           workgroup memory (Goto and van de Geijn 2008)
// const     the numbers and flags of src/gpu/kernel/prefill_shape.rs, prepended by the host
//
// A workgroup serves Q_ROWS query rows: queries times query heads of one KV head. Its lanes stand in ROW_GROUPS times
// COL_GROUPS: each holds the scores of 4 rows and KEYS_PER_LANE keys, and the sums of the same rows and OUT_VEC4S vec4s of V,
// so that all that is known of a row stays with its lanes. Queries and keys come through workgroup memory a slice of
// SLICE_VEC4S vec4s at a time, values V_KEYS keys at a time, and what comes next is loaded before a slice is computed.
// Who multiplies what lies there, and how it lies, is the matter of tiles_*.wgsl: the lanes, or matrix units of their subgroups.
// Key tiles begin at multiples of KEY_TILE and a masked key changes no bit, so what a query row sums up, and in which order,
// depends on its own keys alone.
//
// Read from `main` at the end upwards: attend → serve → score_keys, find_weights, add_values → write_results.

// Rows of K and V of this key tile and the next, and their factors.
var<workgroup> kv_rows: array<u32, 2u * KEY_TILE>;
var<workgroup> kv_scales: array<vec2<f32>, KV_SCALES>;
var<workgroup> flags: atomic<u32>;
var<workgroup> any_flag: u32;

// What a workgroup serves.
struct Work {
    tile: QueryTile,
    split: u32,
    kv_head: u32,     // of the head shard
    first_head: u32,  // the query head of query row 0
    num_heads: u32,   // the last tile of a KV head's query heads may be short
    first_token: u32, // of the query tile
    num_tokens: u32,
    query: u32,       // of the first token
    position: i32,    // of the first token
    begin: u32,       // first key of the split
    end: u32,         // past the last
    member: u32,      // the lane's subgroup, if its units multiply
}

// One pass over the keys of a split: the tokens that it serves, and the keys that any of them sees.
struct Pass {
    first: u32,
    last: u32,   // past the last token
    begin: u32,
    end: u32,    // past the last key; none if the same
    again: bool, // whether a token is served once more, alone
}

// Where a key's row lies, with the factors of K and V.
struct Located {
    kv_row: u32,
    scales: vec2<f32>,
}

// What a lane has loaded and not yet put into workgroup memory.
struct Loaded {
    queries: array<QueryVec4, Q_LOADS>,
    keys: array<vec4<u32>, K_LOADS>,
    key_scales: array<f32, K_OCTETS>,
    values: array<vec4<u32>, V_LOADS>,
    value_scales: array<f32, V_OCTETS>,
}

// The unit of a row that holds the first half of an octet, or with u = 1 the second, if a unit is so short.
fn octet_unit(octet: u32, u: u32) -> u32 {
    return octet * OCTET_UNITS / UNIT_OCTETS + u;
}

// Half h of an octet, of its unit.
fn octet_part(octet: u32, h: u32) -> u32 {
    if (UNIT_OCTETS == 1u) { return h * (PARTS - 1u); }
    return octet % UNIT_OCTETS * 2u + h;
}

// The query row that is row i of a lane.
fn lane_row(lane: u32, i: u32) -> u32 {
    return lane / COL_GROUPS + i * ROW_GROUPS;
}

// The keys of the split that a query row sees.
fn row_keys(work: Work, r: u32) -> vec2<u32> {
    let t = r / GROUP_TILE;
    let keys = visible_keys(work.position + i32(t), params.window, work.begin, work.end);
    return select(vec2<u32>(0u), keys, t < work.num_tokens);
}

// Finds the place of the lane's key of the tile at `at`. Keys that none sees repeat one that is seen, and count for nothing.
fn locate_key(work: Work, served: Pass, at: u32, lane: u32) -> Located {
    let key = clamp(at + lane % KEY_TILE, served.begin, served.end - 1u);
    let kv_row = row_in_block(key_block(work.tile, key), params.num_kv_heads, work.kv_head, key % BLOCK_SIZE);
    var scales = vec2<f32>(1.0);
    if (SCALE_PER_ROW) { scales = vec2<f32>(k_scale(kv_row, 0u), v_scale(kv_row, 0u)); }
    return Located(kv_row, scales);
}

fn set_located(located: Located, buffer: u32, lane: u32) {
    if (lane < KEY_TILE) {
        kv_rows[buffer * KEY_TILE + lane] = located.kv_row;
        if (SCALE_PER_ROW) { kv_scales[buffer * KEY_TILE + lane] = located.scales; }
    }
}

// Queries and keys of a slice go round the lanes, a vec4 of a query and an octet of a key at a time.
fn load_slice(loaded: ptr<function, Loaded>, work: Work, buffer: u32, slice: u32, lane: u32) {
    for (var n = 0u; n < Q_LOADS; n++) { // unroll
        let item = n * LANES + lane;
        let r = item / SLICE_VEC4S;
        let query = work.query + min(r / GROUP_TILE, work.num_tokens - 1u);
        let i = slice * SLICE_VEC4S + item % SLICE_VEC4S;
        (*loaded).queries[n] = load_query(query, work.first_head + r % GROUP_TILE, i);
    }
    for (var n = 0u; n < K_OCTETS; n++) { // unroll
        let item = n * LANES + lane;
        let octet = slice * SLICE_OCTETS + item % SLICE_OCTETS;
        let key = item / SLICE_OCTETS;
        let kv_row = kv_rows[buffer * KEY_TILE + select(min(key, KEY_TILE - 1u), key, K_ITEMS_FIT)];
        for (var u = 0u; u < OCTET_UNITS; u++) { // unroll
            var unit_idx = octet_unit(octet, u);
            if (!K_SLICES_FIT) { unit_idx = min(unit_idx, K_UNITS - 1u); }
            (*loaded).keys[n * OCTET_UNITS + u] = k_unit(kv_row * K_ROW_UNITS + unit_idx);
            if (SCALE_PER_UNIT) { (*loaded).key_scales[n] = k_scale(kv_row, unit_idx); }
        }
    }
}

fn stage_slice(loaded: ptr<function, Loaded>, work: Work, slice: u32, lane: u32) {
    for (var n = 0u; n < Q_LOADS; n++) { // unroll
        let item = n * LANES + lane;
        let r = item / SLICE_VEC4S;
        let i = slice * SLICE_VEC4S + item % SLICE_VEC4S;
        var query = query_values((*loaded).queries[n]);
        // Past the row its last part stands again.
        if (!Q_SLICES_FIT) { query = select(vec4<f32>(0.0), query, 4u * i < HEAD_DIM); }
        if (Q_ITEMS_FIT || r < Q_ROWS) { stage_query(r, item % SLICE_VEC4S, query); }
    }
    for (var n = 0u; n < K_OCTETS; n++) { // unroll
        let item = n * LANES + lane;
        let octet = slice * SLICE_OCTETS + item % SLICE_OCTETS;
        let key = item / SLICE_OCTETS;
        for (var h = 0u; h < 2u; h++) { // unroll
            let i = octet * 2u + h;
            var part = kv_load((*loaded).keys[n * OCTET_UNITS + h * (OCTET_UNITS - 1u)], octet_part(octet, h));
            if (SCALE_PER_UNIT) { part *= (*loaded).key_scales[n]; }
            // Past the row the last unit stands again.
            if (!K_SLICES_FIT) { part = select(vec4<f32>(0.0), part, i < K_UNITS * PARTS); }
            if (K_ITEMS_FIT || key < KEY_TILE) { stage_key(key, item % SLICE_OCTETS * 2u + h, part); }
        }
    }
}

// Of V_KEYS keys, an octet at a time.
fn load_values(loaded: ptr<function, Loaded>, buffer: u32, slice: u32, lane: u32) {
    for (var n = 0u; n < V_OCTETS; n++) { // unroll
        let item = n * LANES + lane;
        let octet = item % ROW_OCTETS;
        let key = slice * V_KEYS + item / ROW_OCTETS;
        let kv_row = kv_rows[buffer * KEY_TILE + select(min(key, KEY_TILE - 1u), key, V_ITEMS_FIT)];
        for (var u = 0u; u < OCTET_UNITS; u++) { // unroll
            var unit_idx = octet_unit(octet, u);
            if (!V_ROW_FITS) { unit_idx = min(unit_idx, V_UNITS - 1u); }
            (*loaded).values[n * OCTET_UNITS + u] = v_unit(kv_row * V_ROW_UNITS + unit_idx);
            if (SCALE_PER_UNIT) { (*loaded).value_scales[n] = v_scale(kv_row, unit_idx); }
        }
    }
}

// A key that none sees gives zeros, not 0 · V, which is NaN if V holds one.
fn stage_values(loaded: ptr<function, Loaded>, served: Pass, at: u32, slice: u32, lane: u32) {
    for (var n = 0u; n < V_OCTETS; n++) { // unroll
        let item = n * LANES + lane;
        let octet = item % ROW_OCTETS;
        let key = item / ROW_OCTETS;
        let is_served = sees(vec2<u32>(served.begin, served.end), at + slice * V_KEYS + key);
        for (var h = 0u; h < 2u; h++) { // unroll
            let i = octet * 2u + h;
            let unit = select(vec4<u32>(0u), (*loaded).values[n * OCTET_UNITS + h * (OCTET_UNITS - 1u)], is_served);
            let scale = select(0.0, (*loaded).value_scales[n], is_served);
            var part = v_part(unit, octet_part(octet, h), scale);
            if (!V_ROW_FITS) { part = select(vec4<f32>(0.0), part, i < V_UNITS * PARTS); }
            if (V_ITEMS_FIT || key < V_KEYS) { stage_value(key, i, part); }
        }
    }
}

// The highest score that the lane's rows have seen so far, its own keys of this tile included.
fn finish_scores(
    score: ptr<function, array<f32, SCORES>>,
    max_score: vec4<f32>,
    work: Work,
    at: u32,
    buffer: u32,
    lane: u32,
) -> vec4<f32> {
    var highest = max_score;
    for (var i = 0u; i < 4u; i++) { // unroll
        let r = lane_row(lane, i);
        let seen = row_keys(work, r);
        for (var k = 0u; k < KEYS_PER_LANE; k++) { // unroll
            let place = lane_key(lane, k);
            var scale = 1.0;
            if (SCALE_PER_ROW) { scale = kv_scales[buffer * KEY_TILE + place].x; }
            let distance = i32(at + place) - (work.position + i32(r / GROUP_TILE));
            let product = (*score)[k * 4u + i] * params.query_factor;
            let x = finish_score(product, scale, work.first_head + r % GROUP_TILE, distance);
            (*score)[k * 4u + i] = x;
            if (sees(seen, at + place)) { highest[i] = max(highest[i], x); }
        }
    }
    return highest;
}

// Turns a part of the scores into weights under the new maximum, scaled as V is stored, and adds them to the lane's sums.
fn find_weights(
    score: ptr<function, array<f32, SCORES>>,
    sum_exp: ptr<function, vec4<f32>>,
    max_score: vec4<f32>,
    work: Work,
    at: u32,
    buffer: u32,
    first: u32,
    lane: u32,
) {
    var weights: array<vec4<f32>, PART_LANE_KEYS>;
    for (var j = 0u; j < PART_LANE_KEYS; j++) { // unroll
        let k = first + j;
        let place = lane_key(lane, k);
        for (var i = 0u; i < 4u; i++) { // unroll
            let is_seen = sees(row_keys(work, lane_row(lane, i)), at + place);
            let plain = select(0.0, exp2((*score)[k * 4u + i] - max_score[i]), is_seen);
            (*sum_exp)[i] += plain;
            weights[j][i] = plain;
            if (SCALE_PER_ROW) { weights[j][i] = select(0.0, plain * kv_scales[buffer * KEY_TILE + place].y, is_seen); }
        }
    }
    stage_weights(&weights, lane);
}

fn any_lane(flag: bool, lane: u32) -> bool {
    if (flag) { atomicOr(&flags, 1u); }
    workgroupBarrier();
    if (lane == 0u) { any_flag = atomicLoad(&flags); }
    return workgroupUniformLoad(&any_flag) != 0u;
}

// Writes the results of a pass, or its partials. Returns whether the lane's values are finite.
fn write_results(
    states: ptr<function, array<SoftmaxState, 4>>,
    acc: ptr<function, array<vec4<f32>, SUMS>>,
    work: Work,
    served: Pass,
    lane: u32,
) -> bool {
    let tile = work.tile;
    let first_partial = tile.first_partial + (work.split - tile.key_begin / tile.split_tokens) * tile.num_members;
    let col = lane % COL_GROUPS;
    var finite = true;
    for (var i = 0u; i < 4u; i++) { // unroll
        let r = lane_row(lane, i);
        let t = r / GROUP_TILE;
        let head = work.first_head + r % GROUP_TILE;
        let seen = row_keys(work, r);
        let sees_key = seen.x < seen.y;
        let is_only = sees_key && sees_one_split(work.position + i32(t), params.window, tile.split_tokens);
        let direct = tile.first_partial == NO_PARTIAL || is_only;
        // A query that sees no key of this split leaves no partial either.
        let is_served = t >= served.first && t < served.last && r % GROUP_TILE < work.num_heads;
        let writes = is_served && (direct || sees_key);
        let result = softmax_finish((*states)[i], sink(head));
        let partial = partial_base(first_partial + work.first_token + t, params.num_q_heads, head);
        for (var c = 0u; c < OUT_VEC4S; c++) { // unroll
            finite = finite & is_finite((*acc)[i * OUT_VEC4S + c]);
        }
        if (writes && direct) {
            for (var c = 0u; c < OUT_VEC4S; c++) { // unroll
                let base = output_base(work.query + t, head);
                write_output(base, (col + c * COL_GROUPS) * 4u, (*acc)[i * OUT_VEC4S + c] * result.factor);
            }
            if (WRITE_LSE && col == 0u) { lse[lse_place(work.query + t, head)] = result.lse_bits; }
        }
        if (writes && !direct) {
            for (var c = 0u; c < OUT_VEC4S; c++) { // unroll
                let at = col + c * COL_GROUPS;
                if (4u * at < V_HEAD_DIM) { partials[partial + at] = (*acc)[i * OUT_VEC4S + c]; }
            }
            if (col == 0u) {
                let state = (*states)[i];
                partials[partial + PARTIAL_VEC4S - 1u] = vec4<f32>(state.max_score, state.sum_exp, 0.0, 0.0);
            }
        }
    }
    return finite;
}

// Scores a key tile, slice after slice, the next one's loads on their way meanwhile. Returns the new maximum of the lane's rows,
// and brings what was accumulated under the old one down to it.
fn score_keys(
    score: ptr<function, array<f32, SCORES>>,
    max_score: vec4<f32>,
    sum_exp: ptr<function, vec4<f32>>,
    acc: ptr<function, array<vec4<f32>, SUMS>>,
    loaded: ptr<function, Loaded>,
    work: Work,
    again: bool,
    at: u32,
    buffer: u32,
    lane: u32,
) -> vec4<f32> {
    for (var i = 0u; i < SCORES; i++) { // unroll
        (*score)[i] = 0.0;
    }
    var products = no_products();
    let slices = rounds(K_SLICES);
    for (var s = 0u; s < slices; s++) {
        workgroupBarrier();
        stage_slice(loaded, work, s, lane);
        workgroupBarrier();
        let is_last = s + 1u == slices;
        load_slice(loaded, work, select(buffer, 1u - buffer, is_last), select(s + 1u, 0u, is_last), lane);
        add_slice(&products, score, again, work.member, lane);
    }
    read_scores(&products, score, again, work.member, lane);
    var highest = finish_scores(score, max_score, work, at, buffer, lane);
    set_row_part(highest, lane);
    for (var col = 0u; col < COL_GROUPS; col++) { // unroll
        highest = max(highest, row_part(col, lane));
    }
    let shrink = exp2(max_score - highest);
    *sum_exp *= shrink;
    for (var i = 0u; i < SUMS; i++) { // unroll
        (*acc)[i] *= shrink[i / OUT_VEC4S];
    }
    return highest;
}

// Compilers that know the number of rounds write these loops out, and the code outgrows what holds it on its way to the
// lanes.
fn rounds(count: u32) -> u32 {
    return select(0u, count, params.num_q_heads > 0u);
}

// One pass: all key tiles of the split, then the results.
fn serve(work: Work, served: Pass, lane: u32) -> bool {
    var max_score = vec4<f32>(LOWEST);
    var sum_exp = vec4<f32>(0.0);
    var acc: array<vec4<f32>, SUMS>;
    for (var i = 0u; i < SUMS; i++) { // unroll
        acc[i] = vec4<f32>(0.0);
    }
    // Some lanes may still read what the pass before left.
    workgroupBarrier();
    if (served.begin < served.end) {
        var loaded: Loaded;
        var at = served.begin / KEY_TILE * KEY_TILE;
        var buffer = 0u;
        set_located(locate_key(work, served, at, lane), 0u, lane);
        var next = locate_key(work, served, at + KEY_TILE, lane);
        workgroupBarrier();
        load_slice(&loaded, work, 0u, 0u, lane);
        load_values(&loaded, 0u, 0u, lane);
        loop {
            set_located(next, 1u - buffer, lane);
            next = locate_key(work, served, at + 2u * KEY_TILE, lane);
            var score: array<f32, SCORES>;
            max_score = score_keys(&score, max_score, &sum_exp, &acc, &loaded, work, served.again, at, buffer, lane);
            let slices = rounds(V_SLICES);
            for (var part = 0u; part < WEIGHT_PARTS; part++) { // unroll
                // Some lanes may still read the weights of the part before.
                if (part > 0u) { workgroupBarrier(); }
                find_weights(&score, &sum_exp, max_score, work, at, buffer, part * PART_LANE_KEYS, lane);
                for (var s = 0u; s < slices; s++) {
                    let slice = part * V_SLICES + s;
                    workgroupBarrier();
                    stage_values(&loaded, served, at, slice, lane);
                    workgroupBarrier();
                    let is_last = slice + 1u == WEIGHT_PARTS * V_SLICES;
                    load_values(&loaded, select(buffer, 1u - buffer, is_last), select(slice + 1u, 0u, is_last), lane);
                    add_values(&acc, s, served.again, work.member, lane);
                }
            }
            buffer = 1u - buffer;
            continuing {
                at += KEY_TILE;
                break if at >= served.end;
            }
        }
    }
    workgroupBarrier();
    set_row_part(sum_exp, lane);
    var sums = row_part(0u, lane);
    for (var col = 1u; col < COL_GROUPS; col++) { // unroll
        sums += row_part(col, lane);
    }
    var states: array<SoftmaxState, 4>;
    for (var i = 0u; i < 4u; i++) { // unroll
        states[i] = SoftmaxState(max_score[i], sums[i]);
    }
    return write_results(&states, &acc, work, served, lane);
}

// The first pass serves all tokens. A key that only some of them see has the weight 0 for the others, but 0 · V is NaN
// where V is not finite: if a sum comes out like that, the tokens are served again, one by one, to the same bits as if each were
// alone.
fn attend(work: Work, lane: u32) {
    measure_queries(work, lane);
    if (lane == 0u) { atomicStore(&flags, 0u); }
    // Later tokens see later keys, and of two neighbours' keys none lies between.
    let first = visible_keys(work.position, params.window, work.begin, work.end);
    let last = visible_keys(work.position + i32(work.num_tokens) - 1, params.window, work.begin, work.end);
    // A split of which no query sees a key leaves no partial: the merge does not look for it.
    if (first.x >= last.y && work.tile.first_partial != NO_PARTIAL) { return; }
    var pass_idx = 0u;
    var passes = 1u;
    loop {
        var served = Pass(0u, work.num_tokens, first.x, last.y, false);
        if (pass_idx > 0u) {
            let seen = visible_keys(work.position + i32(pass_idx) - 1, params.window, work.begin, work.end);
            served = Pass(pass_idx - 1u, pass_idx, seen.x, seen.y, true);
        }
        let finite = serve(work, served, lane);
        if (SERVES_AGAIN && pass_idx == 0u) {
            if (any_lane(!finite, lane)) { passes = 1u + work.num_tokens; }
        }
        continuing {
            pass_idx++;
            break if pass_idx >= passes;
        }
    }
}

// Parts of a work item number (tokens of the tile, tile of the query heads), the last fastest.
@compute @workgroup_size(LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let member = 0u;
    let header = step_header();
    let item = find_item(header, group, groups);
    let tile = item.tile;
    let head_tile = item.part % HEAD_TILES;
    let first_token = item.part / HEAD_TILES * TOKENS;
    if (item.exists && first_token < tile.num_members) {
        let first_head = (params.first_kv_head + item.kv_head) * GROUP + head_tile * GROUP_TILE;
        let num_heads = min(GROUP - head_tile * GROUP_TILE, GROUP_TILE);
        let num_tokens = min(tile.num_members - first_token, TOKENS);
        let query = tile_query(header, tile, first_token);
        let position = query_position(header, query);
        let begin = max(tile.key_begin, item.split * tile.split_tokens);
        // No plan has as many keys; the loop over them must not wrap, whatever the plan says.
        let end = min(min(tile.key_end, (item.split + 1u) * tile.split_tokens), 0x40000000u);
        let work = Work(
            tile, item.split, item.kv_head, first_head, num_heads, first_token, num_tokens, query, position, begin, end, member,
        );
        attend(work, lane);
    }
}
