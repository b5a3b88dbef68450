// kv_fp8.wgsl — storage format: a 16-byte unit holds 16 elements, bytes in e4m3 without infinities; a scale per row.

// Elements 4·part .. 4·part + 4 of a unit, before they are scaled.
fn kv_load(unit: vec4<u32>, part: u32) -> vec4<f32> {
    let codes = vec4<u32>(unit[part]) >> vec4<u32>(0u, 8u, 16u, 24u);
    let magnitudes = codes & vec4<u32>(0x7fu);
    let sign = (codes & vec4<u32>(0x80u)) << vec4<u32>(24u);
    // Exponent and mantissa move to their places in an f32; the exponent counts from 7 here, from 127 there.
    let normal = (magnitudes << vec4<u32>(20u)) + vec4<u32>(0x3c000000u);
    // Below 2⁻⁶ codes are multiples of 2⁻⁹. The f32 is no denormal, so no device takes it for 0.
    let small = bitcast<vec4<u32>>(vec4<f32>(magnitudes) * 0.001953125);
    let finite = select(normal, small, magnitudes < vec4<u32>(8u));
    return bitcast<vec4<f32>>(select(finite, vec4<u32>(0x7fc00000u), magnitudes == vec4<u32>(0x7fu)) | sign);
}
