//! Attention on the CPU, in f64: the oracle that kernels are compared with.
//!
//! It shares nothing with the kernels. Rows are fetched through two closures, so the same code answers for a
//! contiguous cache and for a paged one, and scores, weights and sums stay in f64 whatever the storage rounded
//! its inputs to. The softmax is the textbook two-pass form: all scores, their maximum, then the weighted sum.
//!
//! Only visible keys are asked for, so whatever lies in memory beyond `kv_len` cannot reach a result here.

mod compare;

pub use compare::{Mismatch, compare, max_error};

use half::f16;

/// Head counts and width of one attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads; a multiple of `num_kv_heads`.
    pub num_q_heads: usize,
    /// Key and value heads, at least 1.
    pub num_kv_heads: usize,
    /// Elements in one head's row.
    pub head_dim: usize,
}

impl Heads {
    /// Elements in one token's query or output: `num_q_heads * head_dim`.
    pub fn query_len(&self) -> usize {
        self.num_q_heads * self.head_dim
    }

    /// Query heads that share one KV head.
    fn group(&self) -> usize {
        assert!(
            self.num_kv_heads > 0 && self.num_q_heads.is_multiple_of(self.num_kv_heads),
            "{} query heads cannot be shared out over {} KV heads",
            self.num_q_heads,
            self.num_kv_heads
        );
        self.num_q_heads / self.num_kv_heads
    }
}

/// Result of attention for one or several query tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Attended {
    /// `[tokens, num_q_heads, head_dim]`, row-major. Exactly 0 where a token sees no key.
    pub output: Vec<f64>,
    /// `[tokens, num_q_heads]`: natural logarithm of the softmax denominator, −∞ where a token sees no key.
    pub lse: Vec<f64>,
}

/// Attention of one query token over the keys at positions `0..kv_len`.
///
/// `query`: `[num_q_heads, head_dim]`, row-major. `key(position, kv_head)` and `value(position, kv_head)` give rows of
/// `head_dim` elements; query head `h` reads KV head `h / (num_q_heads / num_kv_heads)`. The score of a key is
/// `scale · q·k`.
///
/// # Panics
/// If the head counts do not divide, or a slice has another length than stated: an oracle fed wrong shapes is a bug in
/// the test that feeds it.
pub fn attend<'a>(
    heads: &Heads,
    scale: f64,
    query: &[f32],
    kv_len: usize,
    key: impl Fn(usize, usize) -> &'a [f32],
    value: impl Fn(usize, usize) -> &'a [f32],
) -> Attended {
    attend_rows(heads, scale, query, &[kv_len], |_, pos, head| key(pos, head), |_, pos, head| value(pos, head))
}

/// Attention of every row of a batch: one query token each, row `r` over its own `kv_lens[r]` keys.
///
/// `queries`: `[kv_lens.len(), num_q_heads, head_dim]`, row-major. `key(row, position, kv_head)` and
/// `value(row, position, kv_head)` give rows of `head_dim` elements. Every row, head and key is computed; nothing is
/// sampled. For several causal tokens of one sequence, pass each token as a row with the number of keys it sees.
///
/// # Panics
/// As [`attend`].
pub fn attend_rows<'a>(
    heads: &Heads,
    scale: f64,
    queries: &[f32],
    kv_lens: &[usize],
    key: impl Fn(usize, usize, usize) -> &'a [f32],
    value: impl Fn(usize, usize, usize) -> &'a [f32],
) -> Attended {
    let group = heads.group();
    let dim = heads.head_dim;
    assert_eq!(queries.len(), kv_lens.len() * heads.query_len(), "query elements");
    let mut output = vec![0.0; queries.len()];
    let mut lse = vec![f64::NEG_INFINITY; kv_lens.len() * heads.num_q_heads];

    let mut scores = Vec::new();
    for (row, &kv_len) in kv_lens.iter().enumerate() {
        for head in 0..heads.num_q_heads {
            let kv_head = head / group;
            let index = row * heads.num_q_heads + head;
            let elements = index * dim..(index + 1) * dim;
            let query = &queries[elements.clone()];

            scores.clear();
            scores.extend((0..kv_len).map(|pos| scale * dot(query, key(row, pos, kv_head))));
            let Some(max) = maximum(&scores) else {
                continue;
            };

            let out = &mut output[elements];
            let mut denominator = 0.0;
            for (pos, &score) in scores.iter().enumerate() {
                let weight = (score - max).exp();
                denominator += weight;
                let value = value(row, pos, kv_head);
                assert_eq!(value.len(), dim, "value elements");
                for (o, &v) in out.iter_mut().zip(value) {
                    *o += weight * f64::from(v);
                }
            }
            for o in out {
                *o /= denominator;
            }
            lse[index] = max + denominator.ln();
        }
    }
    Attended { output, lse }
}

/// Dot product in f64. Eight partial sums, because a single one fixes the order of the additions and with it forbids
/// vector instructions.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "key elements");
    let (a_chunks, a_rest) = a.as_chunks::<8>();
    let (b_chunks, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (x, y) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..8 {
            sums[lane] += f64::from(x[lane]) * f64::from(y[lane]);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
    sums.iter().sum::<f64>() + rest
}

/// Largest score, `None` when there are none. A NaN wins, so that it shows in the output instead of being stepped over.
fn maximum(scores: &[f64]) -> Option<f64> {
    scores.iter().copied().reduce(|a, b| if a.is_nan() || a > b { a } else { b })
}

/// Rounds every element to the nearest f16 (ties to even) and back, as storage in f16 does.
///
/// Magnitudes from 65,520 upwards become infinite.
pub fn round_to_f16(values: &mut [f32]) {
    for value in values {
        *value = f16::from_f32(*value).to_f32();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row `pos` of a `[tokens, kv_heads, dim]` buffer.
    fn rows<'a>(buffer: &'a [f32], heads: Heads) -> impl Fn(usize, usize) -> &'a [f32] {
        move |pos, head| {
            let start = (pos * heads.num_kv_heads + head) * heads.head_dim;
            &buffer[start..start + heads.head_dim]
        }
    }

    fn close(got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() <= 1e-12 * w.abs().max(1.0), "{got:?} instead of {want:?}");
        }
    }

    const ONE: Heads = Heads { num_q_heads: 1, num_kv_heads: 1, head_dim: 2 };

    #[test]
    fn one_key_gives_back_its_value() {
        // Softmax of a single score is 1. Score: 0.5 · (2·3 + 1·4) = 5, and ln(e^5) = 5.
        let got = attend(&ONE, 0.5, &[2.0, 1.0], 1, rows(&[3.0, 4.0], ONE), rows(&[7.0, -9.0], ONE));
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
        let got = attend(&ONE, 3.0_f64.ln(), &[1.0, 0.0], 2, rows(&keys, ONE), rows(&values, ONE));
        close(&got.output, &[7.0, -3.0]);
        close(&got.lse, &[4.0_f64.ln()]);
    }

    #[test]
    fn query_heads_read_the_kv_head_of_their_group() {
        // 4 query heads over 2 KV heads: heads 0 and 1 read KV head 0, heads 2 and 3 read KV head 1.
        let heads = Heads { num_q_heads: 4, num_kv_heads: 2, head_dim: 1 };
        // One key: every output is the value of its KV head; scores are q·k = [1·5, 2·5, 3·7, 4·7].
        let got = attend(&heads, 1.0, &[1.0, 2.0, 3.0, 4.0], 1, rows(&[5.0, 7.0], heads), rows(&[10.0, 20.0], heads));
        close(&got.output, &[10.0, 10.0, 20.0, 20.0]);
        close(&got.lse, &[5.0, 10.0, 21.0, 28.0]);
    }

    #[test]
    fn an_empty_row_is_zero_with_an_lse_of_minus_infinity() {
        let never = |_, _| -> &[f32] { panic!("an empty row asks for no key") };
        let got = attend(&ONE, 1.0, &[1.0, 2.0], 0, never, never);
        assert_eq!(got.output, [0.0, 0.0]);
        assert_eq!(got.lse, [f64::NEG_INFINITY]);
    }

    #[test]
    fn large_scores_do_not_overflow() {
        // Scores 10^6 and 0. e^(10^6) has no f64, but relative to the maximum the weights are 1 and
        // e^(−10^6), which rounds to 0: the output is the first value and the LSE 10^6 + ln 1.
        let heads = Heads { head_dim: 1, ..ONE };
        let got = attend(&heads, 1.0, &[1.0], 2, rows(&[1e6, 0.0], heads), rows(&[2.0, 1e30], heads));
        close(&got.output, &[2.0]);
        close(&got.lse, &[1e6]);
        // Two keys of the same large score share evenly: (2 + 4) / 2 = 3, and the LSE is −10^6 + ln 2.
        let got = attend(&heads, 1.0, &[-1.0], 2, rows(&[1e6, 1e6], heads), rows(&[2.0, 4.0], heads));
        close(&got.output, &[3.0]);
        close(&got.lse, &[-1e6 + 2.0_f64.ln()]);
    }

    #[test]
    fn rows_of_a_batch_equal_the_same_rows_alone() {
        // 11 elements: one full group of eight in `dot` and a rest of three.
        let heads = Heads { num_q_heads: 2, num_kv_heads: 1, head_dim: 11 };
        let wave = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 50.0;
        let cache: Vec<f32> = (0..3 * 11).map(wave).collect();
        let queries: Vec<f32> = (0..3 * 22).map(|i| wave(i + 7)).collect();
        let lens = [3, 0, 2];
        let row = rows(&cache, heads);
        let all = attend_rows(&heads, 0.3, &queries, &lens, |_, p, h| row(p, h), |_, p, h| row(p, h));
        for (r, &len) in lens.iter().enumerate() {
            let one = attend(&heads, 0.3, &queries[r * 22..(r + 1) * 22], len, &row, &row);
            assert_eq!(all.output[r * 22..(r + 1) * 22], one.output);
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
        let heads = Heads { head_dim: 1, ..ONE };
        let got = attend(&heads, 1.0, &[1.0], 2, rows(&[f32::NAN, 0.0], heads), rows(&[1.0, 1.0], heads));
        assert!(got.output[0].is_nan() && got.lse[0].is_nan());
    }

    #[test]
    fn rounding_to_f16_keeps_eleven_bits() {
        // 2049 lies between 2048 and 2050, a tie: to even, 2048. 1/3 becomes 1365/4096. 65520 leaves the range.
        let mut values = [2049.0, 1.0 / 3.0, 65519.0, 65520.0];
        round_to_f16(&mut values);
        assert_eq!(values, [2048.0, 1365.0 / 4096.0, 65504.0, f32::INFINITY]);
    }
}
