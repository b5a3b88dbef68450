//! The calls that differ between the major versions of wgpu. Written for wgpu 30.

use std::ops::RangeBounds;

/// Bytes of a slice.
pub(crate) fn slice_bytes(slice: &wgpu::BufferSlice<'_>) -> u64 {
    slice.size()
}

/// What a mapped buffer holds, to be read; `None` if it is not mapped.
pub(crate) fn mapped(buffer: &wgpu::Buffer) -> Option<wgpu::BufferView> {
    buffer.get_mapped_range(..).ok()
}

/// A part of a mapped buffer, to be written; `None` if it is not mapped.
pub(crate) fn mapped_mut(buffer: &wgpu::Buffer, range: impl RangeBounds<u64>) -> Option<wgpu::BufferViewMut> {
    buffer.get_mapped_range_mut(range).ok()
}

/// The adapter that a device was created on.
pub(crate) fn adapter_info(device: &wgpu::Device) -> wgpu::AdapterInfo {
    device.adapter_info()
}

/// A pipeline layout with these bind groups and no immediates.
pub(crate) fn pipeline_layout(
    device: &wgpu::Device,
    label: &str,
    groups: &[&wgpu::BindGroupLayout],
) -> wgpu::PipelineLayout {
    let groups: Vec<_> = groups.iter().copied().map(Some).collect();
    device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(label),
        bind_group_layouts: &groups,
        immediate_size: 0,
    })
}
