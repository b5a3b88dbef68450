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
        let features = if subgroups { wgpu::Features::SUBGROUP } else { wgpu::Features::empty() };
        let recorder = Self::open_noop(features, wgpu::Trace::Directory(directory.to_owned()));
        // wgpu calls it a CPU, whose kernels would be others.
        Self { info: wgpu::AdapterInfo { device_type: wgpu::DeviceType::Other, ..recorder.info }, ..recorder }
    }

    /// A device of which every machine has one, and which computes nothing: for what the host does.
    ///
    /// # Panics
    /// If wgpu gives no such device.
    pub fn noop() -> Self {
        Self::open_noop(wgpu::Features::empty(), wgpu::Trace::Off)
    }

    fn open_noop(required_features: wgpu::Features, trace: wgpu::Trace) -> Self {
        let adapters = pollster::block_on(instance(wgpu::Backends::NOOP).enumerate_adapters(wgpu::Backends::NOOP));
        let adapter = adapters.first().expect("a backend that is asked for by name is there");
        let descriptor = wgpu::DeviceDescriptor { required_features, trace, ..Default::default() };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).expect("it has every feature");
        Self { info: adapter.get_info(), device, queue }
    }
}
