// kv_f16.wgsl — storage format: a 16-byte unit holds 8 elements, f16 packed in pairs.
// `unpack2x16float` is core WGSL, so no device needs `shader-f16`.

// Elements 4·part .. 4·part + 4 of a unit.
fn kv_load(unit: vec4<u32>, part: u32) -> vec4<f32> {
    let pair = select(unit.xy, unit.zw, part == 1u);
    return vec4<f32>(unpack2x16float(pair.x), unpack2x16float(pair.y));
}
