// kv_fp8_store.wgsl — the code of an element in fp8, e4m3 without infinities.
// Twin      src/formats/code.rs: Fp8

const LAST_CODE: u32 = 0x7eu; // 448; the next is NaN

fn code_at_or_below(number: f32) -> u32 {
    // Below 2⁻⁶ codes are multiples of 2⁻⁹.
    if (number < 0.015625) { return u32(number * 512.0); }
    return (bitcast<u32>(number) - 0x3c000000u) >> 20u;
}

fn midpoint(code: u32) -> f32 {
    let twice = 2u * code + 1u;
    if (code < 8u) { return f32(twice) * 0.0009765625; }
    return bitcast<f32>((twice << 19u) + 0x3c000000u);
}

// A code of 0 has no sign.
fn kv_code(x: u32, scale: u32) -> u32 {
    let code = nearest_code(x, scale);
    return select(code, code | 0x80u, x > 0x7fffffffu && code > 0u);
}
