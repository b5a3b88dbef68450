//! What differs between drivers: the size of a subgroup.

use crate::common;

use std::process::Command;

use crate::common::{gpu, is_lavapipe, with_splits};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::DeviceProfile;
use wgpu_paged_attention::testkit::{ScenarioSpec, skip};

/// Tells a child process which form of the kernels it must find.
const EXPECT_LANE_COMM: &str = "PAGED_ATTENTION_EXPECT_LANE_COMM";

#[test]
fn this_drivers_subgroups_give_right_results() {
    let Some(gpu) = gpu() else { return };
    let profile = DeviceProfile::of(&gpu.device);
    if let Ok(expected) = std::env::var(EXPECT_LANE_COMM) {
        assert_eq!(profile.lane_comm.to_string(), expected);
    }
    // narrow rows leave several key groups, wide ones several slices; odd ones neither evenly
    let shapes = [(4, 2, 8), (3, 1, 20), (2, 2, 64), (9, 1, 40)];
    for (turn, kv_dtype) in KvDtype::ALL.into_iter().enumerate() {
        let (num_q_heads, num_kv_heads, head_dim) = shapes[turn % shapes.len()];
        let lens = [1, 31, 0, 32, 33, 65, 150];
        let spec =
            ScenarioSpec { kv_dtype, lse: true, ..ScenarioSpec::decode(num_q_heads, num_kv_heads, head_dim, &lens) };
        common::check(&gpu, &with_splits(&profile, 64), &spec, 5);
    }
}

/// Mesa's software driver has subgroups as wide as the vectors it is told to use, so a CPU can show three sizes. Of the
/// fourth it only says so: its vectors end at 512 bits.
#[test]
fn every_size_of_subgroup_that_the_software_driver_can_take_is_right() {
    let Some(gpu) = gpu() else { return };
    if !is_lavapipe(&gpu) {
        return skip(None, &format!("{} has one size of subgroup", gpu.info.name));
    }
    for (bits, lane_comm) in [(128, "subgroup4"), (256, "subgroup8"), (512, "subgroup16"), (1024, "workgroup64")] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "driver::this_drivers_subgroups_give_right_results", "--nocapture"])
            .env("LP_NATIVE_VECTOR_WIDTH", bits.to_string())
            .env(EXPECT_LANE_COMM, lane_comm)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{lane_comm}: {said}\n{}", String::from_utf8_lossy(&child.stderr));
        assert!(said.contains("1 passed"), "{lane_comm} ran no test: {said}");
    }
}
