//! Tests of everything that runs on the host alone.

mod cases;
mod cases_blocks;
mod faults;
mod fuzz_corpus;
mod pool_model;
mod serving_loop;
mod steady_state;

/// A block by its number.
fn block_id(number: u32) -> wgpu_paged_attention::blocks::BlockId {
    wgpu_paged_attention::blocks::BlockId::new(number).expect("a block id")
}
