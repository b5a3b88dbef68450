// pool_export.wgsl — copies blocks of a head shard of K or V into another engine's pool, in its elements.
// Dispatch  one invocation per (pair of blocks, KV head of the head shard, token of a block, word of their row), folded
//           into x and y
// Shapes    row-major
//   pairs          [num_pairs, 2]                                       u32   their block, our block
//   pool           [num_blocks, num_kv_heads, BLOCK_SIZE, K_ROW_UNITS]  16-byte units in the storage format; K's, or V's
//   external_pool  see common/external.wgsl                             words of f32, or of two f16 or bf16
// Where rows are no whole words, two of them share one, perhaps with another head shard or with a block outside the pairs:
// each half is then written by itself.
// Twin      src/formats/row.rs: decode_row of ours, encode_row of theirs
// const     those of common/external.wgsl, K_ROW_UNITS, K_UNITS, PARTS, SCALE_PER_ROW and SCALE_PER_UNIT, prepended by
//           the host; kv_code is theirs

const EXTERNAL_BITS: u32 = 32u / EXTERNAL_PER_WORD;
const EXTERNAL_MASK: u32 = 0xffffffffu >> (32u - EXTERNAL_BITS);
// Rows that begin inside a word touch as many words as others.
const ROW_WORDS: u32 = (HEAD_DIM + EXTERNAL_PER_WORD - 1u) / EXTERNAL_PER_WORD;

@group(0) @binding(2) var<storage, read> pool: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> external_pool: array<atomic<u32>>;

// Bits of element d of the row whose first unit is `base`.
fn element_bits(base: u32, d: u32) -> u32 {
    let unit = d / (4u * PARTS);
    let number = kv_load(pool[base + unit], (d / 4u) % PARTS)[d % 4u];
    if (SCALE_PER_ROW) { return bitcast<u32>(number * bitcast<f32>(pool[base + K_UNITS].x)); }
    if (SCALE_PER_UNIT) { return bitcast<u32>(number * bitcast<f32>(pool[base + K_UNITS + unit / 4u][unit % 4u])); }
    return bitcast<u32>(number);
}

@compute @workgroup_size(ITEM_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // locate
    let item = linear_index(group, groups) * ITEM_LANES + lane;
    let kv_row = item / ROW_WORDS;
    if (kv_row >= num_kv_rows()) { return; }
    let at = place(kv_row);
    let word = at.theirs / EXTERNAL_PER_WORD + item % ROW_WORDS;

    // convert those elements of the word that are this row's
    var bits = 0u;
    var mask = 0u;
    for (var i = 0u; i < EXTERNAL_PER_WORD; i++) {
        let d = word * EXTERNAL_PER_WORD + i - at.theirs; // wraps in front of the row
        if (d < HEAD_DIM) {
            bits |= kv_code(element_bits(at.ours * K_ROW_UNITS, d), 0u) << (i * EXTERNAL_BITS);
            mask |= EXTERNAL_MASK << (i * EXTERNAL_BITS);
        }
    }

    // write
    if (mask == 0xffffffffu) {
        atomicStore(&external_pool[word], bits);
    } else {
        atomicAnd(&external_pool[word], ~mask);
        atomicOr(&external_pool[word], bits);
    }
}
