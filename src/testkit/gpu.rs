//! Opening a device, and reading back.

use bytemuck::{NoUninit, Pod};
use wgpu::util::DeviceExt;

use super::adapter::{AdapterChoice, OpenError, choose_adapter, is_software};
use crate::gpu::{check_alive, matrix_features, recommended_features, recommended_limits};

/// How to open a device.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// The adapter.
    pub adapter: AdapterChoice,
    /// Features wanted where the adapter has them; `None` takes [`recommended_features`].
    pub features: Option<wgpu::Features>,
    /// WebGPU's default limits instead of [`recommended_limits`].
    pub default_limits: bool,
}

/// A device with its queue.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// The adapter, as it describes itself.
    pub info: wgpu::AdapterInfo,
    /// The device.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
}

impl Gpu {
    /// Opens a device.
    ///
    /// # Errors
    /// [`OpenError`], with the remedy.
    pub fn open(options: &GpuOptions) -> Result<Self, OpenError> {
        let adapter = choose_adapter(&options.adapter)?;
        let info = adapter.get_info();
        let limits = if options.default_limits { wgpu::Limits::default() } else { recommended_limits(&adapter) };
        let all = || recommended_features(&adapter) | matrix_features(&adapter);
        let features = options.features.map_or_else(all, |wanted| wanted & adapter.features());
        let mut experimental_features = wgpu::ExperimentalFeatures::disabled();
        if features.intersects(wgpu::Features::all_experimental_mask()) {
            // SAFETY: wgpu warns of bugs in what is experimental. Every result of the matrix units is held against the oracle.
            experimental_features = unsafe { wgpu::ExperimentalFeatures::enabled() };
        }
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("paged-attention"),
            required_features: features,
            required_limits: limits,
            experimental_features,
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|error| OpenError::NoDevice { name: info.name.clone(), message: error.to_string() })?;
        Ok(Self { info, device, queue })
    }

    /// Whether the adapter computes on a CPU.
    pub fn is_software(&self) -> bool {
        is_software(&self.info)
    }

    /// Lanes of the device's smallest subgroups, as far as kernels may use them; `None` without any.
    pub fn smallest_subgroup(&self) -> Option<u32> {
        crate::gpu::smallest_subgroup(&self.info, self.device.features())
    }

    /// A storage buffer with these contents.
    pub fn storage<T: NoUninit>(&self, label: &str, contents: &[T]) -> wgpu::Buffer {
        self.device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
            label: Some(label),
            contents: bytemuck::cast_slice(contents),
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
        })
    }

    /// Submits an encoder and waits until the device is done, or lost.
    ///
    /// # Panics
    /// If wgpu finds the commands invalid on a device that is not lost.
    pub fn submit(&self, encoder: wgpu::CommandEncoder) {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        self.queue.submit([encoder.finish()]);
        // Fails only if the device is lost, and then reading back says so.
        let _ = self.device.poll(wgpu::PollType::wait_indefinitely());
        if let Some(error) = pollster::block_on(scope.pop()) {
            assert!(check_alive(&self.device).is_err(), "{error}");
        }
    }

    /// The contents of a buffer; `None` if the device is lost.
    pub fn read<T: Pod>(&self, buffer: &wgpu::Buffer) -> Option<Vec<T>> {
        check_alive(&self.device).ok()?;
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("readback"),
            size: buffer.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
        let (sender, receiver) = std::sync::mpsc::channel();
        encoder.map_buffer_on_submit(&staging, wgpu::MapMode::Read, .., move |result| {
            // The receiver outlives the wait below.
            let _ = sender.send(result);
        });
        self.submit(encoder);
        // Another thread that polls may have taken the callback along and be about to run it.
        receiver.recv().ok()?.ok()?;
        let bytes = staging.get_mapped_range(..).ok()?;
        Some(bytemuck::pod_collect_to_vec(&bytes[..]))
    }
}
