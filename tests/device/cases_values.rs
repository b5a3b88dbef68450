//! Public bug reports about numbers, as small scenarios whose answer is known in closed form. The comment above each test
//! names the cases that it stands for.

use crate::common;

use crate::common::{assert_near, bits, gpu, mean_scene, profiles, run, with_splits};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, KvCache};
use wgpu_paged_attention::plan::{Append, RawTables, Tables};
use wgpu_paged_attention::testkit::{Gpu, Scenario, ScenarioSpec};

/// Bits of values that memory may hold before anybody writes it: a NaN, and both infinities, in f32 and packed f16.
fn poisons(format: KvDtype) -> [u32; 3] {
    match format {
        KvDtype::F16 => [0x7e00_7e00, 0x7c00_7c00, 0xfc00_fc00],
        _ => [0x7fc0_0000, 0x7f80_0000, 0xff80_0000],
    }
}

// N01: a dot product of 204,800 does not fit f16, and K itself does.
#[test]
fn dot_products_beyond_the_range_of_f16_stay_finite() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for scale in [None, Some(1.0)] {
            let mut scenario = Scenario::random(&ScenarioSpec::decode(28, 4, 128, &[2]), 1).unwrap();
            scenario.fill(|_, t, _, _| 200.0 - t as f32, |_, t, _, _| if t == 0 { 5.0 } else { -1.0 });
            scenario.scale = scale;
            // With a scale of 1 the queries carry it.
            scenario.q.fill(if scale.is_none() { 8.0 } else { 8.0 / 128_f32.sqrt() });
            assert_near(&run(&gpu, &profile, &scenario).out, |_| 5.0, 1e-3);
        }
    }
}

// N04: scores of −120,000 are far below any sentinel that might stand for "masked".
#[test]
fn very_negative_scores_do_not_lose_against_keys_that_are_not_there() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for kv_dtype in [KvDtype::F32, KvDtype::F16] {
            let spec = ScenarioSpec { kv_dtype, ..ScenarioSpec::decode(1, 1, 64, &[2]) };
            let mut scenario = Scenario::random(&spec, 1).unwrap();
            scenario.fill(|_, _, _, _| -150.0, |_, t, _, _| [1.0, 3.0][t as usize]);
            scenario.q.fill(100.0);
            assert_near(&run(&gpu, &profile, &scenario).out, |_| 2.0, 1e-3);
        }
    }
}

// N06: more splits than tokens, and a row of no token among them.
#[test]
fn the_number_of_splits_changes_no_result_and_makes_no_nan() {
    let Some(gpu) = gpu() else { return };
    let spec = ScenarioSpec { lse: true, ..ScenarioSpec::decode(4, 1, 64, &[1, 17, 0, 256]) };
    let scenario = mean_scene(&spec, |seq, _, _, _| 5.0 + seq as f32);
    for profile in profiles(&gpu) {
        // 256 tokens in 1, 2, 8 and 64 pieces
        for split_tokens in [256, 128, 32, 4] {
            let got = run(&gpu, &with_splits(&profile, split_tokens), &scenario);
            let row = |at: usize| at / (4 * 64);
            assert_near(&got.out, |at| if row(at) == 2 { 0.0 } else { 5.0 + row(at) as f32 }, 1e-3);
            assert_eq!(bits(&got.out[2 * 256..3 * 256]), [0; 256], "the empty row is exactly zero");
            assert_eq!(got.lse[8..12], [f32::NEG_INFINITY; 4]);
            assert_near(&got.lse[12..], |_| 256_f32.ln(), 1e-4);
        }
    }
}

// N07: rows of padding are written, as zeros, and their neighbours do not notice.
#[test]
fn rows_without_keys_become_zeros_and_leave_the_others_alone() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        let spec = ScenarioSpec { lse: true, ..ScenarioSpec::decode(4, 2, 64, &[5, 0, 3]) };
        let scenario = Scenario::random(&spec, 3).unwrap();
        let batch = run(&gpu, &profile, &scenario);
        let width = 4 * 64;
        assert_eq!(bits(&batch.out[width..2 * width]), vec![0; width]);
        assert_eq!(batch.lse[4..8], [f32::NEG_INFINITY; 4]);
        for row in [0, 2] {
            let mut alone = scenario.clone();
            alone.spec.seq_lens = vec![spec.seq_lens[row]];
            alone.tables = vec![scenario.tables[row].clone()];
            alone.q = scenario.q[row * width..][..width].to_vec();
            let alone = run(&gpu, &profile, &alone);
            assert_eq!(bits(&alone.out), bits(&batch.out[row * width..][..width]), "row {row}");
            assert_eq!(bits(&alone.lse), bits(&batch.lse[row * 4..][..4]), "row {row}");
        }
        let empty =
            Scenario::random(&ScenarioSpec { lse: true, ..ScenarioSpec::decode(4, 2, 64, &[0, 0, 0]) }, 3).unwrap();
        let empty = run(&gpu, &profile, &empty);
        assert_eq!(bits(&empty.out), vec![0; 3 * width]);
        assert_eq!(empty.lse, [f32::NEG_INFINITY; 12]);
    }
}

/// Which pools hold the poison.
#[derive(Clone, Copy, Debug)]
enum Where {
    K,
    V,
    Both,
    Nowhere,
}

/// Appends sequences of these lengths to pools full of a word, K = 0 and V = position, and attends to all their tokens.
fn attend_over(
    gpu: &Gpu,
    (cache, appender, attention): (&KvCache, &Appender, &Attention),
    lens: &[u32],
    place: Where,
    word: u32,
) -> Vec<f32> {
    let head_shard = &cache.head_shards(0).unwrap()[0];
    for (pool, poisoned) in [
        (&head_shard.k, matches!(place, Where::K | Where::Both)),
        (&head_shard.v, matches!(place, Where::V | Where::Both)),
    ] {
        let words = vec![if poisoned { word } else { 0 }; (pool.size() / 4) as usize];
        gpu.queue.write_buffer(pool, 0, bytemuck::cast_slice(&words));
    }
    let mut table = vec![u32::MAX; 2 * lens.len()];
    for (seq, &len) in lens.iter().enumerate() {
        for column in 0..len.div_ceil(16) as usize {
            table[2 * seq + column] = (2 * seq + column) as u32;
        }
    }
    let mut offsets = vec![0];
    lens.iter().for_each(|len| offsets.push(offsets[offsets.len() - 1] + len));
    let mut plan = cache.new_plan();
    let tables = RawTables {
        tables: Tables::Dense { block_table: &table, max_blocks: 2, seq_lens: lens },
        cu_seqlens_q: Some(&offsets),
        append: Append::FromTables,
    };
    plan.plan_tables(cache.layout(), &tables).unwrap();
    let dim = cache.layout().head_dim() as usize;
    let positions = || lens.iter().flat_map(|&len| 0..len);
    let v: Vec<f32> = positions().flat_map(|t| vec![t as f32; 2 * dim]).collect();
    let (k, v) = (gpu.storage("k", &vec![0.0_f32; v.len()]), gpu.storage("v", &v));
    let elements = positions().count() * 4 * dim;
    let (q, out) = (gpu.storage("q", &vec![1.0_f32; elements]), gpu.storage("out", &vec![123.0_f32; elements]));
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let step = cache.begin_step(&mut encoder, &plan).unwrap();
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        cache.append(&mut pass, appender, &step, 0, AppendIo::new(k.slice(..), v.slice(..))).unwrap();
        let io = AttentionIo::new(q.slice(..), out.slice(..));
        cache.attend(&mut pass, attention, &step, 0, io).unwrap();
    }
    gpu.submit(encoder);
    gpu.read(&out).unwrap()
}

// N08: the rest of a block may hold anything, and zero times NaN is NaN.
#[test]
fn memory_that_nobody_wrote_reaches_no_output() {
    let Some(gpu) = gpu() else { return };
    let lens = [1, 13, 15, 16, 17];
    let positions: Vec<u32> = lens.iter().flat_map(|&len| 0..len).collect();
    for (form, profile) in profiles(&gpu).into_iter().enumerate() {
        // f16 on every form of the kernels, every other format on one.
        let others: &[KvDtype] = if form == 0 { &[KvDtype::Int8] } else { &[KvDtype::F32, KvDtype::Int4] };
        for &format in [KvDtype::F16].iter().chain(others) {
            let dim = if format == KvDtype::F16 { 64 } else { 32 };
            let config = CacheConfig::new(1, 2, dim).with_kv_dtype(format).with_num_blocks(10).with_max_seq_len(32);
            let cache = KvCache::with_profile(&gpu.device, &config.layout().unwrap(), profile.clone()).unwrap();
            let appender = cache.appender(AppendSpec::new()).unwrap();
            let attention = cache.attention(AttentionSpec::new(4)).unwrap();
            let attend = |place, word| attend_over(&gpu, (&cache, &appender, &attention), &lens, place, word);
            let clean = attend(Where::Nowhere, 0);
            assert_near(&clean, |at| positions[at / (4 * dim as usize)] as f32 / 2.0, 1e-3);
            for place in [Where::K, Where::V, Where::Both] {
                for word in poisons(format) {
                    let got = attend(place, word);
                    assert!(bits(&got) == bits(&clean), "{} {format}: {word:#x} in {place:?}", profile.lane_comm);
                }
            }
        }
    }
}

// N09: padding rows write nowhere and read nothing, whatever block their tables name; here it is a live one.
#[test]
fn padding_rows_neither_write_nor_disturb_a_batch() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        let spec = ScenarioSpec { lse: true, ..ScenarioSpec::decode(4, 2, 64, &[20, 33]) };
        let scenario = Scenario::random(&spec, 9).unwrap();
        let alone = run(&gpu, &profile, &scenario);
        let mut padded = scenario.clone();
        padded.spec.seq_lens.extend([0; 6]);
        // All six name the same block, block 0; whatever it holds, it is not theirs.
        padded.tables.extend(vec![vec![0]; 6]);
        padded.q.extend(vec![f32::NAN; 6 * 4 * 64]);
        let cache = padded.upload(&gpu, &profile).unwrap();
        let before = common::pool_words(&gpu, &cache);
        let batch = run(&gpu, &profile, &padded);
        assert_eq!(bits(&batch.out[..alone.out.len()]), bits(&alone.out));
        assert_eq!(bits(&batch.out[alone.out.len()..]), vec![0; 6 * 4 * 64]);
        assert!(common::pool_words(&gpu, &scenario.upload(&gpu, &profile).unwrap()) == before);
    }
}

// N12: sums are grouped by the row's own length, so that its bits do not depend on the company it keeps.
#[test]
fn a_row_has_the_same_bits_alone_and_in_any_batch() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        let profile = with_splits(&profile, 256);
        let mut alone = None;
        for (others, place) in [(0, 0), (1, 1), (7, 3), (32, 0), (32, 32)] {
            let mut lens: Vec<u32> = (0..others).map(|at| 40 * at % 300).collect();
            lens.insert(place, 777);
            let mut scenario =
                Scenario::random(&ScenarioSpec { lse: true, ..ScenarioSpec::decode(8, 2, 64, &lens) }, 5).unwrap();
            let wave = |a: u32, b: u32, c: u32| ((a * 31 + b * 57 + c * 7) % 113) as f32 / 113.0 - 0.5;
            scenario.fill(wave4(wave, 1), wave4(wave, 2));
            let width = 8 * 64;
            for (at, q) in scenario.q[place * width..][..width].iter_mut().enumerate() {
                *q = wave(at as u32, 5, 3) * 4.0;
            }
            let got = run(&gpu, &profile, &scenario);
            let row = (bits(&got.out[place * width..][..width]), bits(&got.lse[place * 8..][..8]));
            match &alone {
                None => alone = Some(row),
                Some(alone) => assert!(*alone == row, "{} with {others} others", profile.lane_comm),
            }
        }
    }
}

/// The same data whatever the sequence's number.
fn wave4(wave: impl Fn(u32, u32, u32) -> f32, salt: u32) -> impl Fn(usize, u32, u32, u32) -> f32 {
    move |_, t, head, d| wave(t * salt + 1, head, d)
}

#[test]
fn a_rows_own_infinity_or_nan_stays_in_that_row() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for bad in [f32::NAN, f32::INFINITY] {
            let spec = ScenarioSpec { kv_dtype: KvDtype::F32, ..ScenarioSpec::decode(2, 1, 16, &[19, 19, 19]) };
            // the last token of the middle sequence: masked keys of a tile repeat it
            let scenario = mean_scene(&spec, |seq, position, _, _| if (seq, position) == (1, 18) { bad } else { 1.0 });
            let got = run(&gpu, &profile, &scenario);
            for clean in [0, 2] {
                assert_near(&got.out[clean * 32..][..32], |_| 1.0, 1e-6);
            }
            let dirty = &got.out[32..64];
            assert!(dirty.iter().all(|x| if bad.is_nan() { x.is_nan() } else { *x == bad }), "{bad}: {dirty:?}");
        }
    }
}
