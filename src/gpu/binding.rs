//! Checks of the caller's buffers, before anything is recorded.

use super::compat;
use super::error::{ArgumentError, DeviceError, GpuError};
use super::profile::DeviceProfile;
use crate::error::PlanError;
use crate::plan::workgroups;

/// A caller's slice, checked, as a binding of exactly the bytes that are needed.
pub(super) fn storage_binding<'a>(
    argument: &'static str,
    slice: wgpu::BufferSlice<'a>,
    elements: u64,
    profile: &DeviceProfile,
) -> Result<wgpu::BufferBinding<'a>, GpuError> {
    let refuse = |problem: String| Err(ArgumentError::new(argument, problem).into());
    let (offset, alignment, given) = (slice.offset(), profile.offset_alignment, compat::slice_bytes(&slice));
    if !slice.buffer().usage().contains(wgpu::BufferUsages::STORAGE) {
        return refuse(format!("lacks the usage {:?}; create the buffer with it", wgpu::BufferUsages::STORAGE));
    }
    if !offset.is_multiple_of(alignment.into()) {
        return refuse(format!(
            "starts at byte {offset}, which is not a multiple of {alignment}, the device's alignment"
        ));
    }
    let needed = element_bytes(argument, elements, profile)?;
    if given < needed {
        return refuse(format!("has {given} bytes, but {needed} are needed"));
    }
    Ok(wgpu::BufferBinding { buffer: slice.buffer(), offset: slice.offset(), size: wgpu::BufferSize::new(needed) })
}

/// Bytes of `elements` 4-byte elements, if one binding may hold them and 32 bits number them.
pub(super) fn element_bytes(what: &'static str, elements: u64, profile: &DeviceProfile) -> Result<u64, DeviceError> {
    let limit = binding_limit(profile);
    let needed = elements.saturating_mul(4);
    if needed > limit {
        return Err(DeviceError::Limit { what, needed, limit });
    }
    Ok(needed)
}

/// Bytes of one binding. Byte offsets wrap at 2^32 on some devices, whatever they offer.
pub(super) fn binding_limit(profile: &DeviceProfile) -> u64 {
    profile.max_binding_bytes.min(u32::MAX.into())
}

/// Refuses a buffer that a dispatch would both read and write.
pub(super) fn check_disjoint<'a>(
    read: impl IntoIterator<Item = (&'static str, &'a wgpu::Buffer)>,
    written: impl IntoIterator<Item = (&'static str, &'a wgpu::Buffer)> + Clone,
) -> Result<(), ArgumentError> {
    for (read, read_buffer) in read {
        for (written, written_buffer) in written.clone() {
            if read_buffer == written_buffer {
                let problem = format!(
                    "and {written} share a buffer; a dispatch cannot read and write the same buffer, so use two"
                );
                return Err(ArgumentError::new(read, problem));
            }
        }
    }
    Ok(())
}

/// The grid for `items`, of which a workgroup serves `per_group`; the kernels number them in 32 bits.
pub(super) fn grid(items: u64, per_group: u32, profile: &DeviceProfile) -> Result<[u32; 3], PlanError> {
    let [x, y, z] = workgroups(items, per_group, profile.max_workgroups_per_dim)?;
    let value = u64::from(x) * u64::from(y) * u64::from(per_group);
    let limit = u64::from(u32::MAX);
    if value > limit {
        return Err(PlanError::TooLarge { what: "invocations", value, limit });
    }
    Ok([x, y, z])
}
