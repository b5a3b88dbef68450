// softmax.wgsl — the running softmax of all kernels: begin, merge, finish.
// Scores are powers of two: a state stands for Σ 2^score = sum_exp · 2^max_score over the keys that it has seen.
// Twin      src/reference/merge.rs      Source  online softmax (Milakov & Gimelshein 2018); state.cuh of FlashInfer
// const     SINKS, prepended by the host

const LN_2: f32 = 0.6931471805599453;
const LOWEST: f32 = -3.4028234e38;   // max_score of no key: finite, because WGSL may assume that there is no infinity
const NO_KEY_LSE: u32 = 0xff800000u; // the bits of −∞, for which WGSL has no constant

struct SoftmaxState {
    max_score: f32,
    sum_exp: f32, // 0 until a key is seen
}

fn softmax_init() -> SoftmaxState {
    return SoftmaxState(LOWEST, 0.0);
}

// The factor of what was accumulated under a state's maximum once the maximum is `max_score`.
fn softmax_shrink(state: SoftmaxState, max_score: f32) -> f32 {
    return exp2(state.max_score - max_score);
}

// The same state under a maximum that is as high or higher.
fn softmax_raise(state: SoftmaxState, max_score: f32) -> SoftmaxState {
    return SoftmaxState(max_score, state.sum_exp * softmax_shrink(state, max_score));
}

fn softmax_merge(a: SoftmaxState, b: SoftmaxState) -> SoftmaxState {
    let max_score = max(a.max_score, b.max_score);
    return SoftmaxState(max_score, softmax_raise(a, max_score).sum_exp + softmax_raise(b, max_score).sum_exp);
}

struct SoftmaxResult {
    factor: f32,   // of the values accumulated under the state's maximum
    lse_bits: u32, // of the log-sum-exp: f32, natural logarithm
}

// A sink is a key without a value: `sink_log2e` joins the denominator if SINKS is set. A row without a key gives zeros and
// −∞, sink or no sink.
fn softmax_finish(state: SoftmaxState, sink_log2e: f32) -> SoftmaxResult {
    if (state.sum_exp == 0.0) { return SoftmaxResult(0.0, NO_KEY_LSE); }
    var whole = state;
    var shrink = 1.0;
    if (SINKS) {
        whole = softmax_merge(state, SoftmaxState(sink_log2e, 1.0));
        shrink = softmax_shrink(state, whole.max_score);
    }
    return SoftmaxResult(shrink / whole.sum_exp, bitcast<u32>((whole.max_score + log2(whole.sum_exp)) * LN_2));
}
