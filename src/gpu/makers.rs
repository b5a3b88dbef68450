//! The form of the attention kernel on the GPUs of each maker, as their compilers take it: docs/GPU-COMPILERS.md.

use crate::gpu::compat;
use crate::gpu::kernel::MATRIX_FEATURES;
use crate::gpu::kernel::attention_shape::AttentionForm;
use crate::gpu::kernel::chunk_form::ChunkForm;
use crate::gpu::kernel::prefill_shape::MATRIX_WORKGROUP_BYTES;
use crate::gpu::kernel::shape::{LaneComm, Scoring};

const AMD: u32 = 0x1002;
const APPLE: u32 = 0x106b;
const INTEL: u32 = 0x8086;
const NVIDIA: u32 = 0x10de;
const QUALCOMM: u32 = 0x5143;

/// Names of adapters that compute on a CPU; not all of them say so in their type.
const SOFTWARE: [&str; 4] = ["llvmpipe", "lavapipe", "swiftshader", "microsoft basic render driver"];

/// What runs everywhere: the lanes meet in workgroup memory.
pub(super) const WITHOUT_SUBGROUPS: AttentionForm = AttentionForm {
    lane_comm: LaneComm::Workgroup { lanes: 64 },
    scoring: Scoring::KeyLanes,
    tile_rows: 4,
    unrolled: false,
    loads: 1,
    whole: false,
    wide_loads: false,
    subgroups: 1,
};

/// The form for an adapter, whose device has these features.
///
/// A compiler that is let alone writes the loops out as far as it has registers, and is done sooner than with loops that
/// were written out before. Only NVIDIA's and lavapipe's leave a loop over registers as it is, and then keep in memory what
/// it indexes. More loads in flight cost registers too: as many as leave room for the waves that hide the rest of a
/// load's latency.
///
/// Lanes across a row of K load whole lines of memory and take few shuffles, but hold more sums: Apple's compiler spills them,
/// and Vega's lanes of 64 would have registers for one subgroup only.
pub(super) fn maker_form(info: &wgpu::AdapterInfo, features: wgpu::Features) -> AttentionForm {
    let software = is_software(info);
    let form = match subgroup_lanes(info, features) {
        Some(lanes) => AttentionForm { lane_comm: LaneComm::Subgroup { lanes }, tile_rows: 8, ..WITHOUT_SUBGROUPS },
        None => WITHOUT_SUBGROUPS,
    };
    match (info.vendor, form.lane_comm) {
        (_, LaneComm::Subgroup { lanes }) if software => {
            // lavapipe computes words of 64 bits in two halves where vectors have 512.
            let wide_loads = lanes <= 8 && features.contains(wgpu::Features::SHADER_INT64);
            let form = AttentionForm { scoring: Scoring::RowLanes, unrolled: true, loads: 2, ..form };
            AttentionForm { tile_rows: 16, wide_loads, ..form }
        }
        _ if software => {
            AttentionForm { tile_rows: 16, wide_loads: features.contains(wgpu::Features::SHADER_INT64), ..form }
        }
        _ if is_apple(info) => AttentionForm { tile_rows: 4, ..form },
        (NVIDIA, LaneComm::Subgroup { .. }) => {
            AttentionForm { scoring: Scoring::RowLanes, unrolled: true, loads: 4, ..form }
        }
        (NVIDIA, LaneComm::Workgroup { .. }) => AttentionForm { unrolled: true, ..form },
        (AMD, LaneComm::Subgroup { lanes: 32 }) => AttentionForm { scoring: Scoring::RowLanes, loads: 8, ..form },
        _ => form,
    }
}

/// How the device of an adapter serves chunks of prompts.
///
/// Where there are registers enough, most instructions of a tile in workgroup memory are multiply-adds. The compilers of
/// Intel and Apple spill there, and AMD's before RDNA leaves room for one wave. Software computes what goes through that
/// memory lane by lane. Matrix units are left to profiles: for 16 rows and 32 keys of 128 elements Mesa's compiler for NVIDIA
/// takes 3,420 instructions with them, 128 of which multiply matrices, and 6,000 without, and as many registers. What that is
/// worth depends on the rate of the units, which differs from GPU to GPU, and none was there to time it.
pub(super) fn maker_chunk_form(info: &wgpu::AdapterInfo) -> ChunkForm {
    match (info.vendor, info.subgroup_min_size) {
        _ if is_software(info) => ChunkForm::QueryTiles,
        (NVIDIA, _) | (AMD, 32) => ChunkForm::WorkgroupTiles { rows: 64 },
        _ => ChunkForm::QueryTiles,
    }
}

impl ChunkForm {
    /// The largest tiles that this device's matrix units multiply; `None` if it was created without
    /// [`matrix_features`], or with less workgroup memory than they take.
    pub fn matrix_tiles(device: &wgpu::Device) -> Option<Self> {
        has_matrices(device.features(), &device.limits()).then(|| matrix_tiles(&compat::adapter_info(device)))
    }
}

fn matrix_tiles(info: &wgpu::AdapterInfo) -> ChunkForm {
    ChunkForm::MatrixTiles { rows: 64, size: matrix_size(info), lanes: largest_subgroup(info) }
}

/// Rows and columns of a matrix. lavapipe's are as small as Apple's.
fn matrix_size(info: &wgpu::AdapterInfo) -> u32 {
    if is_software(info) || is_apple(info) { 8 } else { 16 }
}

/// Whether a device with these features and limits may run them.
pub(super) fn has_matrices(features: wgpu::Features, limits: &wgpu::Limits) -> bool {
    features.contains(MATRIX_FEATURES) && limits.max_compute_workgroup_storage_size >= MATRIX_WORKGROUP_BYTES
}

/// Features to ask for besides [`recommended_features`](crate::gpu::recommended_features), so that prompts may be served by
/// matrix units: none if the adapter has no matrices of the size that its maker's GPUs have, in f16 with sums in f32. wgpu
/// gives them only to who sets [`wgpu::ExperimentalFeatures::enabled`], which is `unsafe`, and the kernels take 32 KiB of
/// workgroup memory, which [`recommended_limits`](crate::gpu::recommended_limits) asks for.
pub fn matrix_features(adapter: &wgpu::Adapter) -> wgpu::Features {
    let size = matrix_size(&adapter.get_info());
    let suits = |it: &wgpu::CooperativeMatrixProperties| {
        let types = (it.ab_type, it.cr_type);
        [it.m_size, it.n_size, it.k_size] == [size; 3]
            && types == (wgpu::CooperativeScalarType::F16, wgpu::CooperativeScalarType::F32)
    };
    if !adapter.features().contains(MATRIX_FEATURES) || !adapter.cooperative_matrix_properties().iter().any(suits) {
        return wgpu::Features::empty();
    }
    MATRIX_FEATURES
}

/// The size of a device's largest subgroups.
pub(super) fn largest_subgroup(info: &wgpu::AdapterInfo) -> u32 {
    if is_apple(info) { 32 } else { info.subgroup_max_size }
}

/// Lanes of a workgroup that is one subgroup; `None` where it is better off without.
fn subgroup_lanes(info: &wgpu::AdapterInfo, features: wgpu::Features) -> Option<u32> {
    let lanes = smallest_subgroup(info, features)?;
    let suits = match info.vendor {
        // The compiler makes a loop of every shuffle.
        QUALCOMM => false,
        // Subgroups of 8, and in these the queries spill; where they are wider, the compiler may still choose 8.
        INTEL => false,
        // Takes minutes to compile a kernel with subgroups.
        _ if info.name.contains("SwiftShader") => false,
        _ if is_software(info) => true,
        _ => lanes >= 16,
    };
    suits.then_some(lanes)
}

/// The size of a device's smallest subgroups, if it has any. A workgroup of no more invocations lies in one subgroup,
/// whichever size the driver picks for it.
pub(crate) fn smallest_subgroup(info: &wgpu::AdapterInfo, features: wgpu::Features) -> Option<u32> {
    let lanes = match info.subgroup_min_size {
        _ if !features.contains(wgpu::Features::SUBGROUP) => return None,
        // wgpu says 4 to 64 of every Metal device; the GPUs of this maker have 32.
        _ if is_apple(info) => 32,
        // Mesa's lavapipe computes on vectors of 512 bits at most, and says 32 lanes where LP_NATIVE_VECTOR_WIDTH is 1024.
        lanes if is_software(info) && lanes > 16 => return None,
        lanes => lanes,
    };
    (lanes.is_power_of_two() && (4..=64).contains(&lanes)).then_some(lanes)
}

/// Whether all subgroups of a device have the size of its smallest.
pub(super) fn has_one_subgroup_size(info: &wgpu::AdapterInfo) -> bool {
    is_apple(info) || info.subgroup_min_size == info.subgroup_max_size
}

/// Whether an adapter computes on a CPU. Not all of them say so in their type.
pub(crate) fn is_software(info: &wgpu::AdapterInfo) -> bool {
    let name = info.name.to_lowercase();
    info.device_type == wgpu::DeviceType::Cpu || SOFTWARE.iter().any(|software| name.contains(software))
}

/// Loop rounds that one invocation may take. Mesa's lavapipe up to version 22 ends every loop, without a word, once an
/// invocation has taken 65,535; that of version 26 does not. Of others nothing is known.
pub(super) fn max_loop_rounds(info: &wgpu::AdapterInfo) -> u32 {
    let mesa = info.driver_info.strip_prefix("Mesa ").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    if is_software(info) && mesa.is_none_or(|version| version < 26) { 65_535 } else { u32::MAX }
}

fn is_apple(info: &wgpu::AdapterInfo) -> bool {
    info.vendor == APPLE || info.name.starts_with("Apple ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use wgpu::{Backend, DeviceType, Features};

    /// The form of an adapter with subgroups.
    fn form(vendor: u32, name: &str, device_type: DeviceType, backend: Backend, sizes: (u32, u32)) -> String {
        let mut info =
            wgpu::AdapterInfo { name: name.to_owned(), vendor, ..wgpu::AdapterInfo::new(device_type, backend) };
        (info.subgroup_min_size, info.subgroup_max_size) = sizes;
        let form = maker_form(&info, Features::SUBGROUP);
        let loops = if form.unrolled { "unrolled" } else { "loops" };
        let chunks = match maker_chunk_form(&info) {
            ChunkForm::QueryTiles => String::new(),
            form => format!(", chunks of {} rows", form.rows()),
        };
        format!("{form} {loops}, {} rows, {} loads{chunks}", form.tile_rows, form.loads)
    }

    #[test]
    fn loop_rounds_are_counted_where_a_driver_may_end_them() {
        let rounds = |device_type, driver_info: &str| {
            let info = wgpu::AdapterInfo::new(device_type, Backend::Vulkan);
            max_loop_rounds(&wgpu::AdapterInfo { driver_info: driver_info.to_owned(), ..info })
        };
        for (driver, expected) in [("Mesa 22.3.6 (LLVM 15.0.6)", 65_535), ("Mesa 26.1.6-1", u32::MAX), ("", 65_535)] {
            assert_eq!(rounds(DeviceType::Cpu, driver), expected, "{driver}");
        }
        assert_eq!(rounds(DeviceType::DiscreteGpu, "Mesa 22.3.6"), u32::MAX);
    }

    #[test]
    fn every_maker_gets_the_form_that_its_compiler_takes() {
        use DeviceType::{Cpu, DiscreteGpu, IntegratedGpu};
        for (vendor, name, device_type, backend, sizes, expected) in [
            (
                NVIDIA,
                "NVIDIA H200",
                DiscreteGpu,
                Backend::Vulkan,
                (32, 32),
                "subgroup32 row-lanes unrolled, 8 rows, 4 loads, chunks of 64 rows",
            ),
            (
                AMD,
                "AMD Radeon RX 7900 XTX",
                DiscreteGpu,
                Backend::Vulkan,
                (32, 64),
                "subgroup32 row-lanes loops, 8 rows, 8 loads, chunks of 64 rows",
            ),
            (
                AMD,
                "AMD Radeon RX 6800",
                DiscreteGpu,
                Backend::Dx12,
                (32, 64),
                "subgroup32 row-lanes loops, 8 rows, 8 loads, chunks of 64 rows",
            ),
            (AMD, "AMD Radeon Vega", DiscreteGpu, Backend::Vulkan, (64, 64), "subgroup64 loops, 8 rows, 1 loads"),
            (AMD, "AMD Radeon Pro 5500M", DiscreteGpu, Backend::Metal, (4, 64), "workgroup64 loops, 4 rows, 1 loads"),
            (
                INTEL,
                "Intel(R) Arc(tm) A770",
                DiscreteGpu,
                Backend::Vulkan,
                (8, 32),
                "workgroup64 loops, 4 rows, 1 loads",
            ),
            (INTEL, "Intel(R) UHD", IntegratedGpu, Backend::Vulkan, (16, 16), "workgroup64 loops, 4 rows, 1 loads"),
            (0, "Apple M2 Pro", IntegratedGpu, Backend::Metal, (4, 64), "subgroup32 loops, 4 rows, 1 loads"),
            (
                APPLE,
                "Apple M1 (G13G B0)",
                IntegratedGpu,
                Backend::Vulkan,
                (32, 32),
                "subgroup32 loops, 4 rows, 1 loads",
            ),
            (
                QUALCOMM,
                "Adreno (TM) 830",
                IntegratedGpu,
                Backend::Vulkan,
                (64, 64),
                "workgroup64 loops, 4 rows, 1 loads",
            ),
            (0x13b5, "Mali-G78", IntegratedGpu, Backend::Vulkan, (16, 16), "subgroup16 loops, 8 rows, 1 loads"),
            (0x13b5, "Mali-G52", IntegratedGpu, Backend::Vulkan, (8, 8), "workgroup64 loops, 4 rows, 1 loads"),
            (
                0x10005,
                "llvmpipe (LLVM 15.0.6, 256 bits)",
                Cpu,
                Backend::Vulkan,
                (8, 8),
                "subgroup8 row-lanes unrolled, 16 rows, 2 loads",
            ),
            (
                0x10005,
                "llvmpipe (LLVM 15.0.6, 1024 bits)",
                Cpu,
                Backend::Vulkan,
                (32, 32),
                "workgroup64 loops, 16 rows, 1 loads",
            ),
            (
                0x1ae0,
                "SwiftShader Device (LLVM 10.0.0)",
                Cpu,
                Backend::Vulkan,
                (4, 4),
                "workgroup64 loops, 16 rows, 1 loads",
            ),
        ] {
            assert_eq!(form(vendor, name, device_type, backend, sizes), expected, "{name}");
        }
        let mut info = wgpu::AdapterInfo::new(DiscreteGpu, Backend::Vulkan);
        (info.vendor, info.subgroup_min_size, info.subgroup_max_size) = (NVIDIA, 32, 32);
        let without = AttentionForm { unrolled: true, ..WITHOUT_SUBGROUPS };
        assert_eq!(maker_form(&info, Features::empty()), without, "the device was made without subgroups");
    }
}
