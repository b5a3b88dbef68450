// merge_states.wgsl — joins attention over two sets of keys: b into a, in place.
// Dispatch  one workgroup per (token, head), folded into x and y
// Shapes    row-major; a state is one head of one token. All may lie in one buffer, so all are bound to be written
//   a_out, b_out  [num_tokens, num_heads, head_words]    f32, or f16 in pairs, as bits; tokens have a stride
//   a_lse, b_lse  [num_tokens, num_heads]                f32 as bits, natural logarithm; infinite for a state without a key
// Twin      src/reference/merge.rs: merge_states      Source  Flash-Decoding (Dao et al. 2023)
// Needs     kv_code(x, scale) from kv_<format>_store.wgsl, which rounds to nearest even on all devices
// const     CODE_BITS, IO_PER_WORD, and SINKS as false, prepended by the host

const STATE_LANES: u32 = 32u;
const LOG2_E: f32 = 1.4426950408889634;
const MAGNITUDE: u32 = 0x7fffffffu;
const INFINITY_BITS: u32 = 0x7f800000u;

struct StateParams {
    num_states: u32,
    num_heads: u32,
    head_words: u32,
    a_base: u32,     // words before the first token's output
    a_stride: u32,   // words from one token to the next
    b_base: u32,
    b_stride: u32,
    a_lse_base: u32, // words before the first log-sum-exp
    b_lse_base: u32,
    padding_0: u32,
    padding_1: u32,
    padding_2: u32,
}

@group(0) @binding(0) var<uniform> params: StateParams;
@group(0) @binding(1) var<storage, read_write> a_out: array<u32>;
@group(0) @binding(2) var<storage, read_write> a_lse: array<u32>;
@group(0) @binding(3) var<storage, read_write> b_out: array<u32>;
@group(0) @binding(4) var<storage, read_write> b_lse: array<u32>;

fn merged_word(a: u32, b: u32, weight_a: f32, weight_b: f32) -> u32 {
    var word = 0u;
    for (var place = 0u; place < IO_PER_WORD; place++) {
        let x = weight_a * bitcast<f32>(io_bits(a, place)) + weight_b * bitcast<f32>(io_bits(b, place));
        word |= kv_code(bitcast<u32>(x), 0u) << (CODE_BITS * place);
    }
    return word;
}

@compute @workgroup_size(STATE_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let state = linear_index(group, groups);
    if (state >= params.num_states) { return; }
    let lse_a = a_lse[params.a_lse_base + state];
    let lse_b = b_lse[params.b_lse_base + state];
    // All lanes have read it before one writes it.
    storageBarrier();

    // Bits, because a device may assume that there is no infinity. A state without a key does not count, whatever it
    // holds.
    let a_counts = (lse_a & MAGNITUDE) != INFINITY_BITS;
    let b_counts = (lse_b & MAGNITUDE) != INFINITY_BITS;
    if (a_counts && !b_counts) { return; }
    var lse = select(NO_KEY_LSE, lse_b, b_counts);
    var weight_a = 0.0;
    var weight_b = 0.0;
    if (a_counts) {
        // A log-sum-exp is the state of one key with that score; less the higher one, so that no digits are lost.
        let higher = max(bitcast<f32>(lse_a), bitcast<f32>(lse_b));
        let state_a = SoftmaxState((bitcast<f32>(lse_a) - higher) * LOG2_E, 1.0);
        let state_b = SoftmaxState((bitcast<f32>(lse_b) - higher) * LOG2_E, 1.0);
        let both = softmax_merge(state_a, state_b);
        let result = softmax_finish(both, 0.0);
        weight_a = softmax_shrink(state_a, both.max_score) * result.factor;
        weight_b = softmax_shrink(state_b, both.max_score) * result.factor;
        lse = bitcast<u32>(higher + bitcast<f32>(result.lse_bits));
    }
    let head = state % params.num_heads * params.head_words;
    let a_at = params.a_base + state / params.num_heads * params.a_stride + head;
    let b_at = params.b_base + state / params.num_heads * params.b_stride + head;
    for (var at = lane; at < params.head_words; at += STATE_LANES) {
        var word = select(0u, b_out[b_at + at], b_counts);
        if (a_counts) { word = merged_word(a_out[a_at + at], word, weight_a, weight_b); }
        a_out[a_at + at] = word;
    }
    if (lane == 0u) { a_lse[params.a_lse_base + state] = lse; }
}
