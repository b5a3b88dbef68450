// merge_partials.wgsl — combines the splits of every row that has more than one.
// Dispatch  one workgroup per (row, query head), folded into x and y; rows with one split have been written already
// Shapes    row-major
//   step      header and rows [num_rows]                        see common/step.wgsl
//   partials  [num_partials, num_q_heads, HEAD_DIM + 2]         f32   acc[HEAD_DIM], top (log2), sum
//   out       [num_rows, num_q_heads, HEAD_DIM]                 f32
//   lse       [num_rows, num_q_heads]                           f32 bits, natural logarithm; written if WRITE_LSE
// Twin      src/reference.rs: attend (of the whole row)      Source  Flash-Decoding (Dao et al. 2023)
// const     HEAD_DIM, WRITE_LSE, put in front by the host

const MERGE_LANES: u32 = 32u;
const RECORD: u32 = HEAD_DIM + 2u;

struct MergeParams {
    num_q_heads: u32,
    padding_0: u32,
    padding_1: u32,
    padding_2: u32,
}

@group(1) @binding(0) var<uniform> params: MergeParams;
@group(1) @binding(1) var<storage, read> partials: array<f32>;
@group(1) @binding(2) var<storage, read_write> out: array<f32>;
@group(1) @binding(3) var<storage, read_write> lse: array<u32>;

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
    let row_idx = item / params.num_q_heads;
    if (row_idx >= header.num_rows) { return; }
    let row = step_row(header, row_idx);
    let num_splits = (row.kv_len + header.split_tokens - 1u) / header.split_tokens;
    if (num_splits <= 1u) { return; }
    let first = (row.partial_start * params.num_q_heads + head) * RECORD;
    let stride = params.num_q_heads * RECORD;

    // Splits of a row are never empty, so every record has a finite top.
    var top = partials[first + HEAD_DIM];
    for (var split = 1u; split < num_splits; split++) {
        top = max(top, partials[first + split * stride + HEAD_DIM]);
    }
    for (var d = lane; d < HEAD_DIM; d += MERGE_LANES) {
        var sum = 0.0;
        var acc = 0.0;
        for (var split = 0u; split < num_splits; split++) {
            let record = first + split * stride;
            let weight = exp2(partials[record + HEAD_DIM] - top);
            sum += weight * partials[record + HEAD_DIM + 1u];
            acc += weight * partials[record + d];
        }
        out[(row_idx * params.num_q_heads + head) * HEAD_DIM + d] = select(acc / sum, 0.0, sum == 0.0);
        if (WRITE_LSE && d == 0u) {
            lse[row_idx * params.num_q_heads + head] = lse_bits(top, sum);
        }
    }
}
