//! The whole grid, sampled: a round of seeds holds every pair of step form, format, table, variant and form of the kernels.

use crate::common::{check, check_faults, gpu, profiles, with_splits};
use wgpu_paged_attention::gpu::{DeviceProfile, IoFormat};
use wgpu_paged_attention::testkit::{Drawn, Fault, Scenario, draw, draws_in_a_round, setting};

/// The first seed. A round that failed is repeated alone by its seed and one round.
pub const SEED: &str = "PAGED_ATTENTION_SEED";
/// How many seeds are tried, one after the other.
pub const ROUNDS: &str = "PAGED_ATTENTION_ROUNDS";

fn profile(profiles: &[DeviceProfile], drawn: &Drawn) -> DeviceProfile {
    let profile = &profiles[usize::from(!drawn.subgroups) % profiles.len()];
    with_splits(profile, drawn.split_tokens.unwrap_or(profile.split_tokens))
}

#[test]
fn whatever_a_seed_draws_is_right() {
    let Some(gpu) = gpu() else { return };
    let profiles = profiles(&gpu);
    let (first, rounds) = (setting(SEED, 2026), setting(ROUNDS, draws_in_a_round()));
    println!("{SEED}={first} {ROUNDS}={rounds}");
    for seed in first..first.saturating_add(rounds) {
        let drawn = draw(seed);
        check(&gpu, &profile(&profiles, &drawn), &drawn.spec, seed);
    }
}

#[test]
fn faults_are_noticed_in_what_a_seed_draws() {
    let Some(gpu) = gpu() else { return };
    let profiles = profiles(&gpu);
    let first = setting(SEED, 2026);
    println!("{SEED}={first}");
    for fault in Fault::ALL {
        for seed in first.. {
            let mut drawn = draw(seed);
            // An output in f16 forgives what is smaller than its last place.
            drawn.spec.variant.io_format = IoFormat::F32;
            if fault.shows_in(&drawn.spec) {
                let scenario = Scenario::random(&drawn.spec, seed).unwrap();
                check_faults(&gpu, &profile(&profiles, &drawn), &scenario, &[fault]);
                break;
            }
        }
    }
}
