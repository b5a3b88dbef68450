// attention.wgsl — what the kernels that attend have in common: their work items, keys and scores.
// Needs     OutUnit of out_*.wgsl, k_word and v_word of pool_*.wgsl
// const     TILE_CLASS, PARTS_PER_ITEM (workgroups that share a work item), and those of a cache and of an attention

struct AttentionParams {
    query_factor: f32,  // of q: the scale, times log2(e), for scores are powers of two; with a soft cap, the scale over the cap
    score_factor: f32,  // the soft cap times log2(e)
    window: u32,        // keys that a query sees, its own included; if WINDOW
    first_kv_head: u32, // of this head shard
    num_kv_heads: u32,  // in this head shard
    num_q_heads: u32,   // of the layer
    first_item: u32,    // of this dispatch
    q_base: u32,        // units before the first query: words, or vec4s of elements
    q_stride: u32,      // units from one query to the next
    out_base: u32,      // the same of the outputs
    out_stride: u32,
    lse_base: u32,      // words before the first log-sum-exp
    padding_0: u32,
    padding_1: u32,
    padding_2: u32,
    padding_3: u32,
}

@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(2) @binding(0) var<uniform> params: AttentionParams;
@group(2) @binding(2) var<storage, read_write> out: array<OutUnit>;
@group(2) @binding(3) var<storage, read_write> lse: array<u32>;
@group(2) @binding(4) var<storage, read_write> partials: array<vec4<f32>>;
@group(2) @binding(5) var<uniform> head_terms: array<vec4<f32>, HEAD_TERMS>;

// The query that stands at place t of a tile; the last one is repeated.
fn tile_query(header: StepHeader, tile: QueryTile, t: u32) -> u32 {
    return step[header.members_base + tile.first_member + min(t, tile.num_members - 1u)];
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
fn k_scale(kv_row: u32, u: u32) -> f32 {
    if (SCALE_PER_UNIT) { return bitcast<f32>(k_word(kv_row * K_ROW_UNITS + K_UNITS + u / 4u, u % 4u)); }
    return bitcast<f32>(k_word(kv_row * K_ROW_UNITS + K_UNITS, 0u));
}

fn v_scale(kv_row: u32, u: u32) -> f32 {
    if (SCALE_PER_UNIT) { return bitcast<f32>(v_word(kv_row * V_ROW_UNITS + V_UNITS + u / 4u, u % 4u)); }
    return bitcast<f32>(v_word(kv_row * V_ROW_UNITS + V_UNITS, 0u));
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

// The score of a key: scaled as K is stored, capped and biased.
fn finish_score(score: f32, scale: f32, head: u32, distance: i32) -> f32 {
    var x = score;
    if (SCALE_PER_ROW) { x *= scale; }
    // Beyond 15 tanh is 1, and beyond 88 WGSL leaves it open; what clamp makes of NaN is open too.
    if (SOFT_CAP) { x = select(tanh(clamp(x, -15.0, 15.0)) * params.score_factor, x, is_nan(x)); }
    if (ALIBI) { x += slope(head) * f32(distance); }
    return x;
}

// The last tile whose work items start at or before this one.
fn tile_of_item(tiles: TileClass, item: u32) -> u32 {
    var low = 0u;
    var high = tiles.num_tiles;
    while (high - low > 1u) {
        let middle = low + (high - low) / 2u;
        if (query_tile(tiles, middle).item_start <= item) { low = middle; } else { high = middle; }
    }
    return low;
}

// The first split of which a query of the tile sees a key, if its window shows it any.
fn first_seen_split(header: StepHeader, tile: QueryTile) -> u32 {
    var low = tile.key_end;
    for (var t = 0u; t < tile.num_members; t++) {
        let position = query_position(header, tile_query(header, tile, t));
        low = min(low, visible_keys(position, params.window, tile.key_begin, tile.key_end).x);
    }
    return low / tile.split_tokens;
}

// What one workgroup serves: a part of a work item.
struct Item {
    exists: bool,
    tile: QueryTile,
    split: u32,
    kv_head: u32, // of the head shard
    part: u32,    // of the tile's query heads, or of its queries and their heads
}

// Work items number (split of a query tile, KV head, part), the last fastest. A window hides most splits: its items
// number (query tile, KV head, part), and the workgroups in z the splits from the first that is seen. Splits of one
// item are neighbours in the grid, so that items that see fewer splits leave no part of the device idle.
fn find_item(header: StepHeader, group: vec3<u32>, groups: vec3<u32>) -> Item {
    let splits = select(1u, groups.z, WINDOW);
    let linear = linear_index(group, groups);
    let item = params.first_item + linear / splits;
    let part = item % PARTS_PER_ITEM;
    let kv_head = (item / PARTS_PER_ITEM) % params.num_kv_heads;
    let idx = item / (PARTS_PER_ITEM * params.num_kv_heads);

    let tiles = tile_class(TILE_CLASS);
    var tile_idx = idx;
    if (!WINDOW) { tile_idx = tile_of_item(tiles, idx); }
    let tile = query_tile(tiles, min(tile_idx, tiles.num_tiles - 1u));
    var split = tile.key_begin / tile.split_tokens + idx - tile.item_start;
    var exists = idx < tiles.num_items;
    if (WINDOW) {
        split = first_seen_split(header, tile) + linear % splits;
        // A sequence without keys has one split.
        exists = idx < tiles.num_tiles && (split == 0u || split * tile.split_tokens < tile.key_end);
    }
    return Item(exists, tile, split, kv_head, part);
}
