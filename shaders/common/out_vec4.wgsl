// out_vec4.wgsl — outputs whose heads, places and strides are multiples of four elements. Same names as out_words.wgsl.
// Needs     out: array<OutUnit> of the kernel; io_*.wgsl

alias OutUnit = IoVec4;
const OUT_UNIT: u32 = 4u; // elements

// Elements d .. d + 4 of an output that begins at unit `base`.
fn write_output(base: u32, d: u32, value: vec4<f32>) {
    if (d < V_HEAD_DIM) { out[base + d / 4u] = io_store_vec4(value); }
}
