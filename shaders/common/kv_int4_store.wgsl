// kv_int4_store.wgsl — the code of an element in int4, moved up by 8.
// Twin      src/formats/code.rs: Int4

const LAST_CODE: u32 = 7u;

fn kv_code(x: u32, scale: u32) -> u32 {
    let code = nearest_code(x, scale);
    return select(8u + code, 8u - code, x > 0x7fffffffu);
}
