//! Everything that is made on a device is made here, inside error scopes, so that wgpu's errors come back as values.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::compat;
use super::error::DeviceError;
use super::kernel::Kernel;

/// What stands at one binding.
#[derive(Clone, Copy)]
pub(super) enum BindingKind {
    Read,
    Write,
    Uniform,
}

/// Makes buffers, bindings and pipelines on a device, and tells whether the device is lost.
///
/// wgpu reports a loss only to a callback, which belongs to the engine, and creating things on a lost device fails
/// silently. But a request to map a buffer fails at once if its device is gone; otherwise it is taken back.
#[derive(Debug)]
pub(super) struct Maker {
    device: wgpu::Device,
    /// One request at a time: a second one would fail because of the first.
    probe: Mutex<Probe>,
    pipeline_cache: Option<wgpu::PipelineCache>,
}

/// A buffer that is never mapped for long, and whether the last request was refused.
#[derive(Debug)]
struct Probe {
    buffer: wgpu::Buffer,
    refused: Arc<AtomicBool>,
}

impl Maker {
    pub(super) fn new(device: &wgpu::Device) -> Result<Self, DeviceError> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let buffer = scoped(device, "paged.probe", 4, || buffer(device, "paged.probe", usage, 4, false))?;
        let probe = Probe { buffer, refused: Arc::default() };
        let maker = Self { device: device.clone(), probe: Mutex::new(probe), pipeline_cache: None };
        // No other thread can be in the way of a new buffer: one that cannot be mapped was never made.
        if maker.probe_refused().0 { Err(DeviceError::Lost) } else { Ok(maker) }
    }

    pub(super) fn device(&self) -> &wgpu::Device {
        &self.device
    }

    /// Every public call that reaches the device begins with this, so that each says [`DeviceError::Lost`] once it is. Those
    /// that only record into a pass ask once in each: see [`Step::enter`](super::step::Step::enter).
    pub(super) fn check(&self) -> Result<(), DeviceError> {
        // A lost device refuses without a word; whatever else is wrong with the request is a validation error.
        if self.probe_refused() == (true, false) { Err(DeviceError::Lost) } else { Ok(()) }
    }

    /// Whether a request to map was refused, and whether wgpu complained of it.
    fn probe_refused(&self) -> (bool, bool) {
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        probe.refused.store(false, Ordering::Relaxed);
        let refused = Arc::clone(&probe.refused);
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let seen = move |result: Result<(), _>| refused.store(result.is_err(), Ordering::Relaxed);
        probe.buffer.map_async(wgpu::MapMode::Read, .., seen);
        // Before the request is taken back, which is a refusal too.
        let refused = probe.refused.load(Ordering::Relaxed);
        let complained = pollster::block_on(scope.pop()).is_some();
        // Another thread that polls the device may be half-way through mapping; then there is nothing to take back.
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        probe.buffer.unmap();
        drop(pollster::block_on(scope.pop()));
        (refused, complained)
    }

    /// A buffer whose contents are written by commands.
    pub(super) fn buffer(
        &self,
        label: &str,
        usage: wgpu::BufferUsages,
        bytes: u64,
    ) -> Result<wgpu::Buffer, DeviceError> {
        scoped(&self.device, label, bytes, || buffer(&self.device, label, usage, bytes, false))
    }

    /// A buffer that `fill` writes before the device sees it.
    pub(super) fn mapped_buffer(
        &self,
        label: &str,
        usage: wgpu::BufferUsages,
        bytes: u64,
        fill: impl FnOnce(&wgpu::Buffer) -> Option<()>,
    ) -> Result<wgpu::Buffer, DeviceError> {
        let made = scoped(&self.device, label, bytes, || {
            let made = buffer(&self.device, label, usage, bytes, true);
            let filled = fill(&made);
            made.unmap();
            filled.map(|()| made)
        })?;
        // A buffer that was made without an error, and yet has no bytes, is one of a lost device.
        made.ok_or(DeviceError::Lost)
    }

    /// A buffer with these contents, which are whole words.
    pub(super) fn filled(
        &self,
        label: &str,
        usage: wgpu::BufferUsages,
        contents: &[u8],
    ) -> Result<wgpu::Buffer, DeviceError> {
        self.mapped_buffer(label, usage, contents.len() as u64, |made| {
            compat::mapped_mut(made, ..)?.copy_from_slice(contents);
            Some(())
        })
    }

    /// A uniform buffer that never changes.
    pub(super) fn uniform<T: bytemuck::Pod>(&self, label: &str, value: &T) -> Result<wgpu::Buffer, DeviceError> {
        self.filled(label, wgpu::BufferUsages::UNIFORM, bytemuck::bytes_of(value))
    }

    /// A bind group layout with bindings 0, 1, ….
    pub(super) fn layout(&self, label: &str, kinds: &[BindingKind]) -> Result<wgpu::BindGroupLayout, DeviceError> {
        let entry = |(binding, kind): (u32, &BindingKind)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: match kind {
                    BindingKind::Read => wgpu::BufferBindingType::Storage { read_only: true },
                    BindingKind::Write => wgpu::BufferBindingType::Storage { read_only: false },
                    BindingKind::Uniform => wgpu::BufferBindingType::Uniform,
                },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<_> = (0..).zip(kinds).map(entry).collect();
        let descriptor = wgpu::BindGroupLayoutDescriptor { label: Some(label), entries: &entries };
        scoped(&self.device, label, 0, || self.device.create_bind_group_layout(&descriptor))
    }

    /// A bind group with bindings 0, 1, ….
    pub(super) fn bind_group(
        &self,
        label: &str,
        layout: &wgpu::BindGroupLayout,
        resources: &[wgpu::BufferBinding<'_>],
    ) -> Result<wgpu::BindGroup, DeviceError> {
        let entries: Vec<_> = (0..)
            .zip(resources)
            .map(|(binding, resource)| wgpu::BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(resource.clone()),
            })
            .collect();
        let descriptor = wgpu::BindGroupDescriptor { label: Some(label), layout, entries: &entries };
        scoped(&self.device, label, 0, || self.device.create_bind_group(&descriptor))
    }

    pub(super) fn pipeline_cache(&self) -> Option<&wgpu::PipelineCache> {
        self.pipeline_cache.as_ref()
    }

    pub(super) fn set_pipeline_cache(&mut self, cache: wgpu::PipelineCache) {
        self.pipeline_cache = Some(cache);
    }

    /// Compiles a kernel.
    pub(super) fn pipeline(
        &self,
        kernel: &Kernel,
        groups: &[&wgpu::BindGroupLayout],
    ) -> Result<wgpu::ComputePipeline, DeviceError> {
        let device = &self.device;
        let label = format!("paged.{kernel}");
        // Seconds on some drivers; the tools say so.
        let _span = tracing::debug_span!("paged.compile", %kernel).entered();
        #[cfg(feature = "testkit")]
        let (text, checks) = crate::gpu::texts::to_compile(kernel);
        #[cfg(not(feature = "testkit"))]
        let (text, checks) = (kernel.wgsl(), runtime_checks());
        scoped(device, &label, 0, || {
            let module = kernel_module(device, &label, text, checks);
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(&label),
                layout: Some(&compat::pipeline_layout(device, &label, groups)),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    // Every kernel writes its workgroup memory before it reads it.
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: self.pipeline_cache(),
            })
        })
    }
}

/// The module of one of our own texts, all of whose loops end.
fn kernel_module(
    device: &wgpu::Device,
    label: &str,
    text: String,
    checks: wgpu::ShaderRuntimeChecks,
) -> wgpu::ShaderModule {
    let source = wgpu::ShaderSource::Wgsl(text.into());
    let descriptor = wgpu::ShaderModuleDescriptor { label: Some(label), source };
    // SAFETY: without loop bounding every loop must end, whatever the buffers hold. In shaders/ a counter of a loop is
    // changed by the loop alone. It runs up by ones below a bound that the loop does not change; or by a fixed step below a
    // bound that is a constant, a length that the host checked against a binding's, or at most 2^30 keys, so that it cannot
    // wrap; or it halves; or, in `tile_of_item`, the interval that it searches gets shorter every round. The test
    // `every_loop_of_the_kernels_ends` holds each loop's head against this list. Texts that a test changed come with checks that
    // bound their loops.
    unsafe { device.create_shader_module_trusted(descriptor, checks) }
}

/// What naga adds to the kernels' texts. It would give every loop a second exit and a counter of 64 bits, and with these no
/// GPU's compiler writes the loops out or keeps arrays in registers. All other checks stay.
pub(super) fn runtime_checks() -> wgpu::ShaderRuntimeChecks {
    wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..wgpu::ShaderRuntimeChecks::checked() }
}

/// For callers that make nothing: whether the device is lost.
pub(crate) fn check_alive(device: &wgpu::Device) -> Result<(), DeviceError> {
    Maker::new(device).map(drop)
}

/// Runs `make`, which creates `what` of `bytes` bytes, and returns what it made unless wgpu complained.
///
/// Only errors of these calls are seen: scopes belong to the thread, and they end here.
pub(super) fn scoped<T>(
    device: &wgpu::Device,
    what: &str,
    bytes: u64,
    make: impl FnOnce() -> T,
) -> Result<T, DeviceError> {
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let made = make();
    // On native backends these futures are ready when they are made: nothing waits here.
    for scope in [validation, internal, memory] {
        let what = || what.to_owned();
        match pollster::block_on(scope.pop()) {
            None => {}
            Some(wgpu::Error::OutOfMemory { .. }) => return Err(DeviceError::OutOfMemory { what: what(), bytes }),
            Some(wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. }) => {
                return Err(DeviceError::Validation { what: what(), message: description });
            }
        }
    }
    Ok(made)
}

fn buffer(
    device: &wgpu::Device,
    label: &str,
    usage: wgpu::BufferUsages,
    size: u64,
    mapped_at_creation: bool,
) -> wgpu::Buffer {
    device.create_buffer(&wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation })
}

/// A pipeline that is compiled when it is first needed; other threads that need it meanwhile wait.
#[derive(Debug, Default)]
pub(super) struct LazyPipeline(Mutex<Option<wgpu::ComputePipeline>>);

impl LazyPipeline {
    pub(super) fn get(
        &self,
        maker: &Maker,
        kernel: &Kernel,
        groups: &[&wgpu::BindGroupLayout],
    ) -> Result<wgpu::ComputePipeline, DeviceError> {
        let mut pipeline = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = &*pipeline {
            return Ok(pipeline.clone());
        }
        Ok(pipeline.insert(maker.pipeline(kernel, groups)?).clone())
    }
}

/// One dispatch, checked and ready to be recorded.
#[derive(Debug)]
pub(super) struct Dispatch {
    pipeline: wgpu::ComputePipeline,
    /// Bind groups 0, 1, ….
    groups: [Option<wgpu::BindGroup>; 3],
    grid: [u32; 3],
}

impl Dispatch {
    pub(super) fn new<const GROUPS: usize>(
        pipeline: &wgpu::ComputePipeline,
        groups: [&wgpu::BindGroup; GROUPS],
        grid: [u32; 3],
    ) -> Self {
        let groups = std::array::from_fn(|index| groups.get(index).map(|&group| group.clone()));
        Self { pipeline: pipeline.clone(), groups, grid }
    }
}

/// Records dispatches one after the other. What two neighbours have in common is set once.
pub(super) fn record(pass: &mut wgpu::ComputePass<'_>, dispatches: &[Dispatch]) {
    let mut before: Option<&Dispatch> = None;
    for dispatch in dispatches {
        if before.is_none_or(|before| before.pipeline != dispatch.pipeline) {
            pass.set_pipeline(&dispatch.pipeline);
        }
        for (index, group) in dispatch.groups.iter().enumerate() {
            if group.is_some() && before.is_none_or(|before| before.groups[index] != *group) {
                pass.set_bind_group(index as u32, group, &[]);
            }
        }
        let [x, y, z] = dispatch.grid;
        pass.dispatch_workgroups(x, y, z);
        before = Some(dispatch);
    }
}

/// A list of dispatches that is empty between two calls and keeps its capacity. Calls at the same time take one each.
#[derive(Debug, Default)]
pub(super) struct DispatchList(Mutex<Vec<Dispatch>>);

impl DispatchList {
    pub(super) fn take(&self) -> Vec<Dispatch> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records the dispatches of a list that was taken, and gives it back.
    pub(super) fn record(&self, pass: &mut wgpu::ComputePass<'_>, mut dispatches: Vec<Dispatch>) {
        record(pass, &dispatches);
        dispatches.clear();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = dispatches;
    }
}
