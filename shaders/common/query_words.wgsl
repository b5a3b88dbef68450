// query_words.wgsl — queries of any width. Same function as query_vec4.wgsl.
// Needs     params.num_q_heads and params.query_factor of the kernel; io_*.wgsl

@group(2) @binding(1) var<storage, read> q: array<IoWord>; // [num_queries, num_q_heads, HEAD_DIM]

fn query_element(query: u32, head: u32, e: u32) -> f32 {
    if (e >= HEAD_DIM || head >= params.num_q_heads) { return 0.0; }
    let at = (query * params.num_q_heads + head) * HEAD_DIM + e;
    return io_element(q[at / IO_PER_WORD], at) * params.query_factor;
}

// vec4 i of a query head, scaled; 0 past HEAD_DIM and past the last head.
fn query_vec4(query: u32, head: u32, i: u32) -> vec4<f32> {
    return vec4<f32>(
        query_element(query, head, 4u * i),
        query_element(query, head, 4u * i + 1u),
        query_element(query, head, 4u * i + 2u),
        query_element(query, head, 4u * i + 3u),
    );
}
