//! The cache on a device: the only files that import wgpu.
//!
//! [`KvCache`] holds the pools and records a step; [`Attention`] holds compiled kernels, [`Appender`] those of an append
//! with rotary embedding or rows in f16, [`Transfer`] those that copy blocks from and to the pools of other engines,
//! [`StateMerger`] the one that joins attention over two sets of keys; [`Kernel`] names every shader and gives its text.

mod append;
mod appender;
mod arena;
mod attention;
mod attention_shape;
mod binding;
mod block_work;
mod cache;
mod class_kernel;
mod error;
pub mod params;
mod pipeline;
mod profile;
mod rotary;
mod scope;
mod shader;
mod shape;
mod spec;
mod staging;
mod states;
mod step;
mod swap;
mod transfer;
mod unroll;
mod variant;

pub use appender::{AppendIo, AppendSpec, Appender, QueryRotation};
pub use attention::{Attention, AttentionIo};
pub use block_work::BlockFill;
pub use cache::{KvCache, Segment};
pub use error::GpuError;
pub use profile::{DeviceProfile, recommended_features, recommended_limits};
pub use rotary::{RotaryShape, RotarySpec, RotaryStyle};
pub use shader::{
    APPEND_LANES, COPY_LANES, Dialect, EXPORT_LANES, FILL_LANES, IMPORT_LANES, Kernel, ROTATE_LANES, UPDATE_LANES,
};
pub use shape::{Exchange, KvShape};
pub use spec::AttentionSpec;
pub use states::{State, StateMerger, StateShape};
pub use step::Step;
pub use swap::{SwapInError, SwapOut};
pub use transfer::{BlockPair, ForeignElement, ForeignLayout, ForeignOrder, ForeignPool, Transfer};
pub use unroll::UnrollError;
pub use variant::{IoFormat, Variant};
