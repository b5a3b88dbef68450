// io_f32.wgsl — queries and outputs in f32. Same functions as io_f16.wgsl.
// const     IO_PER_WORD (elements of a word), prepended by the host

alias IoWord = f32;

fn io_element(word: IoWord, idx: u32) -> f32 {
    return word;
}

// The bits of an element in f32, of a word read as bits.
fn io_bits(word: u32, idx: u32) -> u32 {
    return word;
}

// The word of IO_PER_WORD elements: the first, and the last of them.
fn io_word(first: f32, last: f32) -> IoWord {
    return first;
}

alias IoVec4 = vec4<f32>;

fn io_read_vec4(stored: IoVec4) -> vec4<f32> {
    return stored;
}

fn io_store_vec4(value: vec4<f32>) -> IoVec4 {
    return value;
}
