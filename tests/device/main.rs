//! Tests that need an adapter; without one each says that it is skipped.

mod accuracy;
mod block_copy;
mod cases_inputs;
mod cases_shapes;
mod cases_values;
mod cases_variants;
mod common;
mod determinism;
mod dispatches;
mod driver;
mod engine;
mod faults;
mod formats;
mod golden;
mod grid;
mod kernels;
mod loops;
mod merge_states;
mod rotary;
#[allow(dead_code, reason = "only the reflection is used here")]
#[path = "../host/shader_text.rs"]
mod shader_text;
mod snapshot;
mod steps;
mod swap;
mod tiles;
mod transfer;
mod validation;
mod window_release;
mod windows;
