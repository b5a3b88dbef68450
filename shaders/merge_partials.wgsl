// merge_partials.wgsl — combines the splits of every row that has more than one, or that shares its first ones.
// Dispatch  one workgroup per (merge, query head), folded into x and y; other rows have been written already
// Shapes    row-major
//   step        header, positions, merges                            see common/step.wgsl
//   partials    [records, num_q_heads, V_HEAD_DIM + 2]         f32   acc[V_HEAD_DIM], top (log2), sum
//   out         [num_rows, num_q_heads, V_HEAD_DIM]            f32, or f16 in pairs
//   lse         [num_rows, num_q_heads]                        u32   bits of f32, natural logarithm; if WRITE_LSE
//   head_terms  [num_q_heads]                                  vec4  the sink, times log2(e), if used
// Twin      src/reference.rs (of the whole row)      Source  Flash-Decoding (Dao et al. 2023)
// const     V_HEAD_DIM, HEAD_TERMS, IO_*, CAUSAL, WINDOW, SINKS, WRITE_LSE, put in front by the host

const MERGE_LANES: u32 = 32u;
const RECORD: u32 = V_HEAD_DIM + 2u;

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

// The record of a split of a row, for one head.
fn record_at(merge: Merge, split: u32, head: u32) -> u32 {
    var record = merge.own_record + (split - merge.shared_splits) * merge.own_stride;
    if (split < merge.shared_splits) { record = merge.shared_record + split * merge.shared_stride; }
    return (record * params.num_q_heads + head) * RECORD;
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
    let seen = visible_keys(row_position(header, merge.row), params.window, 0u, merge.kv_len);
    let first = seen.x / merge.split_tokens;
    let last = select(first, (seen.y + merge.split_tokens - 1u) / merge.split_tokens, seen.x < seen.y);

    // A split that the row sees has left a record; of others there may be none.
    var top = LOWEST;
    for (var split = first; split < last; split++) {
        top = max(top, partials[record_at(merge, split, head) + V_HEAD_DIM]);
    }
    var sum = 0.0;
    for (var split = first; split < last; split++) {
        let record = record_at(merge, split, head);
        sum += exp2(partials[record + V_HEAD_DIM] - top) * partials[record + V_HEAD_DIM + 1u];
    }
    var sink = 0.0;
    if (SINKS) { sink = head_terms[min(head, HEAD_TERMS - 1u)].y; }
    let finish = finish_softmax(top, sum, sink);
    let row = merge.row * params.num_q_heads + head;
    for (var d = lane * IO_PER_WORD; d < V_HEAD_DIM; d += MERGE_LANES * IO_PER_WORD) {
        var acc = vec2<f32>(0.0);
        for (var split = first; split < last; split++) {
            let record = record_at(merge, split, head);
            let weight = exp2(partials[record + V_HEAD_DIM] - top);
            acc += weight * vec2<f32>(partials[record + d], partials[record + d + IO_PER_WORD - 1u]);
        }
        acc *= finish.factor;
        out[(row * V_HEAD_DIM + d) / IO_PER_WORD] = io_word(acc.x, acc.y);
    }
    if (WRITE_LSE && lane == 0u) { lse[row] = finish.lse_bits; }
}
