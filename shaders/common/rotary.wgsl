// rotary.wgsl — rotary position embedding: the first ROTARY_DIMS elements of a head form pairs, and each pair is turned by
// an angle that is proportional to the position.
// Needs     rotations [max_seq_len, ROTARY_DIMS / 2] vec2<f32>, from who binds it: cosine and sine of every angle. The
//           host computes them, for a device's own are useless at angles of many turns
// Twin      src/reference/rotary.rs: rotate      Source  RoFormer (Su et al. 2021)
// const     INTERLEAVED, ROTARY_DIMS, prepended by the host

const PAIRS: u32 = ROTARY_DIMS / 2u;

// Where the rotations of a position begin. A query from before the first token is treated as if it were the first.
fn first_turn(position: i32) -> u32 {
    return u32(max(position, 0)) * PAIRS;
}

// The other element of the pair to which element `d` belongs.
fn partner(d: u32) -> u32 {
    if (INTERLEAVED) { return d ^ 1u; }
    return select(d + PAIRS, d - PAIRS, d >= PAIRS);
}

// Element `d`, in bits, after the turn of its pair.
fn turned(turns: u32, d: u32, bits: u32, partner_bits: u32) -> u32 {
    let is_second = select(d >= PAIRS, d % 2u == 1u, INTERLEAVED);
    let turn = rotations[turns + select(d % PAIRS, d / 2u, INTERLEAVED)];
    let across = bitcast<f32>(partner_bits) * turn.y;
    return bitcast<u32>(bitcast<f32>(bits) * turn.x + select(-across, across, is_second));
}
