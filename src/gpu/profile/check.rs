//! Whether a device can run the form of a profile: asked before anything is made for it.

use super::DeviceProfile;
use crate::gpu::compat;
use crate::gpu::error::SpecError;
use crate::gpu::kernel::MATRIX_FEATURES;
use crate::gpu::kernel::attention_shape::AttentionShape;
use crate::gpu::kernel::chunk_form::ChunkForm;
use crate::gpu::kernel::prefill_shape::MATRIX_WORKGROUP_BYTES;
use crate::gpu::kernel::shape::{KvShape, LaneComm, Scoring};
use crate::gpu::makers::{has_matrices, has_one_subgroup_size, largest_subgroup, smallest_subgroup};
use crate::plan::MAX_TILE_TOKENS;

/// Beyond, the kernels' positions could wrap.
const MAX_SPLIT_TOKENS: u32 = 1 << 30;

impl DeviceProfile {
    /// Refuses a form that the device cannot run.
    pub(in crate::gpu) fn check(&self, device: &wgpu::Device) -> Result<(), SpecError> {
        self.check_for(&compat::adapter_info(device), device.features(), &device.limits())
    }

    pub(super) fn check_for(
        &self,
        info: &wgpu::AdapterInfo,
        features: wgpu::Features,
        limits: &wgpu::Limits,
    ) -> Result<(), SpecError> {
        let splits = 1..=MAX_SPLIT_TOKENS;
        let lanes = self.lane_comm.lanes();
        let most_lanes = limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x).min(256);
        for (option, value, good, rule) in [
            ("split_tokens", self.split_tokens, splits.contains(&self.split_tokens), "from 1 to 2^30"),
            (
                "chunk_split_tokens",
                self.chunk_split_tokens,
                splits.contains(&self.chunk_split_tokens),
                "from 1 to 2^30",
            ),
            (
                "tile_tokens",
                self.tile_tokens,
                self.tile_tokens.is_power_of_two() && self.tile_tokens <= MAX_TILE_TOKENS,
                "a power of two, up to 16",
            ),
            ("tile_rows", self.tile_rows, (1..=64).contains(&self.tile_rows), "from 1 to 64"),
            (
                "subgroups",
                self.subgroups,
                self.subgroups.is_power_of_two() && self.subgroups <= 8,
                "a power of two, up to 8",
            ),
            ("chunk_form", self.chunk_form.rows(), [16, 32, 64].contains(&self.chunk_form.rows()), "16, 32 or 64 rows"),
            ("loads", self.loads, (1..=16).contains(&self.loads), "from 1 to 16"),
            (
                "lane_comm",
                lanes,
                lanes.is_power_of_two() && (4..=most_lanes).contains(&lanes),
                "a power of two of lanes, from 4 to the invocations of a workgroup",
            ),
        ] {
            if !good {
                return Err(SpecError::new(option, format!("is {value} in the profile; it must be {rule}")));
            }
        }
        if self.wide_loads && !features.contains(wgpu::Features::SHADER_INT64) {
            return Err(SpecError::new("wide_loads", "is true in the profile; the device lacks SHADER_INT64"));
        }
        if self.scoring == Scoring::RowLanes && matches!(self.lane_comm, LaneComm::Workgroup { .. }) {
            return Err(SpecError::new(
                "scoring",
                "is row-lanes in the profile; lanes that meet in workgroup memory cannot",
            ));
        }
        if let Some(lack) = self.chunk_form.lacks(limits) {
            return Err(SpecError::new("chunk_form", format!("is {} in the profile; {lack}", self.chunk_form)));
        }
        let most = smallest_subgroup(info, features).unwrap_or(0);
        if matches!(self.lane_comm, LaneComm::Subgroup { .. }) && lanes > most {
            let rule = format!("this device's subgroups are sure to have {most} lanes");
            return Err(SpecError::new("lane_comm", format!("is {} in the profile; {rule}", self.lane_comm)));
        }
        self.check_matrices(info, features, limits)?;
        self.check_subgroups(info, limits, most)
    }

    /// Matrix units are there, with the memory that they take, and no subgroup is left without work that it must do.
    fn check_matrices(
        &self,
        info: &wgpu::AdapterInfo,
        features: wgpu::Features,
        limits: &wgpu::Limits,
    ) -> Result<(), SpecError> {
        let ChunkForm::MatrixTiles { size, lanes, .. } = self.chunk_form else { return Ok(()) };
        let refused =
            |rule: String| Err(SpecError::new("chunk_form", format!("is {} in the profile; {rule}", self.chunk_form)));
        if !has_matrices(features, limits) {
            let missing = MATRIX_FEATURES.difference(features);
            let memory = limits.max_compute_workgroup_storage_size;
            return refused(format!(
                "it needs {MATRIX_WORKGROUP_BYTES} bytes of workgroup memory, of which the device has {memory}, and features, \
                 of which it lacks {missing:?}"
            ));
        }
        let largest = largest_subgroup(info);
        if ![8, 16].contains(&size) {
            return refused("matrices have 8 or 16 rows".to_owned());
        }
        if !lanes.is_power_of_two() || !(largest..=64).contains(&lanes) {
            return refused(format!("this device's subgroups have up to {largest} lanes, and 64 are the most"));
        }
        Ok(())
    }

    /// Several subgroups of a workgroup are of one size, and all of their lanes are used.
    fn check_subgroups(&self, info: &wgpu::AdapterInfo, limits: &wgpu::Limits, most: u32) -> Result<(), SpecError> {
        let lanes = self.lane_comm.lanes();
        let fits = self.subgroups * lanes <= limits.max_compute_invocations_per_workgroup;
        let is_sure =
            matches!(self.lane_comm, LaneComm::Subgroup { .. }) && lanes == most && has_one_subgroup_size(info);
        if self.subgroups > 1 && !(is_sure && fits) {
            let rule = format!("this device's subgroups are sure to have {most} lanes, if not more");
            let problem = format!("is {} in the profile, for {}; {rule}", self.subgroups, self.lane_comm);
            return Err(SpecError::new("subgroups", problem));
        }
        Ok(())
    }

    /// Refuses a form whose workgroups take more memory, for caches of this shape, than the device has.
    pub(in crate::gpu) fn check_memory(&self, kv: &KvShape, limits: &wgpu::Limits) -> Result<(), SpecError> {
        let (form, memory) = (self.attention_form(), limits.max_compute_workgroup_storage_size);
        let bytes = AttentionShape::most_workgroup_bytes(kv, form);
        if bytes > memory {
            let rule = format!("for {kv} its workgroups take {bytes} bytes of memory, and this device has {memory}");
            return Err(SpecError::new("lane_comm", format!("is {form} in the profile; {rule}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices of every kind of maker, with the limits of WebGPU and below.
    #[test]
    fn a_device_is_never_given_a_form_that_it_cannot_run() {
        let kinds = [(0x10de, 32, 32), (0x1002, 32, 64), (0x1002, 64, 64), (0x8086, 8, 32), (0x106b, 4, 64)];
        for (vendor, min, max) in kinds {
            let mut info = wgpu::AdapterInfo::new(wgpu::DeviceType::DiscreteGpu, wgpu::Backend::Vulkan);
            (info.vendor, info.subgroup_min_size, info.subgroup_max_size) = (vendor, min, max);
            for (invocations, bytes) in [(256, 16_384), (128, 16_384), (127, 16_384), (64, 32_768), (256, 16_352)] {
                let limits = wgpu::Limits {
                    max_compute_invocations_per_workgroup: invocations,
                    max_compute_workgroup_size_x: invocations,
                    max_compute_workgroup_storage_size: bytes,
                    ..wgpu::Limits::default()
                };
                for features in [wgpu::Features::empty(), wgpu::Features::SUBGROUP] {
                    let profile = DeviceProfile::new(&info, features, &limits);
                    assert_eq!(profile.check_for(&info, features, &limits), Ok(()), "{vendor:x} {invocations} {bytes}");
                }
            }
        }
    }

    #[test]
    fn chunks_that_a_device_is_too_small_for_are_refused_with_the_limit() {
        let info = wgpu::AdapterInfo::new(wgpu::DeviceType::DiscreteGpu, wgpu::Backend::Vulkan);
        let mut profile = DeviceProfile::new(&info, wgpu::Features::empty(), &wgpu::Limits::default());
        profile.chunk_form = ChunkForm::WorkgroupTiles { rows: 32 };
        let refused = |change: fn(&mut wgpu::Limits)| {
            let mut limits = wgpu::Limits::default();
            change(&mut limits);
            profile.check_for(&info, wgpu::Features::empty(), &limits).unwrap_err().to_string()
        };
        let few = refused(|it| it.max_compute_invocations_per_workgroup = 64);
        assert!(
            few.contains("workgroup-tiles32") && few.contains("128 invocations") && few.contains("allows 64"),
            "{few}"
        );
        let narrow = refused(|it| it.max_compute_workgroup_size_x = 100);
        assert!(narrow.contains("allows 100"), "{narrow}");
        let small = refused(|it| it.max_compute_workgroup_storage_size = 8192);
        assert!(small.contains("16384 bytes") && small.contains("has 8192"), "{small}");
    }

    #[test]
    fn workgroups_that_take_more_memory_than_a_device_has_are_refused_for_the_heads_that_need_it() {
        use crate::formats::KvDtype;
        let info = wgpu::AdapterInfo::new(wgpu::DeviceType::DiscreteGpu, wgpu::Backend::Vulkan);
        let mut profile = DeviceProfile::new(&info, wgpu::Features::empty(), &wgpu::Limits::default());
        profile.tile_rows = 16;
        let check = |profile: &DeviceProfile, head_dim, bytes| {
            let kv = KvShape { format: KvDtype::F16, head_dim, v_head_dim: head_dim, block_size: 16 };
            let limits = wgpu::Limits { max_compute_workgroup_storage_size: bytes, ..wgpu::Limits::default() };
            profile.check_memory(&kv, &limits)
        };
        assert_eq!(check(&profile, 128, 16_384), Ok(()));
        assert_eq!(check(&profile, 16, 8192), Ok(()));
        // 16 rows of 512 + 256 bytes, and 1,296 besides.
        let refused = check(&profile, 128, 8192).unwrap_err().to_string();
        for part in ["lane_comm", "workgroup64", "f16 d128", "13584 bytes", "has 8192"] {
            assert!(refused.contains(part), "{refused}");
        }
        profile.lane_comm = LaneComm::Subgroup { lanes: 32 };
        assert_eq!(check(&profile, 128, 0), Ok(()), "shuffles take no memory");
    }
}
