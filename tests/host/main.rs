//! Tests of everything that runs on the host alone.

mod allocations;
mod cases;
mod cases_blocks;
mod faults;
mod fuzz_corpus;
mod kept_buffers;
mod late_ids;
mod pool_model;
mod recording;
mod rope;
mod serving_loop;
mod steady_state;

/// A block by its number.
fn block_id(number: u32) -> wgpu_paged_attention::blocks::BlockId {
    wgpu_paged_attention::blocks::BlockId::new(number).expect("a block id")
}
