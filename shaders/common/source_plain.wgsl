// source_plain.wgsl — the elements that kv_append.wgsl stores: as they were given. Same functions as source_rows.wgsl.
// Needs     row_element(at) of K and v_element(at), from the kernel

fn begin_token(header: StepHeader, token: u32, begin: u32) {}

fn source_bits(is_v: bool, at: u32) -> u32 {
    if (is_v) { return v_element(at); }
    return row_element(at);
}
