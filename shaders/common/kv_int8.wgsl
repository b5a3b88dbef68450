// kv_int8.wgsl — storage format: a 16-byte unit holds 16 elements, bytes in two's complement; a scale per row.

// Elements 4·part .. 4·part + 4 of a unit, before they are scaled.
fn kv_load(unit: vec4<u32>, part: u32) -> vec4<f32> {
    // Each byte to the top of a word, and down again with its sign.
    let raised = vec4<u32>(unit[part]) << vec4<u32>(24u, 16u, 8u, 0u);
    return vec4<f32>(bitcast<vec4<i32>>(raised) >> vec4<u32>(24u));
}
