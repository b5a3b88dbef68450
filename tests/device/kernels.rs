//! Every kernel variant against the oracle: shapes, storage, splits, and errors planted on purpose.

use crate::common;

use crate::common::{check, check_faults, gpu, profiles, with_splits};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{DeviceProfile, LaneComm, Scoring};
use wgpu_paged_attention::testkit::{Fault, Scenario, ScenarioSpec, changed};

/// A shape on every form of the kernels, on one in f16 and on the other in another format; shapes take turns, for drivers
/// take their time to compile, and `grid.rs` draws every pair.
fn everywhere(spec: &ScenarioSpec) {
    let Some(gpu) = gpu() else { return };
    let turn = (spec.head_dim + spec.block_size) as usize;
    for (form, profile) in profiles(&gpu).iter().enumerate() {
        let kv_dtype =
            if (form + turn).is_multiple_of(2) { KvDtype::F16 } else { KvDtype::ALL[turn % KvDtype::ALL.len()] };
        check(&gpu, profile, &ScenarioSpec { kv_dtype, ..spec.clone() }, 1);
    }
}

#[test]
fn lengths_around_every_block_edge_are_right_for_every_block_size() {
    for block_size in [1, 5, 8, 16, 17, 32, 64, 128] {
        let b = block_size;
        let lens = [0, 1, b - 1, b, b + 1, 2 * b, 3 * b + 2, 0, 150];
        everywhere(&ScenarioSpec { block_size, lse: true, ..ScenarioSpec::decode(2, 1, 16, &lens) });
    }
}

#[test]
fn every_head_dim_is_right_whatever_it_is_divisible_by() {
    // Software devices take seconds to compile a wide head for several query heads, so the wide ones serve one.
    for (group, head_dim) in [(3, 1), (3, 4), (3, 5), (3, 8), (3, 12), (3, 40), (2, 64), (1, 100), (1, 128), (1, 200)] {
        everywhere(&ScenarioSpec::decode(group, 1, head_dim, &[1, 33, 16]));
    }
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        check(&gpu, &profile, &ScenarioSpec::decode(1, 1, 256, &[1, 33, 16]), 1);
    }
}

#[test]
fn a_contiguous_cache_gives_what_a_paged_one_gives() {
    for paged in [true, false] {
        everywhere(&ScenarioSpec { paged, lse: true, ..ScenarioSpec::decode(4, 2, 64, &[1, 15, 16, 17, 0, 40, 130]) });
    }
}

#[test]
fn prompts_and_chunks_and_single_tokens_may_share_a_batch() {
    for paged in [true, false] {
        let spec = ScenarioSpec { paged, lse: true, ..ScenarioSpec::decode(4, 2, 24, &[20, 37, 1, 0, 64, 5]) };
        // a whole prompt, a chunk of one, a first token, nothing, one token behind a long past, more queries than keys
        everywhere(&ScenarioSpec { query_lens: Some(vec![20, 9, 1, 0, 1, 8]), ..spec });
    }
}

#[test]
fn sequences_may_share_their_first_blocks() {
    for shared_blocks in [1, 3] {
        everywhere(&ScenarioSpec { shared_blocks, ..ScenarioSpec::decode(4, 1, 40, &[50, 64, 17, 90, 16]) });
    }
}

#[test]
fn a_row_is_right_in_one_split_and_in_many() {
    let Some(gpu) = gpu() else { return };
    // 256 tokens in 1, 2, 8 and 64 splits, and in pieces that fit neither block nor tile
    for split_tokens in [256, 128, 32, 4, 37, 1] {
        for profile in profiles(&gpu) {
            for lse in [false, true] {
                let spec = ScenarioSpec { lse, ..ScenarioSpec::decode(4, 2, 24, &[1, 17, 0, 256, 255, 33]) };
                check(&gpu, &with_splits(&profile, split_tokens), &spec, 3);
            }
        }
    }
}

#[test]
fn a_split_prompt_is_right_too() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        let spec = ScenarioSpec { query_lens: Some(vec![33, 1, 70]), ..ScenarioSpec::decode(2, 1, 16, &[40, 90, 70]) };
        for chunk_queries in [profile.chunk_queries, u32::MAX] {
            check(&gpu, &changed(&with_splits(&profile, 16), |it| it.chunk_queries = chunk_queries), &spec, 4);
        }
    }
}

#[test]
fn every_form_of_a_gpu_is_right_here_too() {
    let Some(gpu) = gpu() else { return };
    let own = DeviceProfile::of(&gpu.device);
    let mut forms = vec![(LaneComm::Workgroup { lanes: 64 }, false, 4), (LaneComm::Workgroup { lanes: 32 }, false, 2)];
    if let LaneComm::Subgroup { lanes } = own.lane_comm {
        // A workgroup may be a part of a subgroup.
        let part = LaneComm::Subgroup { lanes: (lanes / 2).max(4) };
        forms.extend([(own.lane_comm, false, 4), (own.lane_comm, true, 2), (part, false, 1)]);
    }
    let shapes = [(KvDtype::F16, 80), (KvDtype::Int4, 64), (KvDtype::F32, 20)];
    for ((lane_comm, unrolled, loads), (kv_dtype, head_dim)) in forms.into_iter().zip(shapes.into_iter().cycle()) {
        let form = changed(&own, |it| {
            // What all of these can do; tests/device/forms.rs has the other ways to score.
            (it.lane_comm, it.scoring, it.unrolled, it.loads) = (lane_comm, Scoring::KeyLanes, unrolled, loads);
            // Few keys take few rounds; a driver that counts them would get its own form.
            it.max_loop_rounds = u32::MAX;
            (it.tile_rows, it.tile_tokens, it.chunk_queries, it.split_tokens) = (4, 2, 9, 64);
        });
        let decode = ScenarioSpec { kv_dtype, ..ScenarioSpec::decode(4, 2, head_dim, &[70, 33, 1]) };
        let prompts = ScenarioSpec { query_lens: Some(vec![40, 13, 1]), ..decode.clone() };
        check(&gpu, &form, &decode, 11);
        check(&gpu, &form, &prompts, 12);
    }
}

#[test]
fn the_oracle_notices_a_missing_block_and_a_stray_one_on_every_variant() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for kv_dtype in KvDtype::ALL {
            for paged in [true, false] {
                for split_tokens in [profile.split_tokens, 16] {
                    let spec = ScenarioSpec { kv_dtype, paged, ..ScenarioSpec::decode(2, 2, 16, &[40, 19]) };
                    let scenario = Scenario::random(&spec, 5).unwrap();
                    let profile = with_splits(&profile, split_tokens);
                    check_faults(&gpu, &profile, &scenario, &[Fault::SkipLastBlock, Fault::StrayBlock]);
                }
            }
        }
    }
}

#[test]
fn the_oracle_notices_an_output_that_is_off_by_little() {
    let Some(gpu) = gpu() else { return };
    let scenario = Scenario::random(&ScenarioSpec { lse: true, ..ScenarioSpec::decode(2, 1, 8, &[20]) }, 6).unwrap();
    let good = common::run(&gpu, &profiles(&gpu)[0], &scenario);
    assert!(scenario.judge(&good).is_ok());
    for wrong in [1e-4, f32::NAN] {
        let mut bad = good.clone();
        bad.out[11] += wrong;
        assert!(scenario.judge(&bad).is_err(), "{wrong} in the output");
        let mut bad = good.clone();
        bad.lse[1] += wrong;
        assert!(scenario.judge(&bad).is_err(), "{wrong} in the log-sum-exp");
    }
    let mut short = good;
    short.out.pop();
    assert!(scenario.judge(&short).is_err());
}
