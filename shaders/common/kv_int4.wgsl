// kv_int4.wgsl — storage format: a 16-byte unit holds 32 elements, a code + 8 in a nibble; a scale per unit.

// Elements 4·part .. 4·part + 4 of a unit, before they are scaled.
fn kv_load(unit: vec4<u32>, part: u32) -> vec4<f32> {
    let half = unit[part / 2u] >> (16u * (part % 2u));
    let nibbles = (vec4<u32>(half) >> vec4<u32>(0u, 4u, 8u, 12u)) & vec4<u32>(0xfu);
    return vec4<f32>(nibbles) - vec4<f32>(8.0);
}
