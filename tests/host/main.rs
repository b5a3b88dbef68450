//! Tests of everything that runs on the host alone.

mod block_shaders;
mod cases;
mod cases_blocks;
mod faults;
mod fuzz_corpus;
mod pool_model;
mod serving_loop;
mod shader_text;
mod shaders;
mod steady_state;
mod uniformity;
mod variants;
