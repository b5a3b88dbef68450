//! From a kernel to a pipeline, with bind group layouts that all kernels share.

use std::sync::{Mutex, PoisonError};

use super::error::GpuError;
use super::scope::scoped;
use crate::gpu::kernel::{Dialect, Kernel};

/// What stands at one binding.
#[derive(Clone, Copy)]
pub(super) enum BindingKind {
    Read,
    Write,
    Uniform,
}

/// A bind group layout with bindings 0, 1, ….
pub(super) fn bind_group_layout(device: &wgpu::Device, label: &str, slots: &[BindingKind]) -> wgpu::BindGroupLayout {
    let entries: Vec<_> = (0..)
        .zip(slots)
        .map(|(binding, slot)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: match slot {
                    BindingKind::Read => wgpu::BufferBindingType::Storage { read_only: true },
                    BindingKind::Write => wgpu::BufferBindingType::Storage { read_only: false },
                    BindingKind::Uniform => wgpu::BufferBindingType::Uniform,
                },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        })
        .collect();
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: Some(label), entries: &entries })
}

/// A bind group with bindings 0, 1, ….
pub(super) fn bind_group(
    device: &wgpu::Device,
    label: &str,
    layout: &wgpu::BindGroupLayout,
    resources: &[wgpu::BufferBinding<'_>],
) -> wgpu::BindGroup {
    let entries: Vec<_> = (0..)
        .zip(resources)
        .map(|(binding, resource)| wgpu::BindGroupEntry {
            binding,
            resource: wgpu::BindingResource::Buffer(resource.clone()),
        })
        .collect();
    device.create_bind_group(&wgpu::BindGroupDescriptor { label: Some(label), layout, entries: &entries })
}

/// Layouts of bind groups 0 (the step) and 1 (a head shard's pools), shared by all kernels and layers.
#[derive(Clone, Debug)]
pub(super) struct SharedLayouts {
    /// Step words and tables, read.
    pub(super) step: wgpu::BindGroupLayout,
    /// Step words, read; tables, written.
    pub(super) step_update: wgpu::BindGroupLayout,
    /// K and V, read.
    pub(super) pools: wgpu::BindGroupLayout,
    /// K and V, written.
    pub(super) pools_append: wgpu::BindGroupLayout,
}

impl SharedLayouts {
    pub(super) fn new(device: &wgpu::Device) -> Self {
        Self {
            step: bind_group_layout(device, "paged.step", &[BindingKind::Read, BindingKind::Read]),
            step_update: bind_group_layout(device, "paged.step_update", &[BindingKind::Read, BindingKind::Write]),
            pools: bind_group_layout(device, "paged.pools", &[BindingKind::Read, BindingKind::Read]),
            pools_append: bind_group_layout(device, "paged.pools_append", &[BindingKind::Write, BindingKind::Write]),
        }
    }
}

/// A pipeline that is compiled when it is first needed; whoever needs it meanwhile waits.
#[derive(Debug, Default)]
pub(super) struct LazyPipeline(Mutex<Option<wgpu::ComputePipeline>>);

impl LazyPipeline {
    pub(super) fn get(
        &self,
        device: &wgpu::Device,
        kernel: &Kernel,
        groups: &[&wgpu::BindGroupLayout],
    ) -> Result<wgpu::ComputePipeline, GpuError> {
        let mut pipeline = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = &*pipeline {
            return Ok(pipeline.clone());
        }
        Ok(pipeline.insert(compile(device, kernel, groups)?).clone())
    }
}

/// Compiles a kernel.
pub(super) fn compile(
    device: &wgpu::Device,
    kernel: &Kernel,
    groups: &[&wgpu::BindGroupLayout],
) -> Result<wgpu::ComputePipeline, GpuError> {
    let label = format!("paged.{kernel}");
    let text = kernel.wgsl(Dialect::Naga)?;
    scoped(device, kernel.name(), 0, || {
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(&label),
            source: wgpu::ShaderSource::Wgsl(text.into()),
        });
        let groups: Vec<_> = groups.iter().copied().map(Some).collect();
        let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(&label),
            bind_group_layouts: &groups,
            immediate_size: 0,
        });
        device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&label),
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                // Every kernel writes its workgroup memory before it reads it.
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        })
    })
}
