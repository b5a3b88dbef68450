// kv_whole_store.wgsl — codes that stand for whole numbers.
// Twin      src/formats/code.rs: Codes

fn code_at_or_below(number: f32) -> u32 {
    return u32(number);
}

fn midpoint(code: u32) -> f32 {
    return f32(code) + 0.5;
}
