//! The cache on a device: the only files that import wgpu.
//!
//! [`KvCache`] holds the pools and records a step; [`Attention`] holds compiled kernels, [`Appender`] those of an append
//! with rotary embedding or rows in f16, [`Transfer`] those that copy blocks from and to the pools of other engines,
//! [`StateMerger`] the one that joins attention over two sets of keys; [`Kernel`] names every shader and gives its text.

mod arena;
mod binding;
mod cache;
mod error;
mod kernel;
mod ops;
mod pipeline;
mod profile;
mod scope;
mod step;

pub use cache::{HeadShard, KvCache};
pub use error::GpuError;
pub use kernel::shape::{KvShape, LaneComm};
pub use kernel::unroll::UnrollError;
pub use kernel::variant::{IoFormat, Variant};
pub use kernel::{
    APPEND_LANES, COPY_LANES, Dialect, EXPORT_LANES, FILL_LANES, IMPORT_LANES, Kernel, ROTATE_LANES, UPDATE_LANES,
    params,
};
pub use ops::appender::{AppendIo, AppendSpec, Appender, QueryRotation};
pub use ops::attention::{Attention, AttentionIo};
pub use ops::block_work::BlockFill;
pub use ops::rotary::{RotaryShape, RotarySpec, RotaryStyle};
pub use ops::spec::AttentionSpec;
pub use ops::states::{State, StateMerger, StateShape};
pub use ops::swap::{SwapInError, SwapOut};
pub use ops::transfer::{BlockPair, ExternalElement, ExternalLayout, ExternalOrder, ExternalPool, Transfer};
pub use profile::{DeviceProfile, recommended_features, recommended_limits};
pub use step::Step;
