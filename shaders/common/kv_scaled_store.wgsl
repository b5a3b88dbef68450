// kv_scaled_store.wgsl — the choice of a code where there are scales.
// Needs     LAST_CODE from kv_<format>_store.wgsl; code_at_or_below(number) and midpoint(code) from there, or from
//           kv_whole_store.wgsl
// Twin      src/formats/code.rs: nearest_code

// The code of the magnitude that is nearest to an element; of two, the even one.
//
// A quotient is not exact, so it only finds a code at or next to the right one: at a number that a code stands for,
// perhaps the one below. What decides is a comparison with a product, which all devices round alike.
fn nearest_code(x: u32, scale: u32) -> u32 {
    if (scale == 0u || scale >= 0x7f800000u) { return 0u; }
    let magnitude = bitcast<f32>(x & 0x7fffffffu);
    let code = min(code_at_or_below(magnitude / bitcast<f32>(scale)), LAST_CODE);
    let between = midpoint(code) * bitcast<f32>(scale);
    let up = magnitude > between || (magnitude == between && code % 2u == 1u);
    return select(code, code + 1u, code < LAST_CODE && up);
}
