// rotate_queries.wgsl — turns the queries of a step by their positions, as kv_append.wgsl turns K.
// Dispatch  one invocation per word of the result, folded into x and y
// Shapes    row-major
//   step       header and positions [num_queries]               i32
//   q          [num_queries, num_q_heads, HEAD_DIM]             f32, or f16 in pairs, read as bits; queries have a stride
//   rotated    the same, written; both may lie in one buffer, so both are bound to be written
//   rotations  see common/rotary.wgsl
// Twin      src/reference/rotary.rs: rotate
// Needs     kv_code(x, scale) from kv_<format>_store.wgsl, which rounds to nearest even on all devices
// const     CODE_BITS, HEAD_DIM, IO_PER_WORD and those of common/rotary.wgsl, prepended by the host

struct RotateParams {
    num_q_heads: u32,
    q_base: u32,         // words before the first query
    q_stride: u32,       // words from one query to the next
    rotated_base: u32,   // the same of what is written
    rotated_stride: u32,
    padding_0: u32,
    padding_1: u32,
    padding_2: u32,
}

@group(1) @binding(0) var<uniform> params: RotateParams;
@group(1) @binding(1) var<storage, read_write> q: array<u32>;
@group(1) @binding(2) var<storage, read_write> rotated: array<u32>;
@group(1) @binding(3) var<storage, read> rotations: array<vec2<f32>>;

fn given_bits(at: u32) -> u32 {
    return io_bits(q[at / IO_PER_WORD], at);
}

@compute @workgroup_size(ITEM_LANES)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let at = linear_index(group, groups) * ITEM_LANES + lane;
    let words = HEAD_DIM / IO_PER_WORD; // of a head
    let query = at / (words * params.num_q_heads);
    let header = step_header();
    if (query >= header.num_queries) { return; }
    let turns = first_turn(query_position(header, query));
    let first = at % words * IO_PER_WORD; // element of the head
    let head = at / words % params.num_q_heads * HEAD_DIM;
    let given = (params.q_base + query * params.q_stride) * IO_PER_WORD + head;
    var word = 0u;
    for (var place = 0u; place < IO_PER_WORD; place++) {
        let d = first + place;
        var x = given_bits(given + d);
        if (d < ROTARY_DIMS) { x = turned(turns, d, x, given_bits(given + partner(d))); }
        word |= kv_code(x, 0u) << (CODE_BITS * place);
    }
    rotated[params.rotated_base + query * params.rotated_stride + (head + first) / IO_PER_WORD] = word;
}
