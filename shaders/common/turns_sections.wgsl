// turns_sections.wgsl — where the rotations of a token's pairs lie: it has three positions (time, height, width), and every
// pair belongs to one of them. Same functions as turns_one.wgsl.
// Twin      src/gpu/value.rs: MropeSections::axis      Source  M-RoPE of Qwen2-VL (Wang et al. 2024); Qwen3-VL deals the pairs
// const     PAIRS, from rotary.wgsl; SECTION_T, SECTION_H, SECTION_W (pairs of each), SECTIONS_DEALT (whether the pairs go to
//           the three in turn, as far as theirs reach, or run after run), prepended by the host

var<private> turns: vec3<u32>;

// The three positions follow the last rows. The host checks that the table of rotations covers them.
fn begin_turns(header: StepHeader, token: u32) {
    let at = header.last_rows_base + header.num_last_rows + 3u * token;
    turns = vec3<u32>(step[at], step[at + 1u], step[at + 2u]) * PAIRS;
}

fn turn_of(pair: u32) -> u32 {
    var is_height = pair >= SECTION_T && pair < SECTION_T + SECTION_H;
    var is_width = pair >= SECTION_T + SECTION_H;
    if (SECTIONS_DEALT) {
        is_height = pair % 3u == 1u && pair < 3u * SECTION_H;
        is_width = pair % 3u == 2u && pair < 3u * SECTION_W;
    }
    return select(select(turns.x, turns.y, is_height), turns.z, is_width) + pair;
}
