//! What a case computes on: a function of the case and its seed alone.

use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::formats::round_rows;
use wgpu_paged_attention::testkit::ScenarioVariant;

use super::{Cost, Mode, ModelShape, Op, accounting};
use crate::seed::{CaseRng, InputHash, rng_for};

/// Bytes that one append reads of a buffer at most: what an engine sends at a time, and within every device's binding.
const MAX_APPEND_BYTES: u64 = 64 << 20;
/// Tokens of a sequence that the append operation writes at most: a chunk of a prefill.
const MAX_APPEND_TOKENS: u32 = 512;

/// Where what a step reads and writes lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// In a buffer each, without gaps.
    #[default]
    Compact,
    /// One after the other in one buffer, as arenas hand memory out.
    Arena,
    /// Queries, K and V as columns of a fused projection, `[tokens, q | k | v]`.
    Fused,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CaseInputs {
    pub shape: ModelShape,
    pub kv_dtype: KvDtype,
    pub block_size: u32,
    pub lens: Vec<u32>,
    pub workload: String,
    pub decoding: u32,
    pub shared_prefix: u32,
    pub variant: ScenarioVariant,
    pub lse: bool,
    pub placement: Placement,
    /// Layers, all with the same data: so many that a device's caches do not hold what one layer reads next.
    pub layers: u32,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    K = 0,
    V = 1,
}

impl CaseInputs {
    pub fn new(shape: ModelShape, lens: Vec<u32>, seed: u64) -> Self {
        Self {
            shape,
            kv_dtype: KvDtype::F16,
            block_size: 16,
            lens,
            workload: "uniform".to_owned(),
            decoding: 1,
            shared_prefix: 0,
            variant: ScenarioVariant::PLAIN,
            lse: false,
            placement: Placement::Compact,
            layers: 1,
            seed,
        }
    }

    pub fn label(&self) -> String {
        let Self { shape, kv_dtype, lens, .. } = self;
        format!("{shape} {kv_dtype} {}x{}", lens.len(), self.longest())
    }

    pub fn longest(&self) -> u32 {
        self.lens.iter().copied().max().unwrap_or(0)
    }

    pub fn variant_name(&self, op: Op) -> String {
        let computed = if op == Op::Append { ScenarioVariant::PLAIN.to_string() } else { self.attention_name(op) };
        let placed = match self.placement {
            Placement::Compact => return computed,
            Placement::Arena => "in an arena",
            Placement::Fused => "in fused q, k, v",
        };
        if computed == ScenarioVariant::PLAIN.to_string() { placed.to_owned() } else { format!("{computed}, {placed}") }
    }

    fn attention_name(&self, op: Op) -> String {
        let mut variant = self.variant;
        // One query at the end of its sequence has no keys behind it, and a wide window leaves none out.
        variant.causal |= op == Op::Decode && self.decoding == 1;
        variant.window = variant.window.filter(|window| *window < self.longest());
        match (self.lse, variant == ScenarioVariant::PLAIN) {
            (false, _) => variant.to_string(),
            (true, true) => "lse".to_owned(),
            (true, false) => format!("{variant}, lse"),
        }
    }

    pub fn queries(&self, op: Op) -> Vec<u32> {
        op.queries(&self.lens, self.decoding)
    }

    /// Hash of the lengths, the shape and the first and last K, V and q of every sequence.
    pub fn hash(&self) -> String {
        let mut hash = InputHash::default();
        let ModelShape { num_q_heads, num_kv_heads, head_dim, .. } = self.shape;
        hash.update(&[num_q_heads, num_kv_heads, head_dim]).update(self.kv_dtype.name().as_bytes());
        hash.update(&self.lens).update(&self.query_values(self.lens.len()));
        for (seq, &len) in self.lens.iter().enumerate() {
            for position in [0, len.saturating_sub(1)] {
                hash.update(&self.token(Kind::K, seq, position)).update(&self.token(Kind::V, seq, position));
            }
        }
        hash.finish()
    }

    /// Elements of a token's queries.
    pub(super) fn query_len(&self) -> usize {
        (self.shape.num_q_heads * self.shape.head_dim) as usize
    }

    /// Elements of a token of a fused projection.
    pub(super) fn fused_len(&self) -> usize {
        self.query_len() + 2 * self.row_len()
    }

    pub(super) fn row_len(&self) -> usize {
        (self.shape.num_kv_heads * self.shape.head_dim) as usize
    }

    /// The K or V of one token, `[num_kv_heads, head_dim]`: a function of its place alone, so it need not be kept.
    pub(super) fn token(&self, kind: Kind, seq: usize, position: u32) -> Vec<f32> {
        let seq = if position < self.shared_prefix { 0 } else { seq };
        let place = (seq as u64) << 33 | u64::from(position) << 1 | kind as u64;
        let mut rng = CaseRng::seed_from_u64(self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place);
        (0..self.row_len()).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    /// `[rows, num_q_heads, head_dim]`
    pub(super) fn query_values(&self, rows: usize) -> Vec<f32> {
        let len = rows * self.query_len();
        let mut rng = rng_for(&format!("q {}", self.label()), self.seed);
        (0..len).map(|_| rng.random_range(-2.0..2.0)).collect()
    }

    pub(super) fn slopes(&self) -> Vec<f32> {
        let heads = self.shape.num_q_heads;
        (1..=heads).map(|head| (-8.0 * head as f32 / heads as f32).exp2()).collect()
    }

    pub(super) fn sinks(&self) -> Vec<f32> {
        let mut rng = rng_for("sinks", self.seed);
        (0..self.shape.num_q_heads).map(|_| rng.random_range(-2.0..2.0)).collect()
    }

    /// K or V of a sequence as the cache keeps it, `[len, num_kv_heads, head_dim]`.
    pub(super) fn stored(&self, kind: Kind, seq: usize) -> Vec<f32> {
        let mut all: Vec<f32> = (0..self.lens[seq]).flat_map(|position| self.token(kind, seq, position)).collect();
        round_rows(self.kv_dtype, self.shape.head_dim as usize, &mut all);
        all
    }

    pub(super) fn append_limit(&self) -> u32 {
        let row = if self.placement == Placement::Fused { self.fused_len() } else { self.row_len() };
        (MAX_APPEND_BYTES / (4 * row as u64)).clamp(1, 1 << 16) as u32
    }

    pub(super) fn appended(&self) -> Vec<(usize, u32)> {
        let share = (self.append_limit() / self.lens.len().max(1) as u32).clamp(1, MAX_APPEND_TOKENS);
        let tail = |len: u32| len.saturating_sub(share)..len;
        self.lens.iter().enumerate().flat_map(|(seq, &len)| tail(len).map(move |position| (seq, position))).collect()
    }

    pub fn tokens(&self, op: Op) -> u64 {
        match op {
            Op::Append => self.appended().len() as u64,
            _ => self.lens.iter().map(|&len| u64::from(len)).sum(),
        }
    }

    pub fn cost(&self, op: Op, mode: Mode) -> Cost {
        let paged = mode != Mode::Contiguous;
        let row_bytes = self.kv_dtype.used_bytes(self.shape.head_dim);
        if op == Op::Append {
            return accounting::append(&self.shape, row_bytes, self.tokens(op), paged);
        }
        let rows: Vec<(u32, u32)> = self.queries(op).into_iter().zip(self.lens.iter().copied()).collect();
        accounting::Attention {
            rows: &rows,
            variant: self.variant,
            lse: self.lse,
            // What is shared are whole blocks.
            shared: if mode == Mode::Shared { self.shared_prefix / self.block_size * self.block_size } else { 0 },
            block_size: paged.then_some(self.block_size),
        }
        .cost(&self.shape, row_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_prefix_is_the_same_in_all_sequences_and_the_rest_is_not() {
        let shape = ModelShape::custom(2, 1, 8).unwrap();
        let inputs = CaseInputs { shared_prefix: 3, ..CaseInputs::new(shape, vec![5, 5], 1) };
        for kind in [Kind::K, Kind::V] {
            assert_eq!(inputs.token(kind, 1, 2), inputs.token(kind, 0, 2));
            assert_ne!(inputs.token(kind, 1, 3), inputs.token(kind, 0, 3));
        }
        assert_ne!(inputs.token(Kind::K, 0, 0), inputs.token(Kind::V, 0, 0));
    }

    #[test]
    fn what_is_not_as_usual_is_named() {
        let shape = ModelShape::custom(2, 1, 8).unwrap();
        let mut inputs = CaseInputs::new(shape, vec![5], 1);
        assert_eq!(inputs.variant_name(Op::Decode), "plain");
        inputs.lse = true;
        assert_eq!(inputs.variant_name(Op::Decode), "lse");
        inputs.variant.window = Some(2);
        assert_eq!(inputs.variant_name(Op::Decode), "window 2, lse");
        inputs.placement = Placement::Arena;
        assert_eq!(inputs.variant_name(Op::Append), "in an arena");
        assert_eq!(inputs.variant_name(Op::Decode), "window 2, lse, in an arena");
    }

    #[test]
    fn x16_what_has_no_effect_on_an_operation_is_not_in_its_name() {
        let mut inputs = CaseInputs::new(ModelShape::custom(2, 1, 8).unwrap(), vec![5, 3], 1);
        inputs.variant = ScenarioVariant { causal: false, window: Some(4), ..ScenarioVariant::PLAIN };
        assert_eq!(inputs.variant_name(Op::Append), "plain");
        assert_eq!(inputs.variant_name(Op::Decode), "window 4");
        assert_eq!(inputs.variant_name(Op::Prefill), "non-causal, window 4");
        inputs.variant.window = Some(5);
        assert_eq!(inputs.variant_name(Op::Decode), "plain");
        inputs.decoding = 2;
        assert_eq!(inputs.variant_name(Op::Decode), "non-causal");
    }
}
