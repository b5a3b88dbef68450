// out_rows.wgsl — where a query's results lie in the caller's buffers: its outputs, and its log-sum-exp.

fn output_base(query: u32, head: u32) -> u32 {
    return params.out_base + query * params.out_stride + head * (V_HEAD_DIM / OUT_UNIT);
}

fn lse_place(query: u32, head: u32) -> u32 {
    return params.lse_base + query * params.num_q_heads + head;
}
