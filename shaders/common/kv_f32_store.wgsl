// kv_f32_store.wgsl — the code of an element in f32: its bits.
// Twin      src/formats/code.rs: encode

fn kv_code(x: u32, scale: u32) -> u32 {
    return x;
}
