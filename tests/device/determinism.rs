//! What is promised of a row's bits: they depend on its own tokens alone. Not on what else is in the batch, nor on its
//! place there; not on where its blocks lie, nor on who shares them; not on how the heads are cut into bindings; and not on
//! how a prompt is cut into chunks of nine queries or more. Up to one split of keys not even on whether a token is served
//! alone or as part of a prompt, where chunks have no kernel of their own.

use crate::common;

use crate::common::batches::{Batches, Part, Row, scenario};
use crate::common::{gpu, profiles, with_splits};
use crate::grid::{ROUNDS, SEED};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::DeviceProfile;
use wgpu_paged_attention::testkit::{Gpu, ScenarioSpec, ScenarioVariant, changed, draw as draw_grid, setting};

/// One of `choices`.
fn pick<T: Copy>(rng: &mut StdRng, choices: &[T]) -> T {
    choices[rng.random_range(0..choices.len())]
}

/// The kernels with subgroups, without, and without but with the wide tiles that GPUs get.
fn forms(gpu: &Gpu) -> Vec<DeviceProfile> {
    let mut forms = profiles(gpu);
    let plain = forms[0].clone().without_subgroups();
    forms.push(changed(&plain, |it| {
        (it.tile_tokens, it.tile_rows, it.chunk_queries, it.max_loop_rounds) = (16, 16, 9, u32::MAX)
    }));
    forms
}

/// What a seed stands for: a shape, and the keys in one split. Consecutive seeds go through the formats.
fn draw(seed: u64) -> (ScenarioSpec, u32) {
    let mut rng = StdRng::seed_from_u64(seed);
    let rng = &mut rng;
    let num_seqs = rng.random_range(3..=6);
    let seq_lens: Vec<u32> = (0..num_seqs).map(|_| rng.random_range(20..=80)).collect();
    let drawn = draw_grid(seed).spec;
    let variant = ScenarioVariant { causal: true, ..drawn.variant };
    let spec = ScenarioSpec {
        kv_dtype: KvDtype::ALL[seed as usize % KvDtype::ALL.len()],
        v_head_dim: rng.random_bool(0.3).then_some(24),
        block_size: pick(rng, &[4, 8, 16, 5]),
        shared_blocks: rng.random_range(2..=5),
        variant,
        lse: drawn.lse,
        ..ScenarioSpec::decode(2 * rng.random_range(1..=3), 2, pick(rng, &[16, 24, 40]), &seq_lens)
    };
    (spec, pick(rng, &[16, 24, 32]))
}

/// A batch in which some sequences decode, some bring a few tokens and some many.
fn batch(rng: &mut StdRng, lens: &[u32]) -> Vec<Part> {
    let part = |(table, &len): (usize, &u32)| {
        let queries = match rng.random_range(0..4) {
            0 | 1 => 1,
            2 => rng.random_range(2..=8),
            _ => rng.random_range(9..=len.min(40)),
        };
        Part { table, len, queries }
    };
    lens.iter().enumerate().map(part).collect()
}

/// The form of the kernels that the heads of one binding each give.
fn cut_by_heads(batches: &Batches<'_>, profile: &DeviceProfile) -> DeviceProfile {
    let layout = batches.cache().layout();
    let bytes = layout.k_shard_bytes(1).max(layout.v_shard_bytes(1));
    changed(profile, |it| it.max_binding_bytes = bytes.next_multiple_of(256))
}

#[track_caller]
fn assert_same(got: &[Row], want: &[Row], what: impl FnOnce() -> String) {
    assert!(
        got == want,
        "{} changed the bits of {} rows",
        what(),
        got.iter().zip(want).filter(|(a, b)| a != b).count()
    );
}

fn check(gpu: &Gpu, profile: &DeviceProfile, seed: u64) {
    let (spec, split_tokens) = draw(seed);
    let profile = with_splits(profile, split_tokens);
    let (rng, lens) = (&mut StdRng::seed_from_u64(!seed), &spec.seq_lens);
    let batches = Batches::new(gpu, &profile, scenario(&spec, seed));
    let at = |what: &str| format!("seed {seed} on {}: {what} of {spec:?}", profile.lane_comm);

    let batch = batch(rng, lens);
    let base = batches.run(&batch);
    assert_eq!(base, batches.run(&batch), "{}", at("running twice"));

    // neighbours, places in the batch, blocks, sharing: all at once, and each sequence alone
    let mut order: Vec<usize> = (0..lens.len()).collect();
    order.shuffle(rng);
    let moved: Vec<Part> = order
        .iter()
        .map(|&seq| Part { table: seq + if rng.random_bool(0.5) { lens.len() } else { 0 }, ..batch[seq] })
        .collect();
    for (got, &seq) in batches.run(&moved).iter().zip(&order) {
        assert_same(got, &base[seq], || at("another place in the batch"));
    }
    for (part, want) in batch.iter().zip(&base) {
        assert_same(&batches.alone(*part), want, || at("being alone"));
    }

    // how the heads are cut into head shards
    let cut = cut_by_heads(&batches, &profile);
    let head_shards = Batches::new(gpu, &cut, batches.scenario.clone());
    assert_eq!(head_shards.cache().head_shards(0).unwrap().len(), 2, "{}", at("a cache"));
    for (got, want) in head_shards.run(&batch).iter().zip(&base) {
        assert_same(got, want, || at("cutting the heads into head_shards"));
    }

    // how a prompt is cut into chunks
    let schedule = batches.cache().schedule();
    let many = schedule.chunk_queries.min(9);
    for (seq, &len) in lens.iter().enumerate() {
        let whole = batches.alone(Part { table: seq, len, queries: len });
        for first in [many, len / 2, len - many] {
            if (many..=len - many).contains(&first) {
                let parts = [(first, first), (len, len - first)];
                let rows = parts.map(|(len, queries)| batches.alone(Part { table: seq, len, queries }));
                assert_same(&rows.concat(), &whole, || at("cutting a prompt in two"));
            }
        }
        // whether a token comes alone, in a few, or with its whole prompt, as long as its keys are one split and chunks have
        // no kernel of their own
        let short = len.min(split_tokens);
        for queries in [1, 2, 3, 5, 8].into_iter().filter(|_| schedule.chunk_tokens == 0) {
            let steps = (0..short / queries).map(|step| (step + 1) * queries);
            let steps: Vec<Part> = steps.map(|len| Part { table: seq, len, queries }).collect();
            let rows = batches.run(&steps).concat();
            assert_same(&rows, &whole[..rows.len()], || at("decoding instead of prefilling"));
        }
        // and beyond, among the numbers of queries that are split
        for queries in [2, 3, 8] {
            let few = batches.alone(Part { table: seq, len, queries });
            let steps: Vec<Part> = (len - queries + 1..=len).map(|len| Part { table: seq, len, queries: 1 }).collect();
            assert_same(&batches.run(&steps).concat(), &few, || at("decoding instead of guessing ahead"));
        }
    }
}

#[test]
fn a_row_depends_on_its_own_tokens_alone() {
    let Some(gpu) = gpu() else { return };
    let (first, rounds) = (setting(SEED, 2026), setting(ROUNDS, 6));
    println!("{SEED}={first} {ROUNDS}={rounds}");
    let forms = forms(&gpu);
    for seed in first..first.saturating_add(rounds) {
        // All formats, and the forms in turns that shift with every six of them.
        let form = (seed + seed / KvDtype::ALL.len() as u64) % forms.len() as u64;
        check(&gpu, &forms[form as usize], seed);
    }
}

// What is compared is fine enough to notice another order of the sums, and one token that is not the same.
#[test]
fn other_sums_and_other_tokens_are_noticed() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        let spec = ScenarioSpec { lse: true, ..ScenarioSpec::decode(2, 2, 16, &[70, 70]) };
        let scenario = scenario(&spec, 3);
        let part = Part { table: 0, len: 70, queries: 1 };
        let rows =
            |scenario, split_tokens| Batches::new(&gpu, &with_splits(&profile, split_tokens), scenario).alone(part);
        let base = rows(scenario.clone(), 64);
        assert_ne!(rows(scenario.clone(), 16), base, "other splits");
        let mut altered = scenario;
        let index = common::batches::v_index(&altered, 0, 40, 1, 7);
        altered.v[index] += 0.01;
        let other = rows(altered, 64);
        assert_ne!(other, base, "another token");
        let caught = std::panic::catch_unwind(|| assert_same(&other, &base, || "planting".to_owned()));
        assert!(caught.is_err());
    }
}
