// kv_bf16.wgsl — storage format: a 16-byte unit holds 8 elements, the upper halves of f32, packed in pairs.

// Elements 4·part .. 4·part + 4 of a unit.
fn kv_load(unit: vec4<u32>, part: u32) -> vec4<f32> {
    let pair = select(unit.xy, unit.zw, part == 1u);
    return bitcast<vec4<f32>>((pair.xxyy << vec4<u32>(16u, 0u, 16u, 0u)) & vec4<u32>(0xffff0000u));
}
