// out_words.wgsl — outputs of any width, at any word. Same names as out_vec4.wgsl.
// Needs     out: array<OutUnit> of the kernel; io_*.wgsl

alias OutUnit = IoWord;
const OUT_UNIT: u32 = IO_PER_WORD; // elements

// Elements d .. d + 4 of an output that begins at unit `base`.
fn write_output(base: u32, d: u32, value: vec4<f32>) {
    for (var w = 0u; w < IO_WORDS; w++) { // unroll
        let e = w * IO_PER_WORD;
        if (d + e < V_HEAD_DIM) { out[base + (d + e) / IO_PER_WORD] = io_word(value[e], value[e + IO_PER_WORD - 1u]); }
    }
}
