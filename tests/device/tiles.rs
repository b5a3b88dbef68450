//! Rows that are served together: by the same query tile in a prompt or a few speculative tokens, or by the tile of a
//! prefix that several sequences share. None of them notices the others.

use crate::common;

use crate::common::batches::{Batches, Part, scenario, v_index};
use crate::common::{gpu, profiles, with_splits};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{DeviceProfile, IoFormat};
use wgpu_paged_attention::testkit::{Gpu, Scenario, ScenarioSpec, ScenarioVariant, changed};

/// The forms of the kernels, all of them with wide tiles, in splits of 16 keys.
fn wide_profiles(gpu: &Gpu) -> Vec<DeviceProfile> {
    let wide = |profile: &DeviceProfile| {
        changed(&with_splits(profile, 16), |it| {
            (it.tile_tokens, it.tile_rows, it.chunk_queries, it.max_loop_rounds) = (16, 16, 9, u32::MAX)
        })
    };
    profiles(gpu).iter().map(wide).collect()
}

/// Narrower tiles for int4: software devices take long to compile its widest ones.
fn profile_for(profile: &DeviceProfile, format: KvDtype) -> DeviceProfile {
    let tile_tokens = if format == KvDtype::Int4 { 4 } else { profile.tile_tokens };
    changed(profile, |it| it.tile_tokens = tile_tokens)
}

/// The first of these on every form of the kernels, the others on the form that software devices compile soonest.
fn formats<T, const N: usize>(profile: &DeviceProfile, all: [T; N]) -> impl Iterator<Item = T> {
    all.into_iter().take(if common::subgroup_lanes(profile).is_some() { N } else { 1 })
}

const FULL: ScenarioVariant =
    ScenarioVariant { window: Some(40), soft_cap: Some(9.0), alibi: true, sinks: true, ..ScenarioVariant::PLAIN };

#[test]
fn a_shared_prefix_gives_the_bits_that_it_gives_unshared() {
    let Some(gpu) = gpu() else { return };
    let halves = ScenarioVariant { causal: false, io_format: IoFormat::F16, ..ScenarioVariant::PLAIN };
    for profile in wide_profiles(&gpu) {
        for (kv_dtype, variant) in
            formats(&profile, [(KvDtype::F16, FULL), (KvDtype::Int4, ScenarioVariant::PLAIN), (KvDtype::F32, halves)])
        {
            // 48 common tokens, three splits: whole ones and one that the shortest two have in part.
            let lens = [60, 48, 57, 70, 50, 90, 41, 33, 64];
            let spec = ScenarioSpec {
                kv_dtype,
                variant,
                shared_blocks: 6,
                block_size: 8,
                lse: true,
                ..ScenarioSpec::decode(4, 2, 16, &lens)
            };
            let profile = profile_for(&profile, kv_dtype);
            let batches = Batches::new(&gpu, &profile, scenario(&spec, 31));
            // Single tokens, and a few at once: some stand inside the common part, and one has nothing of its own. Tiles
            // of 1, 4 and 16 tokens, for every other one is a kernel more to compile.
            for queries in [[1; 9], [3, 4, 3, 4, 1, 1, 4, 3, 3]] {
                let parts = |first: usize| -> Vec<Part> {
                    let part = |(seq, (&len, &queries))| Part { table: first + seq, len, queries };
                    lens.iter().zip(&queries).enumerate().map(part).collect()
                };
                let (shared, apart) = (parts(0), parts(lens.len()));
                let shares = |batch: &[Part]| batches.plan(batch).merges().iter().any(|merge| merge.shared_splits > 0);
                assert!(shares(&shared) && !shares(&apart));
                let rows = batches.run(&shared);
                assert_eq!(rows, batches.run(&apart), "{} {kv_dtype} {queries:?}", profile.lane_comm);
                // The sequences differ, and so do their rows: equal bits are not all the same ones.
                assert_ne!(rows[0][0], rows[2][0]);
            }
        }
    }
}

/// What a value is replaced by, at a position of a sequence, for one KV head and one element.
#[derive(Clone, Copy)]
struct Spoilt {
    table: usize,
    position: u32,
    value: f32,
}

/// The KV head and the element.
const AT: (u32, u32) = (1, 5);

/// Runs a batch with a spoilt value, and with the second copies of its sequences, in which nothing is spoilt; `sees` says
/// which rows (part, query) may show it, and those must: in that element, or in all that share its scale.
fn assert_only_those_that_see_it(
    gpu: &Gpu,
    profile: &DeviceProfile,
    mut scenario: Scenario,
    batch: &[Part],
    spoilt: Spoilt,
    sees: impl Fn(usize, u32) -> bool,
) {
    let index = v_index(&scenario, spoilt.table, spoilt.position, AT.0, AT.1);
    scenario.v[index] = spoilt.value;
    let format = scenario.spec.kv_dtype;
    let what = format!("{} {format} {}", profile.lane_comm, spoilt.value);
    let second = scenario.tables.len() / 2;
    let batches = Batches::new(gpu, profile, scenario);
    let apart: Vec<Part> = batch.iter().map(|part| Part { table: part.table + second, ..*part }).collect();
    let (got, clean) = (batches.run(batch), batches.run(&apart));
    let scenario = &batches.scenario;
    let (group, dim) = (scenario.spec.num_q_heads / scenario.spec.num_kv_heads, scenario.spec.v_dim());
    let shows = |head: u32, d: u32| {
        let unit = |d: u32| d / format.elements_per_unit();
        let scaled = format == KvDtype::Int4;
        head / group == AT.0 && if scaled { unit(d) == unit(AT.1) } else { d == AT.1 }
    };
    let mut shown = 0;
    for (part, (got, clean)) in got.iter().zip(&clean).enumerate() {
        for (query, (got, clean)) in (0..).zip(got.iter().zip(clean)) {
            let at = format!("{what}: query {query} of part {part}");
            assert_eq!(got.lse, clean.lse, "{at}");
            if !sees(part, query) {
                assert_eq!(got, clean, "{at} sees a later token");
                continue;
            }
            shown += 1;
            for (at_element, (&got, &clean)) in (0..).zip(got.out.iter().zip(&clean.out)) {
                if shows(at_element / dim, at_element % dim) {
                    let got = f32::from_bits(got);
                    assert!(!got.is_finite() && (got.is_nan() || got == spoilt.value), "{at}: {got}");
                } else {
                    assert_eq!(got, clean, "{at}, element {at_element}");
                }
            }
        }
    }
    assert!(shown > 0, "{what}: nobody sees it");
}

fn spoilt_scenes(test: impl Fn(&Gpu, &DeviceProfile, ScenarioSpec, f32)) {
    let Some(gpu) = gpu() else { return };
    for profile in wide_profiles(&gpu) {
        for (kv_dtype, value) in formats(
            &profile,
            [(KvDtype::F16, f32::INFINITY), (KvDtype::F32, f32::NAN), (KvDtype::Int4, f32::NEG_INFINITY)],
        ) {
            let spec = ScenarioSpec { kv_dtype, block_size: 8, lse: true, ..ScenarioSpec::decode(4, 2, 24, &[]) };
            test(&gpu, &profile_for(&profile, kv_dtype), spec, value);
        }
    }
}

#[test]
fn a_value_that_is_not_finite_reaches_no_earlier_row_of_a_prompt() {
    spoilt_scenes(|gpu, profile, spec, value| {
        let spec = ScenarioSpec { seq_lens: vec![37, 20], ..spec };
        // A chunk behind a past, in three tiles, and a whole prompt; the token is in the middle of the second tile.
        let batch = [Part { table: 0, len: 37, queries: 33 }, Part { table: 1, len: 20, queries: 20 }];
        let spoilt = Spoilt { table: 0, position: 28, value };
        assert_only_those_that_see_it(gpu, profile, scenario(&spec, 5), &batch, spoilt, |part, query| {
            part == 0 && query + 4 >= 28
        });
    });
}

#[test]
fn a_value_that_is_not_finite_reaches_no_earlier_speculative_token() {
    spoilt_scenes(|gpu, profile, spec, value| {
        let spec = ScenarioSpec { seq_lens: vec![23, 10], ..spec };
        // Two splits, merged, and one that writes its rows at once.
        let batch = [Part { table: 0, len: 23, queries: 4 }, Part { table: 1, len: 10, queries: 3 }];
        // Values of two units, where there are units that share a scale.
        let spec = ScenarioSpec { v_head_dim: Some(40), ..spec };
        for (part, position) in [(0, 21), (1, 8)] {
            let first = [19, 7][part];
            let spoilt = Spoilt { table: part, position, value };
            assert_only_those_that_see_it(gpu, profile, scenario(&spec, 6), &batch, spoilt, |at, query| {
                at == part && first + query >= position
            });
        }
    });
}

#[test]
fn a_value_that_is_not_finite_reaches_no_row_that_shares_its_block_and_does_not_see_it() {
    spoilt_scenes(|gpu, profile, spec, value| {
        // All 32 tokens in common: the queries of the first two stand inside what is shared. Four rows in all.
        let spec = ScenarioSpec { seq_lens: vec![32, 32, 50], shared_blocks: 4, ..spec };
        let parts = |queries| Part { table: 0, len: 32, queries };
        let batch = [parts(2), Part { table: 1, ..parts(1) }, Part { table: 2, len: 50, queries: 1 }];
        let spoilt = Spoilt { table: 0, position: 31, value };
        let first = [30, 31, 49];
        assert_only_those_that_see_it(gpu, profile, scenario(&spec, 7), &batch, spoilt, |part, query| {
            first[part] + query >= 31
        });
        // A window hides what is too far back, for one sequence and not for the other.
        let variant = ScenarioVariant { window: Some(24), ..ScenarioVariant::PLAIN };
        let spec = ScenarioSpec { variant, ..spec };
        let spoilt = Spoilt { table: 0, position: 12, value };
        assert_only_those_that_see_it(gpu, profile, scenario(&spec, 8), &batch, spoilt, |part, _| part < 2);
    });
}

#[test]
fn a_key_that_is_not_a_number_reaches_no_earlier_row_either() {
    let Some(gpu) = gpu() else { return };
    for profile in wide_profiles(&gpu) {
        let spec = ScenarioSpec { block_size: 8, lse: true, ..ScenarioSpec::decode(4, 2, 24, &[30]) };
        let mut scenario = scenario(&spec, 9);
        // K is as wide as V, so its element lies at the same place.
        let index = v_index(&scenario, 0, 21, 0, 3);
        scenario.k[index] = f32::NAN;
        let batches = Batches::new(&gpu, &profile, scenario);
        for queries in [12, 30] {
            let rows = |table| batches.alone(Part { table, len: 30, queries });
            for (query, (got, clean)) in (0..).zip(rows(0).into_iter().zip(rows(1))) {
                let position = 30 - queries + query;
                assert_eq!(got == clean, position < 21, "{} at {position}", profile.lane_comm);
            }
        }
    }
}
