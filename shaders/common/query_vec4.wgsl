// query_vec4.wgsl — queries whose heads, places and strides are multiples of four elements. Same functions as
// query_words.wgsl.
// Needs     q: array<QueryUnit> of q_*.wgsl; AttentionParams; io_*.wgsl

alias QueryUnit = IoVec4;
alias QueryVec4 = IoVec4;

// The first vec4 of a query head.
fn query_base(query: u32, head: u32) -> u32 {
    return params.q_base + query * params.q_stride + head * (HEAD_DIM / 4u);
}

// vec4 i of a query head as it is stored, or the last one there is. Nothing is computed from it: the load stays in flight.
fn load_query(query: u32, head: u32, i: u32) -> QueryVec4 {
    return q[query_base(query, min(head, params.num_q_heads - 1u)) + min(i, HEAD_DIM / 4u - 1u)];
}

fn query_values(loaded: QueryVec4) -> vec4<f32> {
    return io_read_vec4(loaded);
}

// vec4 i of a query head, scaled; 0 past HEAD_DIM and past the last head.
fn query_vec4(query: u32, head: u32, i: u32) -> vec4<f32> {
    if (4u * i >= HEAD_DIM || head >= params.num_q_heads) { return vec4<f32>(0.0); }
    return io_read_vec4(q[query_base(query, head) + i]) * params.query_factor;
}
