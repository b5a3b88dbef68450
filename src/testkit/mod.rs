//! What `check`, `bench` and the tests share: a device, and scenarios whose right answer is known.
//!
//! Part of the feature `testkit`, and outside of semantic versioning. Engines bring their own device.

mod adapter;
mod draw;
mod engine;
mod gpu;
mod scenario;
mod skip;
mod steps;

pub use adapter::{AdapterChoice, OpenError, adapters, choose_adapter, describe_driver, is_software, shader_compiler};
pub use draw::{Drawn, StepForm, draw, draw_form, draws_in_a_round};
pub use engine::{Request, StepIo, TestEngine};
pub use gpu::{Gpu, GpuOptions};
pub use scenario::Tolerances;
pub use scenario::{Fault, Outcome, Scenario, ScenarioSpec, ScenarioVariant, Verdict};
pub use skip::{REQUIRE_ADAPTER, published_log, setting, skip, test_device, test_device_with};
pub use steps::{SENTINEL, append_plan, attend_plan, io_buffer, plant_table_update, read_io, round_io, slots_of};
