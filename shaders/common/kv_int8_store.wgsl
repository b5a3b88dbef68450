// kv_int8_store.wgsl — the code of an element in int8.
// Twin      src/formats/code.rs: Int8

const LAST_CODE: u32 = 127u;

fn kv_code(x: u32, scale: u32) -> u32 {
    let code = nearest_code(x, scale);
    return select(code, (~code + 1u) & 0xffu, x > 0x7fffffffu);
}
