// query_words.wgsl — queries of any width, at any word. Same functions as query_vec4.wgsl.
// Needs     q: array<QueryUnit> of q_*.wgsl; AttentionParams; io_*.wgsl

alias QueryUnit = IoWord;

fn query_element(query: u32, head: u32, e: u32) -> f32 {
    if (e >= HEAD_DIM || head >= params.num_q_heads) { return 0.0; }
    return io_element(q[params.q_base + query * params.q_stride + (head * HEAD_DIM + e) / IO_PER_WORD], e);
}

alias QueryVec4 = vec4<f32>;

// vec4 i of a query head as it is stored; 0 past HEAD_DIM and past the last head.
fn load_query(query: u32, head: u32, i: u32) -> QueryVec4 {
    return vec4<f32>(
        query_element(query, head, 4u * i),
        query_element(query, head, 4u * i + 1u),
        query_element(query, head, 4u * i + 2u),
        query_element(query, head, 4u * i + 3u),
    );
}

fn query_values(loaded: QueryVec4) -> vec4<f32> {
    return loaded;
}

// The same, scaled.
fn query_vec4(query: u32, head: u32, i: u32) -> vec4<f32> {
    return load_query(query, head, i) * params.query_factor;
}
