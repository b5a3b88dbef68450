//! wgpu's errors as values: everything that the library makes on a device is made inside error scopes.

use super::error::GpuError;

/// Runs `make`, which creates `what` of `bytes` bytes, and returns what it made unless wgpu complained.
///
/// Only errors of these calls are seen: scopes belong to the thread, and they end here.
pub(super) fn scoped<T>(
    device: &wgpu::Device,
    what: &'static str,
    bytes: u64,
    make: impl FnOnce() -> T,
) -> Result<T, GpuError> {
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let made = make();
    // On native backends these futures are ready when they are made: nothing waits here.
    for scope in [validation, internal, memory] {
        match pollster::block_on(scope.pop()) {
            None => {}
            Some(wgpu::Error::OutOfMemory { .. }) => return Err(GpuError::OutOfMemory { what, bytes }),
            Some(wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. }) => {
                return Err(GpuError::Validation { what, message: description });
            }
        }
    }
    Ok(made)
}

/// Tells whether a device is lost. wgpu reports a loss only to a callback, and that belongs to the engine; creating
/// things on a lost device fails silently.
#[derive(Debug)]
pub(super) struct Liveness {
    probe: wgpu::Buffer,
}

impl Liveness {
    pub(super) fn new(device: &wgpu::Device) -> Result<Self, GpuError> {
        let probe = scoped(device, "a probe", 4, || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("paged.probe"),
                size: 4,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        })?;
        let liveness = Self { probe };
        liveness.check()?;
        Ok(liveness)
    }

    /// A request to map a buffer fails at once if its device is gone; otherwise it is taken back.
    pub(super) fn check(&self) -> Result<(), GpuError> {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.probe.map_async(wgpu::MapMode::Read, .., move |result| {
            // The receiver is gone once the request has been taken back, and then nobody asks.
            let _ = sender.send(result.is_ok());
        });
        let failed = receiver.try_recv() == Ok(false);
        if failed {
            return Err(GpuError::DeviceLost);
        }
        self.probe.unmap();
        Ok(())
    }
}
