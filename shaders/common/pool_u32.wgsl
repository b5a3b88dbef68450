// pool_u32.wgsl — the pool as attention reads it: 16-byte units, in words of 32 bits. Same functions as pool_u64.wgsl.

@group(1) @binding(0) var<storage, read> k_pool: array<vec4<u32>>;
@group(1) @binding(1) var<storage, read> v_pool: array<vec4<u32>>;

fn k_unit(at: u32) -> vec4<u32> {
    return k_pool[at];
}

fn v_unit(at: u32) -> vec4<u32> {
    return v_pool[at];
}

// One word of a unit.
fn k_word(at: u32, word: u32) -> u32 {
    return k_pool[at][word];
}

fn v_word(at: u32, word: u32) -> u32 {
    return v_pool[at][word];
}
