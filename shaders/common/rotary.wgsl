// rotary.wgsl — rotary position embedding: the first ROTARY_DIMS elements of a head form pairs, and each pair is turned by
// an angle that is proportional to a position. Same functions as rotary_none.wgsl.
// Needs     normed(d) from norm_none.wgsl or norm_rms.wgsl; turn_of(pair) from turns_one.wgsl or turns_sections.wgsl
//           rotations [max_seq_len, ROTARY_DIMS / 2] vec2<f32>: cosine and sine of every angle, times what the model scales
//           them by. The host computes them, for a device's own are useless at angles of many turns
// Twin      src/reference/rotary.rs: rotate      Source  RoFormer (Su et al. 2021)
// const     INTERLEAVED, ROTARY_DIMS, ROW_GROUP, prepended by the host

@group(ROW_GROUP) @binding(3) var<storage, read> rotations: array<vec2<f32>>;

const PAIRS: u32 = ROTARY_DIMS / 2u;

// The other element of the pair to which element `d` belongs.
fn partner(d: u32) -> u32 {
    if (INTERLEAVED) { return d ^ 1u; }
    return select(d + PAIRS, d - PAIRS, d >= PAIRS);
}

// Element `d` of the row that was begun, in bits, after the turn of its pair.
fn row_bits(d: u32) -> u32 {
    if (d >= ROTARY_DIMS) { return normed(d); }
    let is_second = select(d >= PAIRS, d % 2u == 1u, INTERLEAVED);
    let turn = rotations[turn_of(select(d % PAIRS, d / 2u, INTERLEAVED))];
    let across = bitcast<f32>(normed(partner(d))) * turn.y;
    return bitcast<u32>(bitcast<f32>(normed(d)) * turn.x + select(-across, across, is_second));
}
