// source_rows.wgsl — the elements that kv_append.wgsl stores: K normed, or turned by the position of its token, or both; V as it
// was given. Same functions as source_plain.wgsl.
// Needs     begin_norm(begin), begin_turns(header, token) and row_bits(d), from norm_*.wgsl, turns_*.wgsl and rotary*.wgsl;
//           v_element(at), from the kernel

var<private> k_begin: u32; // of the token that is stored

fn begin_token(header: StepHeader, token: u32, begin: u32) {
    k_begin = begin;
    begin_norm(begin);
    begin_turns(header, token);
}

fn source_bits(is_v: bool, at: u32) -> u32 {
    if (is_v) { return v_element(at); }
    return row_bits(at - k_begin);
}
