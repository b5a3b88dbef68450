// queries_shared.wgsl — queries in workgroup memory, which all lanes read. Same functions as queries_shuffled.wgsl.
// Needs     query_vec4(query, head, i) of query_*.wgsl

var<workgroup> query_rows: array<vec4<f32>, Q_ROWS * QUERY_VEC4S>;

// The members of a team share the rows out.
fn set_query(r: u32, query: u32, head: u32, member: u32, lane: u32) {
    if (r % SUBGROUPS != member) { return; }
    for (var i = lane; i < QUERY_VEC4S; i += LANES) {
        query_rows[r * QUERY_VEC4S + i] = query_vec4(query, head, i);
    }
}

fn queries_ready() {
    workgroupBarrier();
}

fn get_query(r: u32, reg: u32, i: u32) -> vec4<f32> {
    return query_rows[r * QUERY_VEC4S + i];
}
