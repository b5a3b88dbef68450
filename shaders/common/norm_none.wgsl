// norm_none.wgsl — the elements of a row as they were given. Same functions as norm_rms.wgsl.
// Needs     row_element(at), the f32 bits of an element, from the kernel

var<private> row_begin: u32;

fn begin_norm(begin: u32) {
    row_begin = begin;
}

fn normed(d: u32) -> u32 {
    return row_element(row_begin + d);
}
