// softmax.wgsl — the end of a running softmax whose scores are powers of two: ln Σ e^score is in `top` and `sum`, as
// sum · 2^top.

const LN_2: f32 = 0.6931471805599453;
const LOWEST: f32 = -3.4028234e38; // start of the running top: finite, for WGSL may assume that there is no infinity

// The sum of a finished row: what its weighted values are divided by, and the log-sum-exp.
struct Finish {
    factor: f32, // of the weighted values
    lse_bits: u32,
}

// `sink_log2e` is a logit that joins the denominator, in no key's place; it counts if SINKS is set. A row without a key
// gives zeros and −∞, sink or no sink. Bits, because WGSL has no constant for an infinity.
fn finish_softmax(top: f32, sum: f32, sink_log2e: f32) -> Finish {
    if (sum == 0.0) { return Finish(0.0, 0xff800000u); }
    if (!SINKS) { return Finish(1.0 / sum, bitcast<u32>((top + log2(sum)) * LN_2)); }
    let higher = max(top, sink_log2e);
    let shrink = exp2(top - higher);
    let whole = sum * shrink + exp2(sink_log2e - higher);
    return Finish(shrink / whole, bitcast<u32>((higher + log2(whole)) * LN_2));
}
