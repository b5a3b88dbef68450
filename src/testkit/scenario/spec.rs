//! The shape of a scenario.

use std::fmt;

use crate::config::{CacheConfig, KvDtype};
use crate::error::ConfigError;
use crate::gpu::{AttentionSpec, IoFormat};
use crate::layout::KvLayout;
use crate::reference::{QueryRow, Scoring};

/// The shape of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct ScenarioSpec {
    /// Query heads.
    pub num_q_heads: u32,
    /// KV heads.
    pub num_kv_heads: u32,
    /// Elements of one head.
    pub head_dim: u32,
    /// Elements of one head of V, where they are not as many.
    pub v_head_dim: Option<u32>,
    /// Storage of K and V.
    pub kv_dtype: KvDtype,
    /// Tokens per block.
    pub block_size: u32,
    /// `false` gives every sequence one region of the longest length.
    pub paged: bool,
    /// Tokens of every sequence, those of this step included.
    pub seq_lens: Vec<u32>,
    /// Queries of every sequence; `None` is one each.
    pub query_lens: Option<Vec<u32>>,
    /// Whether the device gets its tables as lists of blocks instead of a rectangle.
    pub csr: bool,
    /// Leading blocks that all sequences share, where they are long enough.
    pub shared_blocks: u32,
    /// What becomes of `q · k`.
    pub variant: ScenarioVariant,
    /// Whether the log-sum-exp is asked for.
    pub lse: bool,
}

/// The variant of attention that a scenario computes; slopes and sinks are data of the [`Scenario`](super::Scenario).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScenarioVariant {
    /// Whether keys behind the query are hidden.
    pub causal: bool,
    /// Keys that a query sees at most.
    pub window: Option<u32>,
    /// Bound of the scores.
    pub soft_cap: Option<f32>,
    /// Whether scores gain with nearness.
    pub alibi: bool,
    /// Whether a score without a value joins every denominator.
    pub sinks: bool,
    /// What q and the output are made of.
    pub io_format: IoFormat,
}

impl ScenarioVariant {
    /// Causal attention in f32, and nothing else.
    pub const PLAIN: Self =
        Self { causal: true, window: None, soft_cap: None, alibi: false, sinks: false, io_format: IoFormat::F32 };
}

impl ScenarioVariant {
    /// The device's spec of it; of `terms`, the slopes and the sinks of all heads, those that the variant uses.
    pub fn attention_spec(&self, num_q_heads: u32, terms: (&[f32], &[f32]), lse: bool) -> AttentionSpec {
        AttentionSpec {
            causal: self.causal,
            window: self.window,
            soft_cap: self.soft_cap,
            alibi_slopes: self.alibi.then(|| terms.0.to_vec()),
            sinks: self.sinks.then(|| terms.1.to_vec()),
            lse,
            io_format: self.io_format,
            ..AttentionSpec::new(num_q_heads)
        }
    }

    /// The oracle's.
    pub fn scoring<'a>(&self, scale: f64, terms: (&'a [f32], &'a [f32])) -> Scoring<'a> {
        Scoring {
            scale,
            soft_cap: self.soft_cap.map(f64::from),
            causal: self.causal,
            window: self.window,
            alibi_slopes: self.alibi.then_some(terms.0),
            sinks: self.sinks.then_some(terms.1),
        }
    }
}

impl fmt::Display for ScenarioVariant {
    /// Its options, `non-causal, window 256, soft cap 30, alibi, sinks, f16 io`; `plain` without any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |on: bool, word: &str| on.then(|| word.to_owned());
        let options: Vec<String> = [
            word(!self.causal, "non-causal"),
            self.window.map(|window| format!("window {window}")),
            self.soft_cap.map(|cap| format!("soft cap {cap}")),
            word(self.alibi, "alibi"),
            word(self.sinks, "sinks"),
            word(self.io_format == IoFormat::F16, "f16 io"),
        ]
        .into_iter()
        .flatten()
        .collect();
        f.pad(&if options.is_empty() { "plain".to_owned() } else { options.join(", ") })
    }
}

impl Default for ScenarioVariant {
    fn default() -> Self {
        Self::PLAIN
    }
}

impl ScenarioSpec {
    /// One query per sequence, block size 16, f16, nothing shared, no variant.
    pub fn decode(num_q_heads: u32, num_kv_heads: u32, head_dim: u32, seq_lens: &[u32]) -> Self {
        Self {
            num_q_heads,
            num_kv_heads,
            head_dim,
            v_head_dim: None,
            kv_dtype: KvDtype::F16,
            block_size: 16,
            paged: true,
            seq_lens: seq_lens.to_vec(),
            query_lens: None,
            csr: false,
            shared_blocks: 0,
            variant: ScenarioVariant::PLAIN,
            lse: false,
        }
    }

    /// Queries of a sequence.
    pub fn queries(&self, seq: usize) -> u32 {
        self.query_lens.as_ref().map_or(1, |lens| lens[seq])
    }

    /// The sequence of every row, and its place there.
    pub fn rows(&self) -> Vec<(usize, QueryRow)> {
        let mut rows = Vec::new();
        for (seq, &len) in self.seq_lens.iter().enumerate() {
            let queries = self.queries(seq);
            let first = i64::from(len) - i64::from(queries);
            let row = |i| (seq, QueryRow { position: first + i64::from(i), seq_len: len as usize });
            rows.extend((0..queries).map(row));
        }
        rows
    }

    /// Elements of one head of V and of the output.
    pub fn v_dim(&self) -> u32 {
        self.v_head_dim.unwrap_or(self.head_dim)
    }

    /// Elements of one token's K.
    pub(super) fn k_row(&self) -> usize {
        (self.num_kv_heads * self.head_dim) as usize
    }

    /// Elements of one token's V.
    pub(super) fn v_row(&self) -> usize {
        (self.num_kv_heads * self.v_dim()) as usize
    }

    /// Tokens of the longest sequence, at least 1.
    fn longest(&self) -> u32 {
        self.seq_lens.iter().copied().max().unwrap_or(0).max(1)
    }

    /// Blocks of every sequence.
    pub(super) fn blocks(&self) -> Vec<u32> {
        let blocks = |&len: &u32| if self.paged { len.div_ceil(self.block_size) } else { 1 };
        self.seq_lens.iter().map(blocks).collect()
    }

    /// A cache of `num_blocks` blocks of one layer, large enough for every sequence's table.
    ///
    /// # Errors
    /// [`ConfigError`] if the spec describes no possible cache.
    pub fn layout(&self, num_blocks: u32) -> Result<KvLayout, ConfigError> {
        let longest = self.longest();
        let mut config = CacheConfig::new(1, self.num_kv_heads, self.head_dim)
            .with_kv_dtype(self.kv_dtype)
            .with_block_size(if self.paged { self.block_size } else { longest })
            .with_num_blocks(num_blocks)
            .with_paged(self.paged)
            .with_max_seq_len(longest)
            .with_max_sequences((self.seq_lens.len() as u32).max(1));
        config.v_head_dim = self.v_head_dim;
        config.layout()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_named_by_its_options() {
        assert_eq!(ScenarioVariant::PLAIN.to_string(), "plain");
        let all = ScenarioVariant {
            causal: false,
            window: Some(256),
            soft_cap: Some(30.0),
            alibi: true,
            sinks: true,
            io_format: IoFormat::F16,
        };
        assert_eq!(all.to_string(), "non-causal, window 256, soft cap 30, alibi, sinks, f16 io");
        let spec = all.attention_spec(2, (&[0.5, 0.25], &[1.0, 2.0]), true);
        assert_eq!((spec.alibi_slopes, spec.sinks, spec.lse), (Some(vec![0.5, 0.25]), Some(vec![1.0, 2.0]), true));
        let plain = ScenarioVariant::PLAIN.attention_spec(2, (&[0.5, 0.25], &[1.0, 2.0]), false);
        assert_eq!(plain, AttentionSpec::new(2));
    }
}
