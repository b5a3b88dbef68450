//! What was measured on.

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::testkit::{Gpu, describe_driver};

const SOFTWARE_NOTICE: &str = "SOFTWARE ADAPTER: these are CPU numbers, not a GPU's";

/// The version of wgpu that this program is built for; Cargo.lock holds the exact one.
const WGPU_VERSION: &str = "30.0";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Adapter {
    pub name: String,
    pub backend: String,
    pub driver: String,
    pub software: bool,
    /// Discrete, integrated, virtual or CPU, in wgpu's words.
    pub device_type: String,
    pub wgpu_version: String,
}

impl Adapter {
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

    pub fn fact(&self) -> (&'static str, String) {
        let Self { name, backend, driver, device_type, wgpu_version, .. } = self;
        let value = format!("{name} ({device_type}) | backend: {backend} | driver: {driver} | wgpu {wgpu_version}");
        ("adapter", value)
    }

    pub fn notice(&self) -> Option<String> {
        self.software.then(|| SOFTWARE_NOTICE.to_owned())
    }
}
