// rotary_none.wgsl — rows whose pairs are not turned. Same functions as rotary.wgsl, with those of turns_one.wgsl.
// Needs     normed(d) from norm_none.wgsl or norm_rms.wgsl

fn begin_turns(header: StepHeader, token: u32) {}

fn row_bits(d: u32) -> u32 {
    return normed(d);
}
