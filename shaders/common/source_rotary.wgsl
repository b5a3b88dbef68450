// source_rotary.wgsl — the elements that kv_append.wgsl stores: K turned by the position of its token, V as it was given.
// Same functions as source_plain.wgsl.
// Needs     given_bits(is_v, at), from the kernel

@group(2) @binding(3) var<storage, read> rotations: array<vec2<f32>>;

var<private> turns: u32;       // of the token that is stored
var<private> first_given: u32; // element of its K

fn begin_token(header: StepHeader, token: u32, k_begin: u32) {
    first_given = k_begin;
    turns = first_turn(query_position(header, token));
}

fn source_bits(is_v: bool, at: u32) -> u32 {
    let d = at - first_given;
    if (is_v || d >= ROTARY_DIMS) { return given_bits(is_v, at); }
    return turned(turns, d, given_bits(false, at), given_bits(false, at - d + partner(d)));
}
