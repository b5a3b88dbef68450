// merge_partials.wgsl — combines the partials of every query that sees more than one split.
// Dispatch  one workgroup per (merge, query head), folded into x and y; other queries have been written already
// Shapes    row-major
//   step        header, positions, merges                            see common/step.wgsl
//   partials    [num_partials, num_q_heads, PARTIAL_VEC4S]     vec4  see common/partials.wgsl
//   out         [num_queries, num_q_heads, V_HEAD_DIM]         f32, or f16 in pairs
//   lse         [num_queries, num_q_heads]                     u32   bits of f32, natural logarithm; if WRITE_LSE
//   head_terms  [num_q_heads]                                  vec4  the sink, times log2(e), if used
// Twin      src/reference.rs (of the whole query)      Source  Flash-Decoding (Dao et al. 2023)
// const     V_HEAD_DIM, HEAD_TERMS, IO_*, CAUSAL, WINDOW, SINKS, WRITE_LSE, prepended by the host

const MERGE_LANES: u32 = 32u;

struct MergeParams {
    num_q_heads: u32,
    window: u32,
    out_base: u32,   // units before the first output: words, or vec4s of elements
    out_stride: u32, // units from one query's to the next
    lse_base: u32,   // words before the first log-sum-exp
    padding_0: u32,
    padding_1: u32,
    padding_2: u32,
}

@group(1) @binding(0) var<uniform> params: MergeParams;
@group(1) @binding(1) var<storage, read> partials: array<vec4<f32>>;
@group(1) @binding(2) var<storage, read_write> out: array<OutUnit>;
@group(1) @binding(3) var<storage, read_write> lse: array<u32>;
@group(1) @binding(4) var<uniform> head_terms: array<vec4<f32>, HEAD_TERMS>;

// Where the partial of a split begins, for one head.
fn partial_at(merge: Merge, split: u32, head: u32) -> u32 {
    var partial = merge.own_partial + (split - merge.shared_splits) * merge.own_stride;
    if (split < merge.shared_splits) { partial = merge.shared_partial + split * merge.shared_stride; }
    return partial_base(partial, params.num_q_heads, head);
}

fn partial_state(partial: u32) -> SoftmaxState {
    let state = partials[partial + PARTIAL_VEC4S - 1u];
    return SoftmaxState(state.x, state.y);
}

@compute @workgroup_size(MERGE_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // locate
    let header = step_header();
    let item = linear_index(group, groups);
    let head = item % params.num_q_heads;
    let merge_idx = item / params.num_q_heads;
    if (merge_idx >= header.num_merges) { return; }
    let merge = step_merge(header, merge_idx);
    let position = query_position(header, merge.query);
    if (sees_one_split(position, params.window, merge.split_tokens)) { return; }
    let seen = visible_keys(position, params.window, 0u, merge.kv_len);
    let first = seen.x / merge.split_tokens;
    let last = select(first, (seen.y + merge.split_tokens - 1u) / merge.split_tokens, seen.x < seen.y);

    // merge: a split of which the query sees a key has left a partial; of others there may be none
    var state = softmax_init();
    for (var split = first; split < last; split++) {
        state = softmax_merge(state, partial_state(partial_at(merge, split, head)));
    }
    var sink = 0.0;
    if (SINKS) { sink = head_terms[min(head, HEAD_TERMS - 1u)].y; }
    let result = softmax_finish(state, sink);

    // write
    for (var i = lane; i < PARTIAL_VEC4S - 1u; i += MERGE_LANES) {
        var acc = vec4<f32>(0.0);
        for (var split = first; split < last; split++) {
            let partial = partial_at(merge, split, head);
            let weight = softmax_shrink(partial_state(partial), state.max_score);
            acc += weight * partials[partial + i];
        }
        write_output(output_base(merge.query, head), 4u * i, acc * result.factor);
    }
    if (WRITE_LSE && lane == 0u) { lse[lse_place(merge.query, head)] = result.lse_bits; }
}
