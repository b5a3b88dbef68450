// kv_f32.wgsl — storage format: a 16-byte unit holds 4 elements, f32.

// Elements 4·part .. 4·part + 4 of a unit.
fn kv_load(unit: vec4<u32>, part: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(unit);
}
