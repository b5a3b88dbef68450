// source_plain.wgsl — the elements that kv_append.wgsl stores: as they were given. Same functions as source_rotary.wgsl.

fn begin_token(header: StepHeader, token: u32, k_begin: u32) {}

fn source_bits(is_v: bool, at: u32) -> u32 {
    return given_bits(is_v, at);
}
