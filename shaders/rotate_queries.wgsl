// rotate_queries.wgsl — norms the queries of a step, or turns them by their positions, or both, as kv_append.wgsl does with K.
// Dispatch  one invocation per word of the result, folded into x and y
// Shapes    row-major
//   step       header and positions [num_queries], or [num_queries, 3]
//   q          [num_queries, num_q_heads, HEAD_DIM]             f32, or f16 in pairs, read as bits; queries have a stride
//   rotated    the same, written; both may lie in one buffer, so both are bound to be written
//   rotations, norm_weights   see common/rotary.wgsl and common/norm_rms.wgsl
// Twin      src/reference/rotary.rs: rotate
// Needs     begin_norm(begin), begin_turns(header, query) and row_bits(d), from common/norm_*.wgsl, turns_*.wgsl and
//           rotary*.wgsl; kv_code(x, scale) from kv_<format>_store.wgsl, which rounds to nearest even on all devices
// const     CODE_BITS, HEAD_DIM, IO_PER_WORD and those of common/rotary.wgsl, prepended by the host

struct RotateParams {
    num_q_heads: u32,
    q_base: u32,         // words before the first query
    q_stride: u32,       // words from one query to the next
    rotated_base: u32,   // the same of what is written
    rotated_stride: u32,
    norm_base: u32,      // words before the weights of the norm
    norm_eps: f32,
    padding_0: u32,
}

@group(1) @binding(0) var<uniform> params: RotateParams;
@group(1) @binding(1) var<storage, read_write> q: array<u32>;
@group(1) @binding(2) var<storage, read_write> rotated: array<u32>;

fn row_element(at: u32) -> u32 {
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
    let first = at % words * IO_PER_WORD; // element of the head
    let head = at / words % params.num_q_heads * HEAD_DIM;
    begin_norm((params.q_base + query * params.q_stride) * IO_PER_WORD + head);
    begin_turns(header, query);
    var word = 0u;
    for (var place = 0u; place < IO_PER_WORD; place++) {
        word |= kv_code(row_bits(first + place), 0u) << (CODE_BITS * place);
    }
    rotated[params.rotated_base + query * params.rotated_stride + (head + first) / IO_PER_WORD] = word;
}
