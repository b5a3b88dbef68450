//! A device that computes nothing and writes down what it is asked to do, for another to do it.

use std::path::Path;

use super::Gpu;
use super::adapter::instance;

/// Of its subgroups.
pub(super) const LANES: u32 = 16;

impl Gpu {
    /// A device of which as little is known as of a browser's, with WebGPU's default limits and, if `subgroups`, with those
    /// of 16 lanes. What is read back from it are zeros. All calls go into `directory`, which is there and empty, as a trace
    /// of wgpu's: `trace.ron`, and beside it a file for every kernel and for what is written to buffers.
    ///
    /// # Panics
    /// If wgpu gives no such device.
    pub fn recorder(directory: &Path, subgroups: bool) -> Self {
        let adapters = pollster::block_on(instance(wgpu::Backends::NOOP).enumerate_adapters(wgpu::Backends::NOOP));
        let adapter = adapters.first().expect("a backend that is asked for by name is there");
        let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
            required_features: if subgroups { wgpu::Features::SUBGROUP } else { wgpu::Features::empty() },
            trace: wgpu::Trace::Directory(directory.to_owned()),
            ..Default::default()
        }))
        .expect("it has every feature");
        // wgpu calls it a CPU, whose kernels would be others.
        let info = wgpu::AdapterInfo { device_type: wgpu::DeviceType::Other, ..adapter.get_info() };
        Self { info, device, queue }
    }
}
