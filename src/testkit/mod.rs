//! What `check`, `bench` and the tests share: a device, and scenarios whose right answer is known.
//!
//! Part of the feature `testkit`, and outside of semantic versioning. Engines bring their own device.

mod adapter;
mod compiling;
mod draw;
mod engine;
mod gpu;
mod layers;
mod plan;
mod recorder;
mod rotation;
mod scenario;
mod skip;
mod steps;

use crate::formats::KvDtype;

/// Largest error of a format over the largest |V|, for K, V and queries from N(0, 1).
pub const ACCURACY: [(KvDtype, f64); 6] = [
    (KvDtype::F32, 2e-6),
    (KvDtype::F16, 1e-3),
    (KvDtype::Bf16, 8e-3),
    (KvDtype::Int8, 1e-2),
    (KvDtype::Fp8, 5e-2),
    (KvDtype::Int4, 1e-1),
];

/// A copy with a change, for values whose fields are more than a test sets.
pub fn changed<T: Clone>(value: &T, change: impl FnOnce(&mut T)) -> T {
    let mut copy = value.clone();
    change(&mut copy);
    copy
}

pub use crate::gpu::parallel::for_each as in_parallel;
pub use crate::gpu::texts::{KernelText, browser_wgsl, kernel_texts, with_changed_texts};
pub use adapter::{AdapterChoice, OpenError, adapters, choose_adapter, describe_driver, is_software, shader_compiler};
pub use compiling::CompileListener;
pub use draw::{Drawn, StepForm, draw, draw_form, draws_in_a_round};
pub use engine::{Request, StepIo, TestEngine};
pub use gpu::{Gpu, GpuOptions};
pub use layers::{LayerEngine, LayerFault, StepOutcome, layer_config, layer_kinds, layer_story};
pub use rotation::{BLANK, RotationFault, RotationScenario, Turn};
pub use scenario::Tolerances;
pub use scenario::{Fault, Outcome, Scenario, ScenarioSpec, ScenarioVariant, Verdict};
pub use skip::{REQUIRE_ADAPTER, published_log, setting, skip, test_device, test_device_with};
pub use steps::{SENTINEL, append_plan, attend_plan, io_buffer, plant_table_update, read_io, round_io, slots_of};
