//! Tests of everything that runs on the host alone.

mod cases;
mod cases_blocks;
mod faults;
mod fuzz_corpus;
mod pool_model;
mod serving_loop;
mod steady_state;
