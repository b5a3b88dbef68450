//! Public bug reports about indexing, as small scenarios whose answer names the head, block or row that was read. The
//! comment above each test names the cases that it stands for.

use crate::common::{assert_near, bits, gpu, mean_scene, profiles, run, with_splits};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::testkit::{Scenario, ScenarioSpec, changed};

// I01: the output names the KV head that was read.
#[test]
fn every_query_head_reads_the_kv_head_of_its_group() {
    let Some(gpu) = gpu() else { return };
    let pairs =
        [(28, 4), (12, 12), (32, 8), (8, 1), (24, 4), (40, 2), (48, 2), (14, 2), (71, 1), (80, 4), (9, 1), (5, 5)];
    let profiles = profiles(&gpu);
    for (turn, (num_q_heads, num_kv_heads)) in pairs.into_iter().enumerate() {
        // As a single row, and as rows of a prompt, with one form of the kernels each; they take turns.
        for (form, query_lens) in [None, Some(vec![3])].into_iter().enumerate() {
            let spec = ScenarioSpec { query_lens, ..ScenarioSpec::decode(num_q_heads, num_kv_heads, 8, &[3]) };
            let scenario = mean_scene(&spec, |_, _, head, _| head as f32);
            let got = run(&gpu, &profiles[(turn + form) % profiles.len()], &scenario);
            let group = (num_q_heads / num_kv_heads) as usize;
            assert_near(&got.out, |at| (at / 8 % num_q_heads as usize / group) as f32, 1e-3);
        }
    }
}

// I03: rows are padded to units of 16 bytes, which must show nowhere.
#[test]
fn attention_over_one_token_gives_back_its_value_for_odd_head_dims() {
    let Some(gpu) = gpu() else { return };
    let forms = profiles(&gpu);
    for (turn, head_dim) in [5, 40, 72, 80, 96, 100, 112, 120, 160, 192, 256].into_iter().enumerate() {
        // The widest compile slowly, so the forms of the kernels take turns.
        let scenario = mean_scene(&ScenarioSpec::decode(2, 1, head_dim, &[1]), |_, _, _, d| d as f32 + 1.0);
        let got = run(&gpu, &forms[turn % forms.len()], &scenario);
        assert_near(&got.out, |at| (at % head_dim as usize) as f32 + 1.0, 1e-3);
    }
    for profile in profiles(&gpu) {
        // Two KV heads: the second one starts where the padding of the first ends.
        let spec = ScenarioSpec { kv_dtype: KvDtype::F32, ..ScenarioSpec::decode(2, 2, 7, &[1, 1]) };
        let scenario = mean_scene(&spec, |seq, _, head, d| (100 * seq as u32 + 10 * head + d) as f32);
        let want = |at: usize| (100 * (at / 14) + 10 * (at / 7 % 2) + at % 7) as f32;
        assert_near(&run(&gpu, &profile, &scenario).out, want, 1e-3);
    }
}

// I11: a length that fills its blocks exactly, with one more block behind it that is not the sequence's.
#[test]
fn a_block_too_many_in_the_table_is_not_attended() {
    let Some(gpu) = gpu() else { return };
    let lens = [1, 15, 16, 17, 31, 32, 33];
    for profile in profiles(&gpu) {
        // An eighth sequence owns the blocks that the others' tables go on with; its values would show.
        let all: Vec<u32> = lens.into_iter().chain([16 * 7]).collect();
        let mut scenario =
            mean_scene(&ScenarioSpec::decode(1, 1, 64, &all), |seq, t, _, _| if seq == 7 { 1000.0 } else { t as f32 });
        for seq in 0..7 {
            let extra = scenario.tables[7][seq];
            scenario.tables[seq].push(extra);
        }
        let got = run(&gpu, &profile, &scenario);
        assert_near(&got.out[..7 * 64], |at| (lens[at / 64] - 1) as f32 / 2.0, 1e-3);
        assert_near(&got.out[7 * 64..], |_| 1000.0, 1e-3);
    }
}

// I12: sequences without queries in the middle of a batch shift nothing.
#[test]
fn requests_without_queries_do_not_shift_the_others() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for (queries, lens) in [
            ([0, 1, 0, 1], [0, 3, 0, 5]),
            ([0, 3, 0, 5], [0, 3, 0, 5]),
            ([2, 0, 4, 0], [2, 9, 4, 1]),
            ([0, 0, 0, 1], [4, 4, 4, 4]),
        ] {
            let spec = ScenarioSpec { query_lens: Some(queries.to_vec()), ..ScenarioSpec::decode(1, 1, 16, &lens) };
            let scenario = mean_scene(&spec, |seq, t, _, _| (100 * seq as u32 + t) as f32);
            let mut want = Vec::new();
            for (seq, (&n, &len)) in queries.iter().zip(&lens).enumerate() {
                want.extend((0..n).map(|i| 100.0 * seq as f32 + (len - n + i) as f32 / 2.0));
            }
            let got = run(&gpu, &profile, &scenario);
            assert_eq!(got.out.len(), 16 * want.len());
            assert_near(&got.out, |at| want[at / 16], 1e-3);
        }
        let empty = ScenarioSpec { query_lens: Some(vec![0, 0, 0]), ..ScenarioSpec::decode(1, 1, 16, &[0, 4, 0]) };
        assert!(run(&gpu, &profile, &Scenario::random(&empty, 1).unwrap()).out.is_empty());
    }
}

// I14, I15: queries stand at the end of their sequence; those from before its start see nothing.
#[test]
fn a_chunk_of_queries_sees_the_past_and_its_own_and_nothing_later() {
    let Some(gpu) = gpu() else { return };
    let mut pairs = vec![(2, 4), (4, 2)];
    for queries in [1, 3, 16, 17] {
        pairs.extend([0, 1, 15, 16, 40].map(|past| (queries, queries + past)));
    }
    let (queries, lens): (Vec<u32>, Vec<u32>) = pairs.iter().copied().unzip();
    let spec = ScenarioSpec { query_lens: Some(queries), lse: true, ..ScenarioSpec::decode(1, 1, 16, &lens) };
    let scenario = mean_scene(&spec, |_, t, _, _| t as f32 + 1.0);
    let seen: Vec<u32> =
        pairs.iter().flat_map(|&(n, len)| (0..n).map(move |i| (len + i + 1).saturating_sub(n))).collect();
    for profile in profiles(&gpu) {
        for split_tokens in [profile.split_tokens, 16] {
            let got = run(&gpu, &with_splits(&profile, split_tokens), &scenario);
            let mean = |row: usize| if seen[row] == 0 { 0.0 } else { (seen[row] + 1) as f32 / 2.0 };
            assert_near(&got.out, |at| mean(at / 16), 1e-3);
            // The second pair: four queries over two keys.
            assert_eq!((seen[2], seen[3], seen[4], seen[5]), (0, 0, 1, 2));
            assert_eq!(bits(&got.out[2 * 16..4 * 16]), [0; 32]);
            for (&got, &seen) in got.lse.iter().zip(&seen) {
                assert!(got == (seen as f32).ln() || (got - (seen as f32).ln()).abs() < 1e-5, "{got} over {seen}");
            }
        }
    }
}

// R12: outputs move with their inputs.
#[test]
fn a_batch_in_another_order_gives_its_rows_in_that_order() {
    let Some(gpu) = gpu() else { return };
    let lens = [300, 1, 47, 0, 47, 512];
    let mut rng = StdRng::seed_from_u64(12);
    for profile in profiles(&gpu) {
        let profile = with_splits(&profile, 128);
        let scenario =
            Scenario::random(&ScenarioSpec { lse: true, ..ScenarioSpec::decode(2, 1, 16, &lens) }, 12).unwrap();
        let straight = run(&gpu, &profile, &scenario);
        let mut order: Vec<usize> = (0..lens.len()).collect();
        for _ in 0..20 {
            order.shuffle(&mut rng);
            let mut moved = scenario.clone();
            moved.q.clear();
            for (to, &from) in order.iter().enumerate() {
                moved.spec.seq_lens[to] = lens[from];
                moved.tables[to] = scenario.tables[from].clone();
                moved.q.extend(&scenario.q[from * 32..][..32]);
            }
            let got = run(&gpu, &profile, &moved);
            for (to, &from) in order.iter().enumerate() {
                assert_eq!(bits(&got.out[to * 32..][..32]), bits(&straight.out[from * 32..][..32]), "{order:?}");
                assert_eq!(bits(&got.lse[to * 2..][..2]), bits(&straight.lse[from * 2..][..2]), "{order:?}");
            }
        }
    }
}

// I07: more than 65,535 workgroups, for attention and for the merge of its splits.
#[test]
fn more_workgroups_than_one_dimension_holds_reach_every_row() {
    let Some(gpu) = gpu() else { return };
    // 65,536 splits are one more than a dimension holds, and 131,073 are one more than two full rows of the grid.
    for (rows, len, split_tokens) in [(65_536_u32, 1, 1024), (32_768, 2, 1), (43_691, 3, 1)] {
        let profile = with_splits(&profiles(&gpu)[0], split_tokens);
        let spec = ScenarioSpec { kv_dtype: KvDtype::F32, ..ScenarioSpec::decode(1, 1, 4, &[rows + len - 1]) };
        // One long sequence holds the values; every row is a short sequence that reads one of its blocks.
        let mut scenario = mean_scene(&spec, |_, t, _, _| t as f32);
        scenario.spec.seq_lens = vec![len; rows as usize];
        // the blocks that are full
        let table = scenario.tables[0][..((rows + len - 1) / 16) as usize].to_vec();
        scenario.tables = (0..rows as usize).map(|row| vec![table[row % table.len()]]).collect();
        let first = |row: usize| ((row % table.len()) * 16) as f32;
        scenario.q = vec![1.0; rows as usize * 4];
        let got = run(&gpu, &profile, &scenario);
        assert_eq!(got.out.len(), rows as usize * 4);
        assert_near(&got.out, |at| first(at / 4) + (len - 1) as f32 / 2.0, 1e-2);
    }
}

// I07 again: append, attention and merge, folded into two dimensions by a device that allows few workgroups in one.
#[test]
fn grids_folded_into_two_dimensions_serve_every_item_once() {
    let Some(gpu) = gpu() else { return };
    let lens: Vec<u32> = (0..40).map(|at| at * 7 % 90).collect();
    let spec = ScenarioSpec { lse: true, ..ScenarioSpec::decode(4, 2, 24, &lens) };
    for profile in profiles(&gpu) {
        let narrow = changed(&with_splits(&profile, 16), |it| it.max_workgroups_per_dim = 23);
        // 24 bytes of 16 a unit, two heads, 64 lanes: more groups than 23 for append, attention and merge alike
        let tokens: u32 = lens.iter().sum();
        assert!(tokens * 2 * 3 / 64 > 23 && lens.len() * 4 > 23);
        let scenario = Scenario::random(&spec, 7).unwrap();
        let folded = run(&gpu, &narrow, &scenario);
        assert!(scenario.judge(&folded).is_ok(), "{:?}", scenario.judge(&folded));
        let straight = run(&gpu, &with_splits(&profile, 16), &scenario);
        assert_eq!((bits(&folded.out), bits(&folded.lse)), (bits(&straight.out), bits(&straight.lse)));
    }
}
