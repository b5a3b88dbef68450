//! What `check`, `bench` and the tests share: a device, and scenes whose right answer is known.
//!
//! Part of the feature `cli`; not meant for engines, which bring their own device.

mod gpu;
mod scene;
mod steps;

pub use gpu::{AdapterChoice, Gpu, GpuOptions, OpenError, adapters, choose_adapter, describe_driver};
pub(crate) use scene::Tolerances;
pub use scene::{Fault, Outcome, Scene, SceneSpec, SceneVariant, Verdict};
pub(crate) use steps::{SENTINEL, append_plan, attend_plan, io_buffer, read_io, round_io, slots_of};
