//! What was measured on, and what it can do at best.

use serde::{Deserialize, Serialize};

use wgpu_paged_attention::testkit::{Gpu, describe_driver};

/// The device and the way to it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Adapter {
    /// Name the driver gives the device.
    pub name: String,
    /// Graphics API below wgpu.
    pub backend: String,
    /// Name and version of the driver.
    pub driver: String,
    /// Whether the device is a program on the CPU.
    pub software: bool,
    /// Discrete, integrated, virtual or CPU, in wgpu's words.
    pub device_type: String,
    /// Version of wgpu.
    pub wgpu_version: String,
}

/// The version of wgpu that this crate is built for; Cargo.lock holds the exact one.
const WGPU_VERSION: &str = "30.0";

impl Adapter {
    /// What is known of an open device.
    pub fn of(gpu: &Gpu) -> Self {
        Self {
            name: gpu.info.name.clone(),
            backend: gpu.info.backend.to_string(),
            driver: describe_driver(&gpu.info),
            software: gpu.is_software(),
            device_type: format!("{:?}", gpu.info.device_type),
            wgpu_version: WGPU_VERSION.to_owned(),
        }
    }
}

/// Best rates of trivial kernels on the same device; `None` (JSON `null`) where not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Reading a large buffer, 10⁹ bytes per second.
    pub read_gb_s: Option<f64>,
    /// Copying one, bytes read and written together.
    pub copy_gb_s: Option<f64>,
    /// Multiply-adds, counted as two operations each.
    pub fma_gflop_s: Option<f64>,
    /// An empty dispatch, in microseconds.
    pub dispatch_us: Option<f64>,
}
