//! Attention on the CPU, in f64: the oracle that kernels are compared with.
//!
//! It shares nothing with the kernels. Rows are fetched through two closures, so the same code answers for a
//! contiguous cache and for a paged one, and scores, weights and sums stay in f64 whatever the storage rounded
//! its inputs to. The softmax is the textbook two-pass form: all scores, their maximum, then the weighted sum.
//! Which keys a query sees, and what becomes of `q · k`, is [`Scoring`].
//!
//! Only visible keys are asked for, so whatever lies in memory behind them cannot reach a result here.

mod compare;
mod merge;
mod norm;
mod rotary;
mod scoring;

pub use compare::{Mismatch, compare, max_error};
pub use merge::merge_states;
pub use norm::rms_norm;
pub use rotary::{Rotary, inverse_frequencies, rotate, rotate_by_axis};
pub use scoring::{QueryRow, Scoring};

/// Head counts and widths of one attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads; a multiple of `num_kv_heads`.
    pub num_q_heads: usize,
    /// Key and value heads, at least 1.
    pub num_kv_heads: usize,
    /// Elements in one head's row of q and K.
    pub head_dim: usize,
    /// Elements in one head's row of V and of the output.
    pub v_head_dim: usize,
}

impl Heads {
    /// Heads whose V is as wide as their K.
    pub const fn new(num_q_heads: usize, num_kv_heads: usize, head_dim: usize) -> Self {
        Self { num_q_heads, num_kv_heads, head_dim, v_head_dim: head_dim }
    }

    /// Elements in one token's query: `num_q_heads * head_dim`.
    pub const fn query_len(&self) -> usize {
        self.num_q_heads * self.head_dim
    }

    /// Elements in one token's output: `num_q_heads * v_head_dim`.
    pub const fn output_len(&self) -> usize {
        self.num_q_heads * self.v_head_dim
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
    /// `[tokens, num_q_heads, v_head_dim]`, row-major. Exactly 0 where a token sees no key.
    pub output: Vec<f64>,
    /// `[tokens, num_q_heads]`: natural logarithm of the softmax denominator, −∞ where a token sees no key.
    pub lse: Vec<f64>,
}

/// Attention of one query token.
///
/// `query`: `[num_q_heads, head_dim]`, row-major. `key(position, kv_head)` gives rows of `head_dim` elements and
/// `value(position, kv_head)` rows of `v_head_dim`; query head `h` reads KV head `h / (num_q_heads / num_kv_heads)`.
///
/// # Panics
/// If the head counts do not divide, or a slice has another length than stated: an oracle fed wrong shapes is a bug in
/// the test that feeds it.
pub fn attend<'a>(
    heads: &Heads,
    scoring: &Scoring<'_>,
    query: &[f32],
    row: QueryRow,
    key: impl Fn(usize, usize) -> &'a [f32],
    value: impl Fn(usize, usize) -> &'a [f32],
) -> Attended {
    attend_rows(heads, scoring, query, &[row], |_, pos, head| key(pos, head), |_, pos, head| value(pos, head))
}

/// Attention of every row of a batch: one query token each, row `r` at its own place `rows[r]`.
///
/// `queries`: `[rows.len(), num_q_heads, head_dim]`, row-major. `key(row, position, kv_head)` and
/// `value(row, position, kv_head)` give rows of `head_dim` and of `v_head_dim` elements. Every row, head and visible key
/// is computed; nothing is sampled.
///
/// # Panics
/// As [`attend`].
pub fn attend_rows<'a>(
    heads: &Heads,
    scoring: &Scoring<'_>,
    queries: &[f32],
    rows: &[QueryRow],
    key: impl Fn(usize, usize, usize) -> &'a [f32],
    value: impl Fn(usize, usize, usize) -> &'a [f32],
) -> Attended {
    let group = heads.group();
    let (dim, v_dim) = (heads.head_dim, heads.v_head_dim);
    assert_eq!(queries.len(), rows.len() * heads.query_len(), "query elements");
    let mut output = vec![0.0; rows.len() * heads.output_len()];
    let mut lse = vec![f64::NEG_INFINITY; rows.len() * heads.num_q_heads];

    let mut scores = Vec::new();
    for (row, &place) in rows.iter().enumerate() {
        let visible: Vec<usize> = (0..place.seq_len).filter(|&pos| scoring.sees(place, pos)).collect();
        for head in 0..heads.num_q_heads {
            let kv_head = head / group;
            let index = row * heads.num_q_heads + head;
            let query = &queries[index * dim..][..dim];

            scores.clear();
            scores
                .extend(visible.iter().map(|&pos| scoring.score(head, place, pos, dot(query, key(row, pos, kv_head)))));
            // A sink has no value: without any key there is nothing that it could be weighed against.
            let Some(largest) = maximum(&scores) else {
                continue;
            };
            let sink = scoring.sink(head);
            let max = sink.map_or(largest, |sink| greater(largest, sink));

            let out = &mut output[index * v_dim..][..v_dim];
            let mut denominator = sink.map_or(0.0, |sink| (sink - max).exp());
            for (&pos, &score) in visible.iter().zip(&scores) {
                let weight = (score - max).exp();
                denominator += weight;
                let value = value(row, pos, kv_head);
                assert_eq!(value.len(), v_dim, "value elements");
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

/// Largest score, `None` when there are none.
fn maximum(scores: &[f64]) -> Option<f64> {
    scores.iter().copied().reduce(greater)
}

/// The greater one. A NaN wins, so that it shows in the output instead of being stepped over.
fn greater(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

#[cfg(test)]
mod tests;
