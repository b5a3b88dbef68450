//! The cache on a device: the only files that import wgpu.
//!
//! [`KvCache`] holds the pools and records a step; [`Attention`] holds compiled kernels; [`Kernel`] names every shader
//! and gives its text.

mod arena;
mod attention;
mod binding;
mod cache;
mod error;
pub mod params;
mod pipeline;
mod profile;
mod scope;
mod shader;
mod shape;
mod unroll;

pub use attention::{Attention, AttentionIo, AttentionSpec};
pub use cache::{KvCache, Segment, Step};
pub use error::GpuError;
pub use profile::{DeviceProfile, recommended_features, recommended_limits};
pub use shader::{APPEND_LANES, Dialect, Kernel, UPDATE_LANES};
pub use shape::{Exchange, KvShape};
pub use unroll::UnrollError;
