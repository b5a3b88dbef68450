//! Faults that other implementations had, each as a kind; the ids are those of the collection of public reports that
//! the inputs were derived from. Expected values are closed forms: with K all zero, a row is the mean of what it sees.

mod common;

use common::{assert_near, gpu, gpu_default_limits, gpu_featureless, mean_scene, profiles, run, with_splits};
use wgpu_paged_attention::config::KvFormat;
use wgpu_paged_attention::harness::SceneSpec;

/// Row `r` of an output.
fn row<'a>(out: &'a [f32], spec: &SceneSpec, r: usize) -> &'a [f32] {
    let len = (spec.num_q_heads * spec.head_dim) as usize;
    &out[r * len..(r + 1) * len]
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
