//! The cache on a device: the only files that import wgpu.
//!
//! [`KvCache`] holds the pools and records a step; [`Appender`] and [`Attention`] hold the compiled kernels of an append
//! and of an attention, [`Transfer`] those that copy blocks from and to the pools of other engines,
//! [`StateMerger`] the one that joins attention over two sets of keys.

mod arena;
mod binding;
mod cache;
mod compat;
mod error;
mod group;
mod io;
mod kept;
mod kernel;
mod make;
mod makers;
mod mix;
mod ops;
pub(crate) mod parallel;
mod pipeline_cache;
mod pools;
mod profile;
mod receipt;
mod step;
#[cfg(feature = "testkit")]
pub(crate) mod texts;
mod value;
mod work;

pub use cache::KvCache;
pub use error::{ArgumentError, DeviceError, GpuError, SpecError};
pub use io::IoSlice;
pub use kernel::chunk_form::ChunkForm;
pub use kernel::shape::{LaneComm, Scoring};
pub use kernel::variant::IoFormat;
#[cfg(feature = "testkit")]
pub(crate) use make::check_alive;
pub use makers::matrix_features;
#[cfg(feature = "testkit")]
pub(crate) use makers::{is_software, smallest_subgroup};
pub use ops::append::{AppendIo, AppendSpec, Appender};
pub use ops::attention::{Attention, AttentionIo};
pub use ops::queries::QueryIo;
pub use ops::rotary::RotarySpec;
pub use ops::spec::AttentionSpec;
pub use ops::states::{State, StateMerger, StateShape};
pub use ops::swap::{SwapInError, SwapOut};
pub use ops::transfer::{BlockPair, ExternalPool, Transfer};
pub use pipeline_cache::{MAX_PIPELINE_CACHE_BYTES, PipelineCacheError, load_pipeline_cache, save_pipeline_cache};
pub use pools::HeadShard;
#[cfg(feature = "profiles")]
pub use profile::file::{Measured, ProfileError, TunedProfile};
pub use profile::{DeviceProfile, recommended_features, recommended_limits};
pub use step::Step;
pub use value::{ClearValue, ExternalElement, ExternalLayout, ExternalOrder, MropeSections, RotaryStyle};
