// norm_rms.wgsl — the elements of a row over their root mean square, times a weight each: the QK-norm of a head. Same
// functions as norm_none.wgsl.
// Needs     row_element(at), the f32 bits of an element, and params.norm_base, params.norm_eps, from the kernel
//           norm_weights [HEAD_DIM] f32, from word norm_base on
// Every invocation sums the squares of its row by itself, in an order that is fixed: HEAD_DIM / 4 loop rounds.
// Twin      src/reference/norm.rs: rms_norm      Source  RMSNorm (Zhang & Sennrich 2019), over a head as in Qwen3 and Gemma 3
// const     HEAD_DIM, NORM_BINDING, ROW_GROUP, prepended by the host

@group(ROW_GROUP) @binding(NORM_BINDING) var<storage, read> norm_weights: array<f32>;

const NORM_FOURS: u32 = (HEAD_DIM + 3u) / 4u;

var<private> row_begin: u32;
var<private> row_factor: f32;

// Element `d`; 0 past the end of the row.
fn norm_element(d: u32) -> f32 {
    let bits = row_element(row_begin + min(d, HEAD_DIM - 1u));
    return bitcast<f32>(select(0u, bits, d < HEAD_DIM));
}

fn begin_norm(begin: u32) {
    row_begin = begin;
    var sums = vec4<f32>(0.0);
    for (var four = 0u; four < NORM_FOURS; four++) {
        let d = 4u * four;
        let x = vec4<f32>(norm_element(d), norm_element(d + 1u), norm_element(d + 2u), norm_element(d + 3u));
        sums += x * x;
    }
    let sum = (sums.x + sums.y) + (sums.z + sums.w);
    row_factor = 1.0 / sqrt(sum / f32(HEAD_DIM) + params.norm_eps);
}

fn normed(d: u32) -> u32 {
    return bitcast<u32>(bitcast<f32>(row_element(row_begin + d)) * row_factor * norm_weights[params.norm_base + d]);
}
