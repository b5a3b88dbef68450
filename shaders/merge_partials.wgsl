// merge_partials.wgsl — combines the partials of every query that sees more than one split.
// Dispatch  one workgroup per (merge, query head), folded into x and y; other queries have been written already
// Shapes    row-major
//   step        header, positions, merges                            see common/step.wgsl
//   partials    [num_partials, num_q_heads, V_HEAD_DIM + 2]    f32   acc[V_HEAD_DIM], max_score (log2), sum_exp
//   out         [num_queries, num_q_heads, V_HEAD_DIM]         f32, or f16 in pairs
//   lse         [num_queries, num_q_heads]                     u32   bits of f32, natural logarithm; if WRITE_LSE
//   head_terms  [num_q_heads]                                  vec4  the sink, times log2(e), if used
// Twin      src/reference.rs (of the whole query)      Source  Flash-Decoding (Dao et al. 2023)
// const     V_HEAD_DIM, HEAD_TERMS, IO_*, CAUSAL, WINDOW, SINKS, WRITE_LSE, prepended by the host

const MERGE_LANES: u32 = 32u;

struct MergeParams {
    num_q_heads: u32,
    window: u32,
    padding_0: u32,
    padding_1: u32,
}

@group(1) @binding(0) var<uniform> params: MergeParams;
@group(1) @binding(1) var<storage, read> partials: array<f32>;
@group(1) @binding(2) var<storage, read_write> out: array<IoWord>;
@group(1) @binding(3) var<storage, read_write> lse: array<u32>;
@group(1) @binding(4) var<uniform> head_terms: array<vec4<f32>, HEAD_TERMS>;

// Where the partial of a split begins, for one head.
fn partial_at(merge: Merge, split: u32, head: u32) -> u32 {
    var partial = merge.own_partial + (split - merge.shared_splits) * merge.own_stride;
    if (split < merge.shared_splits) { partial = merge.shared_partial + split * merge.shared_stride; }
    return (partial * params.num_q_heads + head) * (V_HEAD_DIM + 2u);
}

fn partial_state(partial: u32) -> SoftmaxState {
    return SoftmaxState(partials[partial + V_HEAD_DIM], partials[partial + V_HEAD_DIM + 1u]);
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
    let q_row = merge.query * params.num_q_heads + head;
    for (var d = lane * IO_PER_WORD; d < V_HEAD_DIM; d += MERGE_LANES * IO_PER_WORD) {
        var acc = vec2<f32>(0.0);
        for (var split = first; split < last; split++) {
            let partial = partial_at(merge, split, head);
            let weight = softmax_shrink(partial_state(partial), state.max_score);
            acc += weight * vec2<f32>(partials[partial + d], partials[partial + d + IO_PER_WORD - 1u]);
        }
        acc *= result.factor;
        out[(q_row * V_HEAD_DIM + d) / IO_PER_WORD] = io_word(acc.x, acc.y);
    }
    if (WRITE_LSE && lane == 0u) { lse[q_row] = result.lse_bits; }
}
