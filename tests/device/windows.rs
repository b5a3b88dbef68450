//! Windows: what they cost follows the keys that are seen, and every way to see them gives the right values.

use crate::common::{bits, check, gpu, profiles, run, with_splits};
use wgpu_paged_attention::gpu::DeviceProfile;
use wgpu_paged_attention::testkit::{Scenario, ScenarioSpec, ScenarioVariant, changed};

/// Sequences whose windows of 16 and less lie inside a split of 64, straddle two, and begin at an edge.
const LENS: [u32; 9] = [1, 10, 63, 64, 65, 79, 80, 128, 200];

fn spec(window: Option<u32>, causal: bool) -> ScenarioSpec {
    let variant = ScenarioVariant { window, causal, sinks: true, ..ScenarioVariant::PLAIN };
    ScenarioSpec { variant, lse: true, ..ScenarioSpec::decode(4, 2, 16, &LENS) }
}

/// Profiles with splits of 64 keys, in chunks as well.
fn splits(profile: &DeviceProfile) -> DeviceProfile {
    changed(&with_splits(profile, 64), |it| it.chunk_split_tokens = 64)
}

#[test]
fn x07_rows_whose_window_lies_inside_one_split_are_right() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        let profile = splits(&profile);
        for (window, causal) in [(Some(16), true), (None, true), (Some(16), false)] {
            let decode = spec(window, causal);
            // Speculative queries, and chunks of a prompt, some with more queries than tokens.
            let few = ScenarioSpec { query_lens: Some(vec![1, 2, 3, 4, 4, 4, 2, 5, 3]), ..decode.clone() };
            let chunks = ScenarioSpec { query_lens: Some(vec![1, 11, 63, 20, 65, 9, 80, 100, 77]), ..decode.clone() };
            let shared = ScenarioSpec { shared_blocks: 8, ..few.clone() };
            for (seed, spec) in [decode, few, chunks, shared].iter().enumerate() {
                check(&gpu, &profile, spec, seed as u64);
            }
        }
    }
}

#[test]
fn x07_sharing_the_only_split_that_a_row_sees_changes_no_bit() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        let profile = splits(&profile);
        for window in [None, Some(5), Some(16), Some(70)] {
            // All begin with the same 64 tokens; the windows of some lie inside them, of others past them or across.
            let lens = [64, 64, 66, 80, 130];
            let spec = ScenarioSpec {
                shared_blocks: 4,
                query_lens: Some(vec![1, 2, 3, 1, 2]),
                ..ScenarioSpec { seq_lens: lens.to_vec(), ..spec(window, true) }
            };
            let scenario = Scenario::random(&spec, 7).unwrap();
            let together = run(&gpu, &profile, &scenario);
            scenario.judge(&together).unwrap();
            let alone = run(&gpu, &changed(&profile, |it| it.share_prefixes = false), &scenario);
            assert_eq!(bits(&together.out), bits(&alone.out), "{window:?}");
            assert_eq!(bits(&together.lse), bits(&alone.lse), "{window:?}");
        }
    }
}
