//! Chunks of prompts by the kernel of their own, whichever form a device would choose: every storage format, head and option,
//! ragged chunks behind ragged prefixes, and errors that must be noticed.

use crate::common::batches::{Batches, Part, scenario, v_index};
use crate::common::{check, check_faults, gpu, matrix_form, run};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{ChunkForm, DeviceProfile, IoFormat};
use wgpu_paged_attention::plan::CHUNK_CLASS;
use wgpu_paged_attention::testkit::{Fault, Gpu, Scenario, ScenarioSpec, ScenarioVariant, changed};

/// Tiles of the rows that makers get, and of fewer, with a format for each.
fn forms(formats: [KvDtype; 3]) -> [(ChunkForm, KvDtype); 3] {
    std::array::from_fn(|at| (ROWS[at], formats[at]))
}

/// The same, and as many that matrix units multiply where the device has any: these serve f16.
fn all_forms(gpu: &Gpu, formats: [KvDtype; 3]) -> Vec<(ChunkForm, KvDtype)> {
    let tiles = [64, 32, 16].map(|rows| matrix_form(gpu, rows).zip(Some(KvDtype::F16)));
    forms(formats).into_iter().chain(tiles.into_iter().flatten()).collect()
}

/// (heads of a group, width of K, of V): widths that fill slices and lines, and widths that do not.
const SHAPES: [(u32, u32, Option<u32>); 10] = [
    (4, 128, None),
    (1, 64, None),
    (3, 5, Some(1)),
    (1, 80, Some(40)),
    (2, 1, Some(9)),
    (7, 20, Some(36)),
    (1, 256, None),
    (1, 16, Some(512)),
    (71, 8, None),
    (2, 96, Some(200)),
];
const ROWS: [ChunkForm; 3] = [
    ChunkForm::WorkgroupTiles { rows: 64 },
    ChunkForm::WorkgroupTiles { rows: 32 },
    ChunkForm::WorkgroupTiles { rows: 16 },
];

const FULL: ScenarioVariant =
    ScenarioVariant { window: Some(40), soft_cap: Some(9.0), alibi: true, sinks: true, ..ScenarioVariant::PLAIN };
const WHOLE: ScenarioVariant = ScenarioVariant { causal: false, io_format: IoFormat::F16, ..ScenarioVariant::PLAIN };

/// The device's profile with chunks served in this form, in splits of so many keys.
fn profile(gpu: &Gpu, chunk_form: ChunkForm, chunk_split_tokens: u32) -> DeviceProfile {
    changed(&DeviceProfile::of(&gpu.device).without_subgroups(), |it| {
        (it.chunk_form, it.chunk_queries, it.chunk_split_tokens) = (chunk_form, 9, chunk_split_tokens);
        // Few keys take few rounds.
        it.max_loop_rounds = u32::MAX;
    })
}

/// Chunks of these lengths, each behind a prefix that is as long as no other.
fn chunks(spec: ScenarioSpec, queries: &[u32]) -> ScenarioSpec {
    let prefixes = [0, 1, 33, 64, 7, 100, 0, 250];
    let lens = queries.iter().zip(prefixes.into_iter().cycle()).map(|(queries, prefix)| queries + prefix);
    ScenarioSpec { seq_lens: lens.collect(), query_lens: Some(queries.to_vec()), ..spec }
}

#[test]
fn ragged_chunks_behind_ragged_prefixes_are_right() {
    let Some(gpu) = gpu() else { return };
    for ((form, kv_dtype), num_q_heads) in
        all_forms(&gpu, [KvDtype::F16; 3]).into_iter().zip([8, 2, 6].into_iter().cycle())
    {
        for split in [16_384, 96] {
            let spec = ScenarioSpec { lse: true, ..ScenarioSpec::decode(num_q_heads, 2, 40, &[]) };
            let spec = chunks(ScenarioSpec { kv_dtype, ..spec }, &[9, 15, 17, 63, 64, 65, 300, 1, 2]);
            check(&gpu, &profile(&gpu, form, split), &spec, 41);
        }
    }
}

#[test]
fn every_format_with_heads_of_every_width_is_right() {
    let Some(gpu) = gpu() else { return };
    for (turn, (group, head_dim, v_head_dim)) in SHAPES.into_iter().enumerate() {
        for (at, kv_dtype) in KvDtype::ALL.into_iter().enumerate() {
            // Each width meets half of the formats.
            if (turn + at).is_multiple_of(2) {
                continue;
            }
            let variant = [ScenarioVariant::PLAIN, FULL][(turn / 2 + at) % 2];
            let spec = ScenarioSpec {
                kv_dtype,
                v_head_dim,
                variant,
                block_size: [16, 5, 128][(turn + at) % 3],
                ..ScenarioSpec::decode(group, 1, head_dim, &[])
            };
            let spec = chunks(ScenarioSpec { lse: true, ..spec }, &[20, 70]);
            check(&gpu, &profile(&gpu, ROWS[(turn + at) % 3], 16_384), &spec, 42);
        }
    }
}

#[test]
fn matrix_units_are_right_for_heads_of_every_width() {
    let Some(gpu) = gpu() else { return };
    for (turn, (group, head_dim, v_head_dim)) in SHAPES.into_iter().enumerate() {
        let Some(form) = matrix_form(&gpu, [64, 32, 16][turn % 3]) else { return };
        let even = head_dim.is_multiple_of(2) && v_head_dim.is_none_or(|dim| dim.is_multiple_of(2));
        let whole = if even { WHOLE } else { ScenarioVariant { causal: false, ..ScenarioVariant::PLAIN } };
        for (at, variant) in [ScenarioVariant::PLAIN, FULL, whole].into_iter().enumerate() {
            let spec = ScenarioSpec {
                v_head_dim,
                variant,
                paged: at != 1,
                block_size: [16, 5, 128][(turn + at) % 3],
                lse: true,
                ..ScenarioSpec::decode(group, 1, head_dim, &[])
            };
            let spec = chunks(ScenarioSpec { kv_dtype: KvDtype::F16, ..spec }, &[20, 70]);
            check(&gpu, &profile(&gpu, form, [16_384, 64][at % 2]), &spec, 47);
        }
    }
}

/// The lower half of a weight may be 0, and 0 · ∞ is NaN: a value that is infinite is served by the lanes.
#[test]
fn infinite_values_stay_infinite_where_matrix_units_multiply() {
    let Some(gpu) = gpu() else { return };
    for rows in [64, 32, 16] {
        let Some(form) = matrix_form(&gpu, rows) else { return };
        let spec = ScenarioSpec { kv_dtype: KvDtype::F16, ..ScenarioSpec::decode(4, 1, 24, &[]) };
        // Every query sees some keys with a weight.
        let spec = ScenarioSpec { seq_lens: vec![60, 140], query_lens: Some(vec![30, 40]), ..spec };
        let mut scenario = Scenario::random(&spec, 48).unwrap();
        scenario.k.iter_mut().for_each(|k| *k = k.abs());
        scenario.q.iter_mut().for_each(|q| *q = q.abs());
        let heads = scenario.k.len() / 24;
        for at in (0..heads).step_by(5) {
            // Such a key has no weight, so that its own value counts for nothing.
            scenario.k[at * 24 + 3] = f32::NEG_INFINITY;
            scenario.v[(at + 2) % heads * 24 + 7] = f32::INFINITY;
        }
        let outcome = run(&gpu, &profile(&gpu, form, 16_384), &scenario);
        assert!(outcome.out.contains(&f32::INFINITY), "{form}: nothing is infinite");
        assert!(!outcome.out.iter().any(|x| x.is_nan()), "{form}: infinity became NaN");
        if let Err(verdict) = scenario.judge(&outcome) {
            panic!("{form}: {verdict}");
        }
    }
}

/// 20 queries of two heads behind 20 tokens.
fn lone_chunk(io_format: IoFormat) -> ScenarioSpec {
    let variant = ScenarioVariant { io_format, ..ScenarioVariant::PLAIN };
    let spec = ScenarioSpec { kv_dtype: KvDtype::F16, variant, lse: true, ..ScenarioSpec::decode(2, 1, 64, &[40]) };
    ScenarioSpec { query_lens: Some(vec![20]), ..spec }
}

#[test]
fn what_is_not_finite_in_one_row_changes_no_bit_of_another() {
    let Some(gpu) = gpu() else { return };
    let clean = Scenario::random(&lone_chunk(IoFormat::F32), 5).unwrap();
    for (form, _) in all_forms(&gpu, [KvDtype::F16; 3]) {
        let profile = profile(&gpu, form, 16_384);
        // The bits of 20 times 2 rows, less one element of some.
        let bits = |scenario: &Scenario, reached: &dyn Fn(usize, usize) -> bool| -> Vec<u32> {
            let out = run(&gpu, &profile, scenario).out;
            let kept = out.iter().enumerate().filter(|(at, _)| !reached(at / 64, at % 64));
            kept.map(|(_, x)| x.to_bits()).collect()
        };
        let assert_same = |spoilt: &Scenario, name: &str, reached: &dyn Fn(usize, usize) -> bool| {
            assert!(bits(spoilt, reached) == bits(&clean, reached), "{form}: {name}");
        };
        let mut spoilt = clean.clone();
        *spoilt.q.last_mut().unwrap() = f32::NAN;
        assert_same(&spoilt, "a query", &|row, _| row == 39);
        for value in [f32::NAN, f32::INFINITY] {
            // The last value, which only the rows of the last query see, and one that those of the last 9 do.
            for (key, first_row) in [(39, 38), (31, 22)] {
                let mut spoilt = clean.clone();
                spoilt.v[v_index(&clean, 0, key, 0, 5)] = value;
                let reached = |row, column| row >= first_row && column == 5;
                assert_same(&spoilt, &format!("{value} in value {key}"), &reached);
            }
            let mut spoilt = clean.clone();
            spoilt.k[v_index(&clean, 0, 39, 0, 5)] = value;
            assert_same(&spoilt, &format!("{value} in the last key"), &|row, _| row >= 38);
        }
    }
}

#[test]
fn queries_of_every_magnitude_are_as_right_as_they_are_where_lanes_multiply() {
    let Some(gpu) = gpu() else { return };
    for (form, _) in all_forms(&gpu, [KvDtype::F16; 3]) {
        let profile = profile(&gpu, form, 16_384);
        for exponent in [-14, -8, 8, 14] {
            let mut scenario = Scenario::random(&lone_chunk(IoFormat::F32), 7).unwrap();
            let factor = 2_f32.powi(exponent);
            scenario.q.iter_mut().for_each(|q| *q *= factor);
            scenario.k.iter_mut().for_each(|k| *k /= factor);
            let judged = scenario.judge(&run(&gpu, &profile, &scenario));
            assert!(judged.is_ok(), "{form}: queries times 2^{exponent}: {judged:?}");
        }
        // Larger than f16 holds, in one half or in two.
        for large in [2e5, 1e30] {
            let mut scenario = Scenario::random(&lone_chunk(IoFormat::F32), 6).unwrap();
            scenario.q[0] = large;
            scenario.k.chunks_mut(64).for_each(|k| k[0] = -k[0].abs() - 0.01);
            let judged = scenario.judge(&run(&gpu, &profile, &scenario));
            assert!(judged.is_ok(), "{form}: a query with {large}: {judged:?}");
        }
        for io_format in [IoFormat::F32, IoFormat::F16] {
            let mut scenario = Scenario::random(&lone_chunk(io_format), 6).unwrap();
            scenario.q[0] = f32::INFINITY;
            scenario.k.chunks_mut(64).for_each(|k| k[0] = k[0].abs() + 0.01);
            let out = run(&gpu, &profile, &scenario).out;
            assert!(out[..64].iter().all(|x| x.is_nan()), "{form}: a query with ∞ in {}", io_format.name());
            assert!(!out[64..].iter().any(|x| x.is_nan()), "{form}: it reaches other rows");
        }
    }
}

#[test]
fn every_option_is_right_in_one_split_and_in_many() {
    let Some(gpu) = gpu() else { return };
    let window = |window| ScenarioVariant { window: Some(window), ..ScenarioVariant::PLAIN };
    let ahead = ScenarioVariant { causal: false, alibi: true, window: Some(33), ..ScenarioVariant::PLAIN };
    let variants = [window(1), window(70), FULL, WHOLE, ahead];
    for (turn, variant) in variants.into_iter().enumerate() {
        for (split, paged) in [(16_384, true), (64, false), (37, true)] {
            let spec = ScenarioSpec { variant, paged, lse: true, ..ScenarioSpec::decode(4, 2, 24, &[]) };
            let spec = chunks(ScenarioSpec { kv_dtype: KvDtype::Int8, ..spec }, &[12, 90, 64, 33]);
            check(&gpu, &profile(&gpu, ROWS[turn % 3], split), &spec, 43);
        }
    }
}

#[test]
fn more_queries_than_keys_and_no_keys_at_all_give_zeros() {
    let Some(gpu) = gpu() else { return };
    for variant in [ScenarioVariant::PLAIN, FULL, ScenarioVariant { causal: false, ..FULL }] {
        let spec = ScenarioSpec {
            seq_lens: vec![0, 5, 70],
            query_lens: Some(vec![12, 30, 80]),
            lse: true,
            variant,
            ..ScenarioSpec::decode(4, 2, 24, &[])
        };
        for split in [16_384, 16] {
            check(&gpu, &profile(&gpu, ChunkForm::WorkgroupTiles { rows: 64 }, split), &spec, 44);
        }
    }
}

#[test]
fn the_oracle_notices_every_planted_fault() {
    let Some(gpu) = gpu() else { return };
    let variant = ScenarioVariant { window: Some(30), ..FULL };
    let formats = [KvDtype::F16, KvDtype::Int4, KvDtype::F32];
    for (form, kv_dtype) in all_forms(&gpu, formats) {
        let spec = ScenarioSpec { kv_dtype, variant, ..ScenarioSpec::decode(4, 2, 16, &[]) };
        // The first sequence sees its first block.
        let scenario = Scenario::random(&chunks(spec, &[20, 40, 70]), 45).unwrap();
        assert!(Fault::ALL.iter().all(|fault| fault.shows_in(&scenario.spec)));
        check_faults(&gpu, &profile(&gpu, form, 16_384), &scenario, &Fault::ALL);
    }
}

#[test]
fn a_row_has_the_same_bits_wherever_it_stands_and_however_its_prompt_is_cut() {
    let Some(gpu) = gpu() else { return };
    let formats = [KvDtype::F16, KvDtype::Int8, KvDtype::Int4];
    for (form, kv_dtype) in all_forms(&gpu, formats) {
        for variant in [ScenarioVariant::PLAIN, ScenarioVariant { causal: true, ..FULL }] {
            let spec = ScenarioSpec {
                kv_dtype,
                variant,
                block_size: 8,
                lse: true,
                shared_blocks: 4,
                ..ScenarioSpec::decode(6, 2, 24, &[150, 90])
            };
            let batches = Batches::new(&gpu, &profile(&gpu, form, 64), scenario(&spec, 46));
            let part = |table, len, queries| Part { table, len, queries };
            let plan = batches.plan(&[part(0, 150, 150)]);
            assert_eq!(plan.tiles(CHUNK_CLASS).len(), 3);
            let whole = batches.alone(part(0, 150, 150));
            let neighbours = batches.run(&[part(1, 90, 1), part(3, 90, 40), part(0, 150, 150), part(2, 150, 70)]);
            assert!(neighbours[2] == whole && neighbours[3] == whole[80..], "{form} {kv_dtype}: neighbours, blocks");
            for first in [9, 11, 64, 77, 141] {
                let cut = [part(0, first, first), part(0, 150, 150 - first)].map(|part| batches.alone(part)).concat();
                assert!(cut == whole, "{form} {kv_dtype}: cut at {first}");
            }
        }
    }
}
