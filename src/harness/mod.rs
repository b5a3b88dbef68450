//! What `check`, `bench` and the tests share: a device, and scenes whose right answer is known.
//!
//! Part of the feature `cli`; not meant for engines, which bring their own device.

mod gpu;
mod scene;

pub use gpu::{AdapterChoice, Gpu, GpuOptions, OpenError, adapters, describe_driver};
pub use scene::{Fault, Outcome, Scene, SceneSpec, Verdict};
