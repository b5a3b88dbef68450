//! A paged KV cache and PagedAttention for every device that wgpu reaches.

#[cfg(feature = "cli")]
pub mod bench;
pub mod blocks;
pub mod config;
pub mod error;
pub mod gpu;
#[cfg(feature = "cli")]
pub mod harness;
pub mod layout;
pub mod plan;
pub mod reference;

pub use wgpu;
