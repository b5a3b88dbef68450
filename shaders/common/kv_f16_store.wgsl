// kv_f16_store.wgsl — the code of an element in f16, rounded to nearest even.
// With integers: `pack2x16float` may round either way, and what it makes of large numbers is left open.
// Twin      src/formats/code.rs: encode_f16

fn kv_code(x: u32, scale: u32) -> u32 {
    let magnitude = x & 0x7fffffffu;
    // From 2⁻¹⁴ on the exponent is only counted from another start; a carry into it is right.
    let rebased = magnitude - 0x38000000u;
    let normal = (rebased + 0xfffu + ((rebased >> 13u) & 1u)) >> 13u;
    // Below, a code counts steps of 2⁻²⁴; beyond a shift by 24 all becomes 0.
    let mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    let shift = min(126u - (magnitude >> 23u), 31u);
    let small = (mantissa + (1u << (shift - 1u)) - 1u + ((mantissa >> shift) & 1u)) >> shift;
    // 65,520 lies halfway between the largest f16 and the next power of two.
    let number = select(select(small, normal, magnitude >= 0x38800000u), 0x7c00u, magnitude >= 0x477ff000u);
    let nan = 0x7e00u | ((magnitude >> 13u) & 0x1ffu);
    return ((x >> 16u) & 0x8000u) | select(number, nan, magnitude > 0x7f800000u);
}
