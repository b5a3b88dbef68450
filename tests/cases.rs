//! Faults that other implementations had, each as a kind; the ids are those of the collection of public reports that
//! the inputs were derived from. Expected values are closed forms: with K all zero, a row is the mean of what it sees.

mod common;

use common::{assert_near, bits, gpu, gpu_default_limits, gpu_featureless, mean_scene, profiles, run, with_splits};
use wgpu_paged_attention::config::KvFormat;
use wgpu_paged_attention::harness::{Scene, SceneSpec};

/// Row `r` of an output.
fn row<'a>(out: &'a [f32], spec: &SceneSpec, r: usize) -> &'a [f32] {
    let len = (spec.num_q_heads * spec.head_dim) as usize;
    &out[r * len..(r + 1) * len]
}

#[test]
fn scores_beyond_the_range_of_f16_are_right() {
    // N01: the raw dot is 204,800, and 90.5 after scaling separates the keys
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for folded in [false, true] {
            let spec = SceneSpec::decode(28, 4, 128, &[2]);
            let mut scene = Scene::random(&spec, 1).unwrap();
            scene.fill(
                |_, position, _, _| if position == 0 { 200.0 } else { 199.0 },
                |_, position, _, _| if position == 0 { 5.0 } else { -1.0 },
            );
            let scale = 1.0 / 128.0_f32.sqrt();
            scene.q.fill(if folded { 8.0 * scale } else { 8.0 });
            scene.scale = folded.then_some(1.0);
            assert_near(&run(&gpu, &profile, &scene).out, |_| 5.0, 1e-3);
        }
    }
}

#[test]
fn very_negative_scores_are_still_scores() {
    // N04: both are -120,000, below many a sentinel for masked keys; the rest of the block is poison
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        let mut scene = Scene::random(&SceneSpec::decode(1, 1, 64, &[2]), 1).unwrap();
        scene.fill(|_, _, _, _| -150.0, |_, position, _, _| 1.0 + 2.0 * position as f32);
        scene.q.fill(100.0);
        scene.scale = Some(0.125);
        assert_near(&run(&gpu, &profile, &scene).out, |_| 2.0, 1e-3);
    }
}

#[test]
fn the_number_of_splits_does_not_show_in_the_result() {
    // N06: rows of 1, 17, 0 and 256 tokens in 1, 2, 8 and 64 splits
    let Some(gpu) = gpu() else { return };
    let spec = SceneSpec { lse: true, ..SceneSpec::decode(4, 1, 64, &[1, 17, 0, 256]) };
    let scene = mean_scene(&spec, |seq, _, _, _| 5.0 + seq as f32);
    for profile in profiles(&gpu) {
        for split_tokens in [256, 128, 32, 4] {
            let got = run(&gpu, &with_splits(&profile, split_tokens), &scene);
            for seq in [0, 1, 3] {
                assert_near(row(&got.out, &spec, seq), |_| 5.0 + seq as f32, 1e-5);
            }
            assert!(row(&got.out, &spec, 2).iter().all(|&x| x.to_bits() == 0), "the empty row is exactly 0");
            assert!(got.lse[8..12].iter().all(|&x| x == f32::NEG_INFINITY), "{:?}", &got.lse[8..12]);
        }
    }
}

#[test]
fn an_empty_row_is_written_and_its_neighbours_do_not_notice() {
    // N07: outputs hold a sentinel before the run; each row alone gives the same bits
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        let spec = SceneSpec { lse: true, ..SceneSpec::decode(4, 2, 64, &[5, 0, 3]) };
        let scene = Scene::random(&spec, 3).unwrap();
        let got = run(&gpu, &profile, &scene);
        assert!(row(&got.out, &spec, 1).iter().all(|&x| x.to_bits() == 0));
        for (seq, len) in [(0, 5), (2, 3)] {
            let mut alone = scene.clone();
            alone.spec.seq_lens = vec![len];
            alone.tables = vec![scene.tables[seq].clone()];
            alone.q = row(&scene.q, &spec, seq).to_vec();
            let alone = run(&gpu, &profile, &alone);
            assert_eq!(bits(&alone.out), bits(row(&got.out, &spec, seq)), "row {seq}");
        }
        let empty = Scene::random(&SceneSpec { lse: true, ..SceneSpec::decode(4, 2, 64, &[0, 0, 0]) }, 3).unwrap();
        let empty = run(&gpu, &profile, &empty);
        assert!(empty.out.iter().all(|&x| x.to_bits() == 0) && empty.lse.iter().all(|&x| x == f32::NEG_INFINITY));
    }
}

#[test]
fn what_was_never_written_reaches_no_output_at_any_length_around_a_block() {
    // N08, I11: the pool is NaN wherever no token is; the mean of 0 .. len shows one key too many or too few
    let Some(gpu) = gpu() else { return };
    let lens = [1, 13, 15, 16, 17, 31, 32, 33];
    for profile in profiles(&gpu) {
        for kv_format in KvFormat::ALL {
            let spec = SceneSpec { kv_format, ..SceneSpec::decode(4, 2, 64, &lens) };
            let scene = mean_scene(&spec, |_, position, _, _| position as f32);
            let got = run(&gpu, &profile, &scene);
            for (seq, &len) in lens.iter().enumerate() {
                assert_near(row(&got.out, &spec, seq), |_| (len - 1) as f32 / 2.0, 1e-4);
            }
        }
    }
}

#[test]
fn a_rows_own_infinity_or_nan_stays_in_that_row() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for bad in [f32::NAN, f32::INFINITY] {
            let spec = SceneSpec { kv_format: KvFormat::F32, ..SceneSpec::decode(2, 1, 16, &[19, 19, 19]) };
            // the last token of the middle sequence: masked keys of a tile repeat it
            let scene = mean_scene(&spec, |seq, position, _, _| if (seq, position) == (1, 18) { bad } else { 1.0 });
            let got = run(&gpu, &profile, &scene);
            for clean in [0, 2] {
                assert_near(row(&got.out, &spec, clean), |_| 1.0, 1e-6);
            }
            let dirty = row(&got.out, &spec, 1);
            assert!(dirty.iter().all(|x| if bad.is_nan() { x.is_nan() } else { *x == bad }), "{bad}: {dirty:?}");
        }
    }
}

#[test]
fn a_rows_bits_depend_on_nothing_but_the_row() {
    // N12, R12: alone, first, last, among others, in any order
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        let profile = with_splits(&profile, 256);
        let spec = SceneSpec::decode(8, 2, 128, &[777, 1, 47, 0, 47, 512]);
        let scene = Scene::random(&spec, 9).unwrap();
        let got = run(&gpu, &profile, &scene);
        for shift in [1, 3, 5] {
            let order: Vec<usize> = (0..6).map(|i| (i * 5 + shift) % 6).collect();
            let mut moved = scene.clone();
            moved.spec.seq_lens = order.iter().map(|&i| scene.spec.seq_lens[i]).collect();
            moved.tables = order.iter().map(|&i| scene.tables[i].clone()).collect();
            moved.q = order.iter().flat_map(|&i| row(&scene.q, &spec, i).to_vec()).collect();
            let moved = run(&gpu, &profile, &moved);
            for (at, &i) in order.iter().enumerate() {
                assert_eq!(bits(row(&moved.out, &spec, at)), bits(row(&got.out, &spec, i)), "row {i} at {at}");
            }
        }
    }
}

#[test]
fn every_query_head_reads_its_own_kv_head() {
    // I01: V names the head
    let Some(gpu) = gpu() else { return };
    let profile = &profiles(&gpu)[0];
    for (num_q_heads, num_kv_heads) in [(28, 4), (12, 12), (32, 8), (8, 1), (24, 4), (48, 2), (71, 1), (80, 4)] {
        let spec = SceneSpec::decode(num_q_heads, num_kv_heads, 64, &[3]);
        let scene = mean_scene(&spec, |_, _, head, _| head as f32);
        let got = run(&gpu, profile, &scene);
        assert_near(&got.out, |at| (at as u32 / 64 / (num_q_heads / num_kv_heads)) as f32, 1e-5);
    }
}

#[test]
fn odd_widths_keep_every_channel_in_its_place() {
    // I03: attention over one token is its V
    let Some(gpu) = gpu() else { return };
    let profile = &profiles(&gpu)[0];
    for head_dim in [5, 40, 72, 80, 96, 100, 112, 120, 160, 192, 256] {
        let scene = mean_scene(&SceneSpec::decode(2, 1, head_dim, &[1]), |_, _, _, d| (d + 1) as f32);
        let got = run(&gpu, profile, &scene);
        assert_near(&got.out, |at| (at as u32 % head_dim + 1) as f32, 1e-4);
    }
}

#[test]
fn everything_runs_within_the_default_limits_and_without_any_feature() {
    // I05, W02, W04, W09
    for gpu in [gpu_default_limits(), gpu_featureless()].into_iter().flatten() {
        for profile in profiles(&gpu) {
            for kv_format in KvFormat::ALL {
                let spec = SceneSpec { kv_format, lse: true, ..SceneSpec::decode(8, 1, 256, &[40, 3]) };
                common::check(&gpu, &profile, &spec, 2);
            }
        }
    }
}

#[test]
fn more_workgroups_than_one_dimension_holds_are_folded() {
    // I07: 2,048 rows of 32 heads in tiles of 8 are 8,192 workgroups of decode; with one split per token 65,536 and more
    let Some(gpu) = gpu() else { return };
    let profile = with_splits(&profiles(&gpu)[0], 1);
    let lens: Vec<u32> = vec![3; 22_000];
    let spec = SceneSpec { block_size: 4, ..SceneSpec::decode(1, 1, 8, &lens) };
    let scene = mean_scene(&spec, |seq, _, _, _| (seq % 2048) as f32);
    // 66,000 splits, 66,000 appended tokens and 22,000 rows to merge
    let got = run(&gpu, &profile, &scene);
    assert_near(&got.out, |at| (at / 8 % 2048) as f32, 1.0);
}

#[test]
fn a_ragged_batch_with_empty_requests_is_not_shifted() {
    // I12: V = 100 · request + t
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for (query_lens, seq_lens, means) in [
            (vec![0, 1, 0, 1], vec![0, 3, 0, 5], vec![101.0, 302.0]),
            (vec![0, 3, 0, 5], vec![0, 3, 0, 5], vec![100.0, 100.5, 101.0, 300.0, 300.5, 301.0, 301.5, 302.0]),
            (vec![0, 0, 0], vec![2, 0, 4], vec![]),
        ] {
            let spec = SceneSpec { query_lens: Some(query_lens), ..SceneSpec::decode(1, 1, 8, &seq_lens) };
            let scene = mean_scene(&spec, |seq, position, _, _| (100 * seq as u32 + position) as f32);
            let got = run(&gpu, &profile, &scene);
            assert_eq!(got.out.len(), 8 * means.len());
            assert_near(&got.out, |at| means[at / 8], 1e-3);
        }
    }
}

#[test]
fn a_chunk_sees_the_prefix_that_is_cached_before_it() {
    // I14, I15: causal means bottom-right; a query from before the first token sees nothing
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for queries in [1, 2, 3, 16, 17] {
            for past in [0, 1, 2, 15, 16, 40] {
                let spec =
                    SceneSpec { query_lens: Some(vec![queries]), ..SceneSpec::decode(1, 1, 8, &[queries + past]) };
                let scene = mean_scene(&spec, |_, position, _, _| position as f32);
                let got = run(&gpu, &profile, &scene);
                assert_near(&got.out, |at| (past + (at / 8) as u32) as f32 / 2.0, 1e-3);
            }
        }
        let spec = SceneSpec { query_lens: Some(vec![4]), lse: true, ..SceneSpec::decode(1, 1, 8, &[2]) };
        let got = run(&gpu, &profile, &mean_scene(&spec, |_, position, _, _| (position + 1) as f32));
        assert_near(&got.out, |at| [0.0, 0.0, 1.0, 1.5][at / 8], 1e-5);
        assert_eq!(got.lse[..2], [f32::NEG_INFINITY; 2]);
    }
}

#[test]
fn long_rows_are_whole_where_loops_end_early() {
    // the loop budget: 40,000 keys are far more rounds than a driver that stops at 65,535 would take for one row
    let Some(gpu) = gpu() else { return };
    let spec = SceneSpec { kv_format: KvFormat::F32, ..SceneSpec::decode(1, 1, 8, &[40_000, 3]) };
    let scene = mean_scene(&spec, |seq, position, _, _| if seq == 0 && position >= 20_000 { 2.0 } else { 1.0 });
    for profile in profiles(&gpu) {
        let got = run(&gpu, &profile, &scene);
        assert_near(row(&got.out, &spec, 0), |_| 1.5, 1e-4);
        assert_near(row(&got.out, &spec, 1), |_| 1.0, 1e-6);
    }
}
