use super::*;

/// Row `pos` of a `[tokens, kv_heads, dim]` buffer.
fn rows<'a>(buffer: &'a [f32], num_kv_heads: usize, dim: usize) -> impl Fn(usize, usize) -> &'a [f32] {
    move |pos, head| &buffer[(pos * num_kv_heads + head) * dim..][..dim]
}

/// The newest of as many tokens as K has.
fn newest(heads: &Heads, scoring: &Scoring<'_>, query: &[f32], keys: &[f32], values: &[f32]) -> Attended {
    let row = QueryRow::newest(keys.len() / heads.num_kv_heads / heads.head_dim);
    at(heads, scoring, query, row, keys, values)
}

fn at(heads: &Heads, scoring: &Scoring<'_>, query: &[f32], row: QueryRow, keys: &[f32], values: &[f32]) -> Attended {
    let kv = heads.num_kv_heads;
    attend(heads, scoring, query, row, rows(keys, kv, heads.head_dim), rows(values, kv, heads.v_head_dim))
}

/// Outputs of the queries at some positions of a sequence whose keys are all 0 and whose value is the position: the mean
/// of the positions seen.
fn means(scoring: &Scoring<'_>, seq_len: usize, positions: &[i64]) -> Vec<f64> {
    let values: Vec<f32> = (0..seq_len).map(|t| t as f32).collect();
    let mean = |&position: &i64| {
        let row = QueryRow { position, seq_len };
        at(&SCALAR, scoring, &[1.0], row, &vec![0.0; seq_len], &values).output[0]
    };
    positions.iter().map(mean).collect()
}

#[track_caller]
fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= 1e-12 * w.abs().max(1.0), "{got:?} instead of {want:?}");
    }
}

const ONE: Heads = Heads::new(1, 1, 2);
const SCALAR: Heads = Heads::new(1, 1, 1);
const PLAIN: Scoring<'static> = Scoring::new(1.0);

#[test]
fn one_key_gives_back_its_value() {
    // Softmax of a single score is 1. Score: 0.5 · (2·3 + 1·4) = 5, and ln(e^5) = 5.
    let got = newest(&ONE, &Scoring::new(0.5), &[2.0, 1.0], &[3.0, 4.0], &[7.0, -9.0]);
    close(&got.output, &[7.0, -9.0]);
    close(&got.lse, &[5.0]);
}

#[test]
fn two_keys_are_weighted_one_to_three() {
    // Scores ln 1 = 0 and ln 3: weights 1/(1+3) and 3/(1+3).
    // Output: 0.25·[4, 0] + 0.75·[8, −4] = [1 + 6, 0 − 3] = [7, −3]. LSE: ln(1 + 3) = ln 4.
    // The query is 1, the first key 0 and the second 1, so that ln 3 enters through the f64 scale, unrounded.
    let keys = [0.0, 0.0, 1.0, 0.0];
    let values = [4.0, 0.0, 8.0, -4.0];
    let got = newest(&ONE, &Scoring::new(3.0_f64.ln()), &[1.0, 0.0], &keys, &values);
    close(&got.output, &[7.0, -3.0]);
    close(&got.lse, &[4.0_f64.ln()]);
}

#[test]
fn values_may_be_wider_or_narrower_than_keys() {
    // Equal scores: the mean of the two values, whatever their width.
    let narrow = Heads { v_head_dim: 1, ..ONE };
    let got = newest(&narrow, &PLAIN, &[1.0, 1.0], &[0.5, 0.5, 1.0, 0.0], &[4.0, 8.0]);
    close(&got.output, &[6.0]);
    close(&got.lse, &[1.0 + 2.0_f64.ln()]);
    let wide = Heads { v_head_dim: 3, num_q_heads: 2, ..ONE };
    let got = newest(&wide, &PLAIN, &[1.0, 1.0, 0.0, 0.0], &[0.5, 0.5, 1.0, 0.0], &[4.0, 1.0, 0.0, 8.0, 3.0, -2.0]);
    close(&got.output, &[6.0, 2.0, -1.0, 6.0, 2.0, -1.0]);
    close(&got.lse, &[1.0 + 2.0_f64.ln(), 2.0_f64.ln()]);
}

#[test]
fn query_heads_read_the_kv_head_of_their_group() {
    // 4 query heads over 2 KV heads: heads 0 and 1 read KV head 0, heads 2 and 3 read KV head 1.
    let heads = Heads::new(4, 2, 1);
    // One key: every output is the value of its KV head; scores are q·k = [1·5, 2·5, 3·7, 4·7].
    let got = newest(&heads, &PLAIN, &[1.0, 2.0, 3.0, 4.0], &[5.0, 7.0], &[10.0, 20.0]);
    close(&got.output, &[10.0, 10.0, 20.0, 20.0]);
    close(&got.lse, &[5.0, 10.0, 21.0, 28.0]);
}

#[test]
fn a_row_without_a_visible_key_is_zero_with_an_lse_of_minus_infinity_even_with_a_sink() {
    let never = |_, _| -> &[f32] { panic!("such a row asks for no key") };
    for row in [QueryRow::newest(0), QueryRow { position: -1, seq_len: 3 }, QueryRow { position: -4, seq_len: 0 }] {
        for sinks in [None, Some(&[2.0][..])] {
            let got = attend(&ONE, &Scoring { sinks, ..PLAIN }, &[1.0, 2.0], row, never, never);
            assert_eq!(got.output, [0.0, 0.0], "{row:?}");
            assert_eq!(got.lse, [f64::NEG_INFINITY], "{row:?}");
        }
    }
}

#[test]
fn a_causal_query_sees_the_keys_up_to_its_own() {
    // The last two of three tokens, and one from before the first.
    assert_eq!(means(&PLAIN, 3, &[1, 2, -1]), [0.5, 1.0, 0.0]);
    // Without the mask all see all three.
    assert_eq!(means(&Scoring { causal: false, ..PLAIN }, 3, &[0, 2, -1]), [1.0, 1.0, 1.0]);
}

#[test]
fn a_window_counts_the_querys_own_key() {
    let window = |window| Scoring { window: Some(window), ..PLAIN };
    // Keys 6 to 9 of ten; 9 alone; all.
    assert_eq!(means(&window(4), 10, &[9]), [7.5]);
    assert_eq!(means(&window(1), 10, &[9, 3, 0]), [9.0, 3.0, 0.0]);
    assert_eq!(means(&window(10), 10, &[9]), means(&PLAIN, 10, &[9]));
    assert_eq!(means(&window(u32::MAX), 10, &[9]), means(&PLAIN, 10, &[9]));
    // Every position of a prompt: the mean of max(0, i − 3)..=i.
    let want: Vec<f64> = (0..10).map(|i: i64| ((i - 3).max(0) + i) as f64 / 2.0).collect();
    assert_eq!(means(&window(4), 10, &(0..10).collect::<Vec<_>>()), want);
    // Not causal, it is a lower bound: from position 2 of 5, a window of 2 shows keys 1 to 4.
    assert_eq!(means(&Scoring { causal: false, ..window(2) }, 5, &[2, -3]), [2.5, 2.0]);
}

#[test]
fn a_soft_cap_bends_scores_and_bounds_them() {
    // 2·atanh(1/2) under a cap of 2 becomes 2·tanh(atanh(1/2)) = 1: beside a score of 0, a weight of e/(1 + e).
    let scoring = Scoring { soft_cap: Some(2.0), ..Scoring::new(2.0 * 0.5_f64.atanh()) };
    let e = 1.0_f64.exp();
    let got = newest(&SCALAR, &scoring, &[1.0], &[0.0, 1.0], &[0.0, 1.0]);
    close(&got.output, &[e / (1.0 + e)]);
    close(&got.lse, &[(1.0 + e).ln()]);
    // Scores of ±800 become ±5: a weight of 1/(1 + e^−10).
    let got = newest(&SCALAR, &Scoring { soft_cap: Some(5.0), ..PLAIN }, &[800.0], &[1.0, -1.0], &[1.0, 0.0]);
    close(&got.output, &[1.0 / (1.0 + (-10.0_f64).exp())]);
}

#[test]
fn alibi_favours_near_keys_and_adds_nothing_for_the_querys_own() {
    // Slope 1: weights 1, 1/e, 1/e², … of which the first is the newest key's.
    let scoring = Scoring { alibi_slopes: Some(&[1.0]), ..PLAIN };
    let geometric = |terms: i32| (0..terms).map(|n| f64::from(-n).exp()).sum::<f64>();
    let got = newest(&SCALAR, &scoring, &[1.0], &[0.0; 5], &[0.0, 0.0, 0.0, 0.0, 1.0]);
    close(&got.output, &[1.0 / geometric(5)]);
    close(&got.lse, &[geometric(5).ln()]);
    // A key behind the query gains: from position 0 of two, weights 1 and e.
    let row = QueryRow { position: 0, seq_len: 2 };
    let scoring = Scoring { causal: false, ..scoring };
    let got = at(&SCALAR, &scoring, &[1.0], row, &[0.0, 0.0], &[1.0, 0.0]);
    close(&got.output, &[1.0 / (1.0 + 1.0_f64.exp())]);
    // Every head has its own slope.
    let heads = Heads { num_q_heads: 2, ..SCALAR };
    let scoring = Scoring { alibi_slopes: Some(&[0.0, 1.0]), ..PLAIN };
    let got = newest(&heads, &scoring, &[1.0, 1.0], &[0.0; 2], &[0.0, 1.0]);
    close(&got.output, &[0.5, 1.0 / geometric(2)]);
}

#[test]
fn the_soft_cap_comes_before_the_alibi_term() {
    // Both scores are capped to 1 and the term of −1 stays whole; capped afterwards, the weights would be even.
    let scoring = Scoring { soft_cap: Some(1.0), alibi_slopes: Some(&[1.0]), ..PLAIN };
    let got = newest(&SCALAR, &scoring, &[1000.0], &[1.0; 2], &[0.0, 1.0]);
    close(&got.output, &[1.0 / (1.0 + (-1.0_f64).exp())]);
}

#[test]
fn a_sink_joins_the_denominator_once() {
    // One key of score 0 and a sink of 0: half the weight, and ln 2.
    let sink = |sinks| Scoring { sinks: Some(sinks), ..PLAIN };
    let got = newest(&SCALAR, &sink(&[0.0]), &[0.0], &[0.0], &[8.0]);
    close(&got.output, &[4.0]);
    close(&got.lse, &[2.0_f64.ln()]);
    // A sink of −∞ is none, and one that dwarfs all scores leaves e^(0 − 100).
    let none = newest(&SCALAR, &PLAIN, &[1.0], &[3.0, 1.0], &[8.0, 2.0]);
    assert_eq!(newest(&SCALAR, &sink(&[f32::NEG_INFINITY]), &[1.0], &[3.0, 1.0], &[8.0, 2.0]), none);
    let got = newest(&SCALAR, &sink(&[100.0]), &[0.0], &[0.0], &[1.0]);
    assert!((got.output[0] / (-100.0_f64).exp() - 1.0).abs() < 1e-12, "{got:?}");
    close(&got.lse, &[100.0]);
    // Every head has its own: weights 1/(1 + 1) and 1/(1 + 3), of ln 3 in f32.
    let got = newest(&Heads { num_q_heads: 2, ..SCALAR }, &sink(&[0.0, 3_f32.ln()]), &[0.0; 2], &[0.0], &[8.0]);
    assert!((got.output[0] - 4.0).abs() < 1e-12 && (got.output[1] - 2.0).abs() < 1e-6, "{got:?}");
}

#[test]
fn parts_merge_into_the_whole_if_one_of_them_has_the_sink() {
    let heads = Heads { num_q_heads: 2, v_head_dim: 2, ..SCALAR };
    let (keys, values) = ([0.3, -1.0, 2.0, 0.7, 0.1], [1.0, 5.0, -2.0, 0.0, 3.0, 1.0, 8.0, -4.0, 0.5, 0.25]);
    let sinks = [0.4, -1.5];
    let part = |from: usize, to: usize, sinks| {
        let scoring = Scoring { sinks, ..PLAIN };
        newest(&heads, &scoring, &[1.0, -0.5], &keys[from..to], &values[2 * from..2 * to])
    };
    let whole = part(0, 5, Some(&sinks[..]));
    let merged = merge_states(&part(0, 2, Some(&sinks[..])), &part(2, 5, None));
    close(&merged.output, &whole.output);
    close(&merged.lse, &whole.lse);
    let twice = merge_states(&part(0, 2, Some(&sinks[..])), &part(2, 5, Some(&sinks[..])));
    assert!((twice.lse[0] - whole.lse[0]).abs() > 0.05, "a sink in both parts counts twice");
}

#[test]
fn large_scores_do_not_overflow() {
    // Scores 10^6 and 0. e^(10^6) has no f64, but relative to the maximum the weights are 1 and
    // e^(−10^6), which rounds to 0: the output is the first value and the LSE 10^6 + ln 1.
    let got = newest(&SCALAR, &PLAIN, &[1.0], &[1e6, 0.0], &[2.0, 1e30]);
    close(&got.output, &[2.0]);
    close(&got.lse, &[1e6]);
    // Two keys of the same large score share evenly: (2 + 4) / 2 = 3, and the LSE is −10^6 + ln 2.
    let got = newest(&SCALAR, &PLAIN, &[-1.0], &[1e6, 1e6], &[2.0, 4.0]);
    close(&got.output, &[3.0]);
    close(&got.lse, &[-1e6 + 2.0_f64.ln()]);
}

#[test]
fn rows_of_a_batch_equal_the_same_rows_alone() {
    // 11 elements: one full group of eight in `dot` and a rest of three.
    let heads = Heads { v_head_dim: 7, ..Heads::new(2, 1, 11) };
    let wave = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 50.0;
    let keys: Vec<f32> = (0..3 * 11).map(wave).collect();
    let values: Vec<f32> = (0..3 * 7).map(|i| wave(i + 3)).collect();
    let queries: Vec<f32> = (0..4 * 22).map(|i| wave(i + 7)).collect();
    let places = [QueryRow::newest(3), QueryRow::newest(0), QueryRow { position: 0, seq_len: 3 }, QueryRow::newest(2)];
    let (key, value) = (rows(&keys, 1, 11), rows(&values, 1, 7));
    let scoring = Scoring { alibi_slopes: Some(&[0.1, 0.2]), ..Scoring::new(0.3) };
    let all = attend_rows(&heads, &scoring, &queries, &places, |_, p, h| key(p, h), |_, p, h| value(p, h));
    for (r, &place) in places.iter().enumerate() {
        let one = attend(&heads, &scoring, &queries[r * 22..(r + 1) * 22], place, &key, &value);
        assert_eq!(all.output[r * 14..(r + 1) * 14], one.output);
        assert_eq!(all.lse[r * 2..(r + 1) * 2], one.lse);
    }
}

#[test]
fn a_dot_product_counts_every_element_once() {
    // Σ i² for i = 1..=11 is 11·12·23/6 = 506.
    let row: Vec<f32> = (1..=11).map(|i| i as f32).collect();
    assert_eq!(dot(&row, &row), 506.0);
}

#[test]
fn a_nan_of_a_visible_key_reaches_the_output() {
    for sinks in [None, Some(&[0.0][..])] {
        let got = newest(&SCALAR, &Scoring { sinks, ..PLAIN }, &[1.0], &[f32::NAN, 0.0], &[1.0, 1.0]);
        assert!(got.output[0].is_nan() && got.lse[0].is_nan());
    }
}
