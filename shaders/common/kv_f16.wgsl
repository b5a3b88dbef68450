// kv_f16.wgsl — storage format: a 16-byte unit holds 8 elements, f16 packed in pairs.
// `pack2x16float` and `unpack2x16float` are core WGSL, so no device needs `shader-f16`.

// Elements 4·part .. 4·part + 4 of a unit.
fn kv_load(unit: vec4<u32>, part: u32) -> vec4<f32> {
    let pair = select(unit.xy, unit.zw, part == 1u);
    return vec4<f32>(unpack2x16float(pair.x), unpack2x16float(pair.y));
}

// A unit from its elements: `low` 0..4, `high` 4..8.
fn kv_store(low: vec4<f32>, high: vec4<f32>) -> vec4<u32> {
    return vec4<u32>(
        pack2x16float(low.xy), pack2x16float(low.zw),
        pack2x16float(high.xy), pack2x16float(high.zw),
    );
}
