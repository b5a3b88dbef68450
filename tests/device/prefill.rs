//! Chunks of prompts by the kernel of their own, whichever form a device would choose: every storage format, head and option,
//! ragged chunks behind ragged prefixes, and errors that must be noticed.

use crate::common::batches::{Batches, Part, scenario};
use crate::common::{check, check_faults, gpu};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{ChunkForm, DeviceProfile, IoFormat};
use wgpu_paged_attention::plan::CHUNK_CLASS;
use wgpu_paged_attention::testkit::{Fault, Gpu, Scenario, ScenarioSpec, ScenarioVariant, changed};

/// Rows of a workgroup: those that makers get, and fewer.
const ROWS: [u32; 3] = [64, 32, 16];

const FULL: ScenarioVariant =
    ScenarioVariant { window: Some(40), soft_cap: Some(9.0), alibi: true, sinks: true, ..ScenarioVariant::PLAIN };
const WHOLE: ScenarioVariant = ScenarioVariant { causal: false, io_format: IoFormat::F16, ..ScenarioVariant::PLAIN };

/// The device's profile with chunks in tiles of so many rows, in splits of so many keys.
fn profile(gpu: &Gpu, rows: u32, chunk_split_tokens: u32) -> DeviceProfile {
    changed(&DeviceProfile::of(&gpu.device).without_subgroups(), |it| {
        it.chunk_form = ChunkForm::WorkgroupTiles { rows };
        (it.chunk_queries, it.chunk_split_tokens) = (9, chunk_split_tokens);
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
    for (rows, num_q_heads) in ROWS.into_iter().zip([8, 2, 6]) {
        for split in [16_384, 96] {
            let spec = ScenarioSpec { lse: true, ..ScenarioSpec::decode(num_q_heads, 2, 40, &[]) };
            let spec = chunks(ScenarioSpec { kv_dtype: KvDtype::F16, ..spec }, &[9, 15, 17, 63, 64, 65, 300, 1, 2]);
            check(&gpu, &profile(&gpu, rows, split), &spec, 41);
        }
    }
}

#[test]
fn every_format_with_heads_of_every_width_is_right() {
    let Some(gpu) = gpu() else { return };
    // (heads of a group, width of K, of V): widths that fill slices and lines, and widths that do not.
    let shapes = [
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
    for (turn, (group, head_dim, v_head_dim)) in shapes.into_iter().enumerate() {
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
            check(&gpu, &profile(&gpu, 64, split), &spec, 44);
        }
    }
}

#[test]
fn the_oracle_notices_every_planted_fault() {
    let Some(gpu) = gpu() else { return };
    let variant = ScenarioVariant { window: Some(30), ..FULL };
    for (rows, kv_dtype) in ROWS.into_iter().zip([KvDtype::F16, KvDtype::Int4, KvDtype::F32]) {
        let spec = ScenarioSpec { kv_dtype, variant, ..ScenarioSpec::decode(4, 2, 16, &[]) };
        // The first sequence sees its first block.
        let scenario = Scenario::random(&chunks(spec, &[20, 40, 70]), 45).unwrap();
        assert!(Fault::ALL.iter().all(|fault| fault.shows_in(&scenario.spec)));
        check_faults(&gpu, &profile(&gpu, rows, 16_384), &scenario, &Fault::ALL);
    }
}

#[test]
fn a_row_has_the_same_bits_wherever_it_stands_and_however_its_prompt_is_cut() {
    let Some(gpu) = gpu() else { return };
    for (rows, kv_dtype) in ROWS.into_iter().zip([KvDtype::F16, KvDtype::Int8, KvDtype::Int4]) {
        for variant in [ScenarioVariant::PLAIN, ScenarioVariant { causal: true, ..FULL }] {
            let spec = ScenarioSpec {
                kv_dtype,
                variant,
                block_size: 8,
                lse: true,
                shared_blocks: 4,
                ..ScenarioSpec::decode(6, 2, 24, &[150, 90])
            };
            let batches = Batches::new(&gpu, &profile(&gpu, rows, 64), scenario(&spec, 46));
            let part = |table, len, queries| Part { table, len, queries };
            let plan = batches.plan(&[part(0, 150, 150)]);
            assert_eq!(plan.tiles(CHUNK_CLASS).len(), 3);
            let whole = batches.alone(part(0, 150, 150));
            let neighbours = batches.run(&[part(1, 90, 1), part(3, 90, 40), part(0, 150, 150), part(2, 150, 70)]);
            assert!(neighbours[2] == whole && neighbours[3] == whole[80..], "{rows} {kv_dtype}: neighbours, blocks");
            for first in [9, 11, 64, 77, 141] {
                let cut = [part(0, first, first), part(0, 150, 150 - first)].map(|part| batches.alone(part)).concat();
                assert!(cut == whole, "{rows} {kv_dtype}: cut at {first}");
            }
        }
    }
}
