// kv_bf16_store.wgsl — the code of an element in bf16, rounded to nearest even.
// Twin      src/formats/code.rs: encode_bf16

fn kv_code(x: u32, scale: u32) -> u32 {
    let number = (x + 0x7fffu + ((x >> 16u) & 1u)) >> 16u;
    return select(number, (x >> 16u) | 0x40u, (x & 0x7fffffffu) > 0x7f800000u);
}
