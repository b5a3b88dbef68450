//! The snapshot reader, on bytes that claim to be a snapshot.
#![no_main]

#[path = "../bodies.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::snapshot(bytes));
