// io_f16.wgsl — queries and outputs in f16, packed in pairs: the heads are of even width. Same functions as io_f32.wgsl.
// `unpack2x16float` is core WGSL, so no device needs `shader-f16`; `pack2x16float` may round either way and is not used.
// Needs     kv_code(x, scale) of kv_f16_store.wgsl, where io_word is called
// const     IO_PER_WORD (elements of a word), prepended by the host

alias IoWord = u32;

fn io_element(word: IoWord, idx: u32) -> f32 {
    return unpack2x16float(word)[idx % 2u];
}

// The bits of an element in f32, of a word read as bits.
fn io_bits(word: u32, idx: u32) -> u32 {
    return bitcast<u32>(unpack2x16float(word)[idx % 2u]);
}

// The word of IO_PER_WORD elements: the first, and the last of them.
fn io_word(first: f32, last: f32) -> IoWord {
    return kv_code(bitcast<u32>(first), 0u) | (kv_code(bitcast<u32>(last), 0u) << 16u);
}

alias IoVec4 = vec2<u32>;

fn io_read_vec4(stored: IoVec4) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(stored.x), unpack2x16float(stored.y));
}

fn io_store_vec4(value: vec4<f32>) -> IoVec4 {
    return IoVec4(io_word(value.x, value.y), io_word(value.z, value.w));
}
