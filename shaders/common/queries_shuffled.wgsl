// queries_shuffled.wgsl — queries in the registers of a subgroup: vec4 i of a query row lives in lane i % LANES and is handed
// round. Same functions as queries_shared.wgsl.
// Needs     query_vec4(query, head, i) of query_*.wgsl

var<private> query_rows: array<vec4<f32>, Q_ROWS * QUERY_REGS>;

fn set_query(r: u32, query: u32, head: u32, member: u32, lane: u32) {
    for (var i = 0u; i < QUERY_REGS; i++) { // unroll
        query_rows[r * QUERY_REGS + i] = query_vec4(query, head, i * LANES + lane);
    }
}

fn queries_ready() {}

// `reg` is i / LANES, as a constant.
fn get_query(r: u32, reg: u32, i: u32) -> vec4<f32> {
    return subgroupShuffle(query_rows[r * QUERY_REGS + reg], i % LANES);
}
