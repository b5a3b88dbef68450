// softmax.wgsl — the end of a running softmax whose scores are powers of two.

const LN_2: f32 = 0.6931471805599453;

// Bits of ln(sum · 2^top); −∞ for a row without a key. Bits, because WGSL has no constant for an infinity.
fn lse_bits(top: f32, sum: f32) -> u32 {
    if (sum == 0.0) { return 0xff800000u; }
    return bitcast<u32>((top + log2(sum)) * LN_2);
}
