//! Some drivers end every loop of an invocation after 65,535 rounds without a word: the canary, and the budget that the
//! library keeps because of it.

use crate::common::{gpu, profiles, run, with_splits};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{DeviceError, DeviceProfile, GpuError};
use wgpu_paged_attention::testkit::{Gpu, Scenario, ScenarioSpec, Verdict, changed};
use wgpu_paged_attention::wgpu;

const ROUNDS: u32 = 70_000;
const CAP: u32 = 65_535;

/// Rounds that one invocation completes of 70,000.
fn count_rounds(gpu: &Gpu) -> u32 {
    let source = "
        @group(0) @binding(0) var<storage, read_write> words: array<u32>;
        @compute @workgroup_size(1) fn main() {
            var rounds = 0u;
            for (var i = 0u; i < words[0]; i++) { rounds += 1u + (words[1] & i); }
            words[2] = rounds;
        }";
    let module = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some("canary"),
        source: wgpu::ShaderSource::Wgsl(source.into()),
    });
    let pipeline = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some("canary"),
        layout: None,
        module: &module,
        entry_point: None,
        compilation_options: Default::default(),
        cache: None,
    });
    let words = gpu.storage("words", &[ROUNDS, 0, 0]);
    let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some("canary"),
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: words.as_entire_binding() }],
    });
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
    }
    gpu.submit(encoder);
    gpu.read::<u32>(&words).unwrap()[2]
}

#[test]
fn the_profile_knows_whether_the_driver_ends_long_loops() {
    let Some(gpu) = gpu() else { return };
    let rounds = count_rounds(&gpu);
    println!("{}: {rounds} of {ROUNDS} rounds", gpu.info.name);
    let limit = DeviceProfile::of(&gpu.device).max_loop_rounds;
    assert!(rounds == ROUNDS || rounds.abs_diff(CAP) <= 1, "a third kind of driver: {rounds} rounds");
    if rounds != ROUNDS {
        assert!(limit <= CAP, "the driver stops at {rounds}, but the profile allows {limit}");
    }
}

#[test]
fn a_row_longer_than_any_loop_may_run_is_right() {
    let Some(gpu) = gpu() else { return };
    let spec =
        ScenarioSpec { kv_dtype: KvDtype::F32, lse: true, ..ScenarioSpec::decode(1, 1, 4, &[33_000, 70_001, 9]) };
    let scenario = Scenario::random(&spec, 21).unwrap();
    for profile in profiles(&gpu) {
        let outcome = run(&gpu, &profile, &scenario);
        assert!(scenario.judge(&outcome).is_ok(), "{}: {:?}", profile.lane_comm, scenario.judge(&outcome));
    }
}

/// The longest split of one invocation that the budget allows for a scenario, doubled from 128 up, and what refuses the next.
fn longest_split(gpu: &Gpu, profile: &DeviceProfile, scenario: &Scenario) -> (u32, Option<GpuError>) {
    let mut longest = 0;
    for split_tokens in (7..=20).map(|log| 1 << log) {
        match scenario.run(gpu, &with_splits(profile, split_tokens), None) {
            Ok(outcome) => {
                assert!(scenario.judge(&outcome).is_ok(), "{} in splits of {split_tokens}", profile.lane_comm);
                longest = split_tokens;
            }
            Err(Verdict::Gpu(error @ GpuError::Device(DeviceError::LoopRounds { .. }))) => {
                return (longest, Some(error));
            }
            Err(error) => panic!("{error}"),
        }
    }
    (longest, None)
}

#[test]
fn splits_as_long_as_the_budget_allows_are_right_and_longer_ones_are_refused() {
    let Some(gpu) = gpu() else { return };
    let spec = ScenarioSpec { kv_dtype: KvDtype::F32, ..ScenarioSpec::decode(1, 1, 8, &[70_000]) };
    let scenario = Scenario::random(&spec, 22).unwrap();
    for profile in profiles(&gpu) {
        // Whatever the driver can take, up to the cap, and far less than one split of all 70,000 tokens needs.
        for limit in [CAP, 4_000] {
            let capped = changed(&profile, |it| it.max_loop_rounds = limit);
            let (longest, refused) = longest_split(&gpu, &capped, &scenario);
            println!("{}: splits of {longest} within {limit} rounds", capped.lane_comm);
            assert!(longest >= 1024, "{}: splits of {longest} within {limit} rounds", capped.lane_comm);
            if limit < CAP || longest < 70_000 {
                let refused = refused.expect("a split of all tokens takes more rounds");
                let above = |rounds: u64| rounds > u64::from(limit);
                let named = matches!(refused, GpuError::Device(DeviceError::LoopRounds { rounds, limit: got }) if above(rounds) && got == limit);
                assert!(named, "{refused:?}");
                assert!(refused.to_string().contains("use smaller splits"), "{refused}");
            }
        }
    }
}

#[test]
fn many_short_splits_of_a_long_row_are_within_the_budget_or_refused() {
    let Some(gpu) = gpu() else { return };
    let spec = ScenarioSpec { kv_dtype: KvDtype::F32, ..ScenarioSpec::decode(1, 1, 8, &[20_000]) };
    let scenario = Scenario::random(&spec, 23).unwrap();
    for profile in profiles(&gpu) {
        let capped = changed(&profile, |it| it.max_loop_rounds = CAP);
        // 20,000 splits are merged by loops as well; 313 are few.
        for (split_tokens, fits) in [(1, false), (64, true)] {
            match scenario.run(&gpu, &with_splits(&capped, split_tokens), None) {
                Ok(outcome) => assert!(fits && scenario.judge(&outcome).is_ok(), "splits of {split_tokens}"),
                Err(Verdict::Gpu(GpuError::Device(DeviceError::LoopRounds { rounds, limit: CAP }))) => {
                    assert!(!fits && rounds > CAP.into(), "splits of {split_tokens}: {rounds} rounds");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}
