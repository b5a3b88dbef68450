//! What becomes of `q · k`: the variants of attention, as the oracle sees them.

/// Where a query stands in its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryRow {
    /// Its own position. Query `i` of the `n` that a sequence of length `L` brings is at `L - n + i`, which is negative
    /// where there are more queries than tokens.
    pub position: i64,
    /// Tokens of the sequence: keys are at `0..seq_len`.
    pub seq_len: usize,
}

impl QueryRow {
    /// The last token of a sequence, as in decoding; before position 0 if the sequence is empty.
    pub fn newest(seq_len: usize) -> Self {
        Self { position: seq_len as i64 - 1, seq_len }
    }
}

/// How scores are made of dot products, and which keys there are for a query.
///
/// ```text
/// score = scale · q·k  →  soft_cap · tanh(score / soft_cap)  →  mask  →  + slope · (key position − query position)
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scoring<'a> {
    /// Factor of `q · k`.
    pub scale: f64,
    /// Bound of the scores before the ALiBi term is added.
    pub soft_cap: Option<f64>,
    /// Whether keys behind the query's own position are hidden.
    pub causal: bool,
    /// Keys that a query sees at most, its own among them: those with `position − key < window`.
    pub window: Option<u32>,
    /// `[num_q_heads]` what a score gains with every position that the key is further on.
    pub alibi_slopes: Option<&'a [f32]>,
    /// `[num_q_heads]` a score that joins the denominator once and has no value.
    pub sinks: Option<&'a [f32]>,
}

impl Scoring<'_> {
    /// Causal attention without any variant.
    pub const fn new(scale: f64) -> Self {
        Self { scale, soft_cap: None, causal: true, window: None, alibi_slopes: None, sinks: None }
    }

    /// Whether a query sees the key at `key`, which is below its `seq_len`.
    pub(super) fn sees(&self, row: QueryRow, key: usize) -> bool {
        let age = row.position - key as i64;
        (!self.causal || age >= 0) && self.window.is_none_or(|window| age < i64::from(window))
    }

    /// The score of a visible key.
    pub(super) fn score(&self, head: usize, row: QueryRow, key: usize, dot: f64) -> f64 {
        let mut score = self.scale * dot;
        if let Some(cap) = self.soft_cap {
            score = cap * (score / cap).tanh();
        }
        if let Some(slopes) = self.alibi_slopes {
            score += f64::from(slopes[head]) * (key as i64 - row.position) as f64;
        }
        score
    }

    /// The sink of a query head.
    pub(super) fn sink(&self, head: usize) -> Option<f64> {
        self.sinks.map(|sinks| f64::from(sinks[head]))
    }
}
