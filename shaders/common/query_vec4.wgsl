// query_vec4.wgsl — queries whose heads are a multiple of four elements wide. Same functions as query_words.wgsl.
// Needs     params.num_q_heads and params.query_factor of the kernel; io_*.wgsl

@group(2) @binding(1) var<storage, read> q: array<IoVec4>; // [num_queries, num_q_heads, HEAD_DIM / 4]

alias QueryVec4 = IoVec4;

// vec4 i of a query head as it is stored, or the last one there is. Nothing is computed from it: the load stays in flight.
fn load_query(query: u32, head: u32, i: u32) -> QueryVec4 {
    let q_row = query * params.num_q_heads + min(head, params.num_q_heads - 1u);
    return q[q_row * (HEAD_DIM / 4u) + min(i, HEAD_DIM / 4u - 1u)];
}

fn query_values(loaded: QueryVec4) -> vec4<f32> {
    return io_read_vec4(loaded);
}

// vec4 i of a query head, scaled; 0 past HEAD_DIM and past the last head.
fn query_vec4(query: u32, head: u32, i: u32) -> vec4<f32> {
    if (4u * i >= HEAD_DIM || head >= params.num_q_heads) { return vec4<f32>(0.0); }
    return io_read_vec4(q[(query * params.num_q_heads + head) * (HEAD_DIM / 4u) + i]) * params.query_factor;
}
