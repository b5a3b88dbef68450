// pool_u64.wgsl — the pool as attention reads it: 16-byte units, in words of 64 bits. Same functions as pool_u32.wgsl.
// For Mesa's lavapipe, which loads lane by lane and word by word: half the words take half the time. Needs SHADER_INT64.

@group(1) @binding(0) var<storage, read> k_pool: array<vec2<u64>>;
@group(1) @binding(1) var<storage, read> v_pool: array<vec2<u64>>;

fn pool_words(unit: vec2<u64>) -> vec4<u32> {
    return vec4<u32>(u32(unit.x), u32(unit.x >> 32u), u32(unit.y), u32(unit.y >> 32u));
}

fn k_unit(at: u32) -> vec4<u32> {
    return pool_words(k_pool[at]);
}

fn v_unit(at: u32) -> vec4<u32> {
    return pool_words(v_pool[at]);
}

// One word of a unit.
fn k_word(at: u32, word: u32) -> u32 {
    return u32(k_pool[at][word / 2u] >> (32u * (word % 2u)));
}

fn v_word(at: u32, word: u32) -> u32 {
    return u32(v_pool[at][word / 2u] >> (32u * (word % 2u)));
}
