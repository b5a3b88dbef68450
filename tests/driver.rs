//! What differs between drivers: the size of a subgroup, and how long a loop may run.

mod common;

use std::process::Command;

use common::{gpu, is_lavapipe, profiles, with_splits};
use wgpu_paged_attention::config::KvFormat;
use wgpu_paged_attention::gpu::DeviceProfile;
use wgpu_paged_attention::harness::SceneSpec;
use wgpu_paged_attention::wgpu;

/// Tells a child process which form of the kernels it must find.
const EXPECT_EXCHANGE: &str = "PAGED_ATTENTION_EXPECT_EXCHANGE";

#[test]
fn this_drivers_subgroups_give_right_results() {
    let Some(gpu) = gpu() else { return };
    let profile = DeviceProfile::of(&gpu.device);
    if let Ok(expected) = std::env::var(EXPECT_EXCHANGE) {
        assert_eq!(profile.exchange.to_string(), expected);
    }
    for kv_format in KvFormat::ALL {
        // narrow rows leave several key groups, wide ones several slices; odd ones neither evenly
        for (num_q_heads, num_kv_heads, head_dim) in [(4, 2, 8), (3, 1, 20), (2, 2, 64), (9, 1, 40)] {
            let lens = [1, 31, 0, 32, 33, 65, 150];
            let spec =
                SceneSpec { kv_format, lse: true, ..SceneSpec::decode(num_q_heads, num_kv_heads, head_dim, &lens) };
            common::check(&gpu, &with_splits(&profile, 64), &spec, 5);
        }
    }
}

/// Mesa's software driver has subgroups as wide as the vectors it is told to use, so a CPU can show three sizes. Of the
/// fourth it only says so: its vectors end at 512 bits.
#[test]
fn every_size_of_subgroup_that_the_software_driver_can_take_is_right() {
    let Some(gpu) = gpu() else { return };
    if !is_lavapipe(&gpu) {
        println!("skipped: {} has one size of subgroup", gpu.info.name);
        return;
    }
    for (bits, exchange) in [(128, "subgroup4"), (256, "subgroup8"), (512, "subgroup16"), (1024, "workgroup64")] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "this_drivers_subgroups_give_right_results", "--nocapture"])
            .env("LP_NATIVE_VECTOR_WIDTH", bits.to_string())
            .env(EXPECT_EXCHANGE, exchange)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "{exchange}: {said}\n{}", String::from_utf8_lossy(&child.stderr));
        assert!(said.contains("1 passed"), "{exchange} ran no test: {said}");
    }
}

/// A canary: some drivers end a loop, without a word, after 65,535 rounds. Where this one does, the profile must know.
#[test]
fn the_profile_knows_if_this_driver_ends_loops_early() {
    let Some(gpu) = gpu() else { return };
    let rounds: u32 = 70_000;
    let text = "@group(0) @binding(0) var<storage, read_write> rounds: array<u32>;
        @compute @workgroup_size(1) fn main() {
            var done = 0u;
            for (var i = 0u; i < rounds[0]; i++) { done += 1u + (rounds[1] & i); }
            rounds[2] = done;
        }";
    let module = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some("canary"),
        source: wgpu::ShaderSource::Wgsl(text.into()),
    });
    let pipeline = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some("canary"),
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let buffer = gpu.storage("rounds", &[rounds, 0, 0]);
    let bindings = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some("canary"),
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }],
    });
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &bindings, &[]);
        pass.dispatch_workgroups(1, 1, 1);
    }
    gpu.submit(encoder);
    let done = gpu.read::<u32>(&buffer).unwrap()[2];
    println!("{}: {done} of {rounds} rounds", gpu.info.name);
    for profile in profiles(&gpu) {
        assert!(done == rounds || profile.max_loop_rounds <= done, "loops end after {done}, the profile allows more");
    }
}
