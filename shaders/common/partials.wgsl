// partials.wgsl — what a split leaves of a query row, in units of vec4<f32>: what was accumulated, then its softmax state.
// Shapes    partials  [num_partials, num_q_heads, PARTIAL_VEC4S]  vec4<f32>  acc[V_HEAD_DIM], filled up; (max_score, sum_exp, 0, 0)
// Twin      src/gpu/ops/attention.rs: Attention::partials

const PARTIAL_VEC4S: u32 = (V_HEAD_DIM + 3u) / 4u + 1u;

// The first vec4 of a partial.
fn partial_base(partial: u32, num_q_heads: u32, head: u32) -> u32 {
    return (partial * num_q_heads + head) * PARTIAL_VEC4S;
}
