//! wgpu's errors as values: everything that the library makes on a device is made inside error scopes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
///
/// A request to map a buffer fails at once if its device is gone; otherwise it is taken back.
#[derive(Debug)]
pub(super) struct Liveness {
    device: wgpu::Device,
    /// One request at a time: a second one would fail because of the first.
    probe: Mutex<wgpu::Buffer>,
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
        let liveness = Self { device: device.clone(), probe: Mutex::new(probe) };
        // Nobody else can be in the way of a new buffer: one that cannot be mapped was never made.
        if liveness.probe_refused().0 {
            return Err(GpuError::DeviceLost);
        }
        Ok(liveness)
    }

    pub(super) fn check(&self) -> Result<(), GpuError> {
        // A lost device refuses without a word; whatever else is wrong with the request is a validation error.
        if self.probe_refused() == (true, false) { Err(GpuError::DeviceLost) } else { Ok(()) }
    }

    /// Whether a request to map was refused, and whether wgpu complained of it.
    fn probe_refused(&self) -> (bool, bool) {
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&refused);
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        probe.map_async(wgpu::MapMode::Read, .., move |result| seen.store(result.is_err(), Ordering::Relaxed));
        // Before the request is taken back, which is a refusal too.
        let refused = refused.load(Ordering::Relaxed);
        let complained = pollster::block_on(scope.pop()).is_some();
        // Another thread that polls the device may be half-way through mapping; that there is nothing to take back then
        // is nobody's business.
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        probe.unmap();
        drop(pollster::block_on(scope.pop()));
        (refused, complained)
    }
}
