// turns_one.wgsl — where the rotations of a token's pairs lie: all of them at its position in its sequence. Same functions
// as turns_sections.wgsl.
// const     PAIRS, from rotary.wgsl

var<private> turns: u32;

// A token from before the first of its sequence is treated as if it were the first.
fn begin_turns(header: StepHeader, token: u32) {
    turns = u32(max(query_position(header, token), 0)) * PAIRS;
}

fn turn_of(pair: u32) -> u32 {
    return turns + pair;
}
