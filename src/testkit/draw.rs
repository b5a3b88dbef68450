//! The grid of step forms, shapes, formats, tables and variants, sampled: consecutive seeds go through rows that together
//! hold every pair of values.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{ScenarioSpec, ScenarioVariant};
use crate::config::KvDtype;
use crate::gpu::IoFormat;

/// What a step brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepForm {
    /// One query per sequence.
    Decode,
    /// The same, with keys in several pieces.
    Split,
    /// Whole prompts.
    Prefill,
    /// Chunks, single tokens, nothing, and more queries than tokens.
    Mixed,
    /// A few queries at the end of a long sequence.
    Speculative,
    /// Sequences that share whole splits.
    Cascade,
}

impl StepForm {
    /// Every form.
    pub const ALL: [Self; 6] =
        [Self::Decode, Self::Split, Self::Prefill, Self::Mixed, Self::Speculative, Self::Cascade];

    /// Its name in labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Split => "split",
            Self::Prefill => "prefill",
            Self::Mixed => "mixed",
            Self::Speculative => "speculative",
            Self::Cascade => "cascade",
        }
    }
}

/// What a seed stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// What the step brings.
    pub form: StepForm,
    /// Heads, lengths, storage, and the variant of attention.
    pub spec: ScenarioSpec,
    /// Keys in one split; `None` leaves what the device uses.
    pub split_tokens: Option<u32>,
    /// Whether the kernels talk through subgroups, where the device has them.
    pub subgroups: bool,
}

/// A level for each of [`LEVELS`].
type Row = [usize; LEVELS.len()];

/// Form, format, subgroups, block size, tables, causal, window, soft cap, ALiBi, sinks, inputs and outputs, log-sum-exp,
/// shared blocks, heads, width of V: how many values each has.
const LEVELS: [usize; 15] = [6, 6, 2, 6, 3, 2, 4, 2, 2, 2, 2, 2, 3, 4, 2];

/// Two factors with their levels.
type Pair = [(usize, usize); 2];

fn pairs(row: &Row) -> impl Iterator<Item = Pair> {
    (0..LEVELS.len()).flat_map(move |b| (0..b).map(move |a| [(a, row[a]), (b, row[b])]))
}

fn all_pairs() -> BTreeSet<Pair> {
    let levels = |factor: usize| (0..LEVELS[factor]).map(move |level| (factor, level));
    let of = |b: usize| (0..b).flat_map(move |a| levels(a).flat_map(move |a| levels(b).map(move |b| [a, b])));
    (0..LEVELS.len()).flat_map(of).collect()
}

/// Rows that hold every pair, each the best of a hundred for the pairs that are still missing.
static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let (mut rng, mut rows, mut missing) = (StdRng::seed_from_u64(1), Vec::new(), all_pairs());
    while let Some(&first) = missing.first() {
        let candidates = (0..100).map(|_| {
            let mut row = LEVELS.map(|levels| rng.random_range(0..levels));
            first.into_iter().for_each(|(factor, level)| row[factor] = level);
            row
        });
        let Some(best) = candidates.max_by_key(|row| pairs(row).filter(|pair| missing.contains(pair)).count()) else {
            break;
        };
        pairs(&best).for_each(|pair| {
            missing.remove(&pair);
        });
        rows.push(best);
    }
    rows
});

/// How many consecutive seeds hold every pair.
pub fn draws_in_a_round() -> u64 {
    ROWS.len() as u64
}

/// What a seed stands for: a row of the grid, with lengths and sizes of its own.
pub fn draw(seed: u64) -> Drawn {
    of_row(&ROWS[(seed % draws_in_a_round()) as usize], seed)
}

/// A step of this form and format; the seed decides the rest.
pub fn draw_form(form: StepForm, kv_dtype: KvDtype, seed: u64) -> Drawn {
    let mut rng = StdRng::seed_from_u64(seed);
    let row = LEVELS.map(|levels| rng.random_range(0..levels));
    let drawn = of_row(&with_form(row, form), seed);
    Drawn { spec: ScenarioSpec { kv_dtype, ..drawn.spec }, ..drawn }
}

fn with_form(mut row: Row, form: StepForm) -> Row {
    row[0] = StepForm::ALL.iter().position(|&other| other == form).unwrap_or(0);
    row
}

/// One of `choices`.
fn pick<T: Copy>(rng: &mut StdRng, choices: &[T]) -> T {
    choices[rng.random_range(0..choices.len())]
}

fn of_row(row: &Row, seed: u64) -> Drawn {
    let [form, dtype, subgroups, block, tables, causal, window, cap, alibi, sinks, io, lse, shared, heads, v_dim] =
        *row;
    let rng = &mut StdRng::seed_from_u64(seed);
    let form = StepForm::ALL[form];
    let block_size = [1, 5, 8, 16, 17, 32][block];
    let paged = tables < 2;
    let (seq_lens, query_lens, split_tokens) = lengths(rng, form);
    let variant = ScenarioVariant {
        causal: causal == 0,
        window: [None, Some(pick(rng, &[1, 2, 7])), Some(pick(rng, &[16, 33])), Some(100)][window],
        soft_cap: (cap == 1).then(|| pick(rng, &[1.0, 5.0, 30.0])),
        alibi: alibi == 1,
        sinks: sinks == 1,
        io_format: [IoFormat::F32, IoFormat::F16][io],
    };
    // Wide heads serve few queries, because software devices take long to compile both.
    let (widest, group) = match form {
        StepForm::Decode | StepForm::Split => [(96, 1), (48, 2), (40, 4), (16, 9)][heads],
        _ => [(40, 1), (24, 2), (16, 4), (8, 9)][heads],
    };
    // Two halves to a word.
    let even = |dim: u32| dim.next_multiple_of(variant.io_format.per_word());
    let num_kv_heads = rng.random_range(1..=3);
    let num_q_heads = num_kv_heads * rng.random_range(1..=group);
    let head_dim = even(rng.random_range(1..=widest));
    let spec = ScenarioSpec {
        kv_dtype: KvDtype::ALL[dtype],
        v_head_dim: (v_dim == 1).then(|| even(pick(rng, &[1, 3, 16, 32, 40]).min(widest))),
        block_size,
        paged,
        query_lens,
        csr: tables == 1,
        shared_blocks: if form == StepForm::Cascade { 64_u32.div_ceil(block_size) } else { shared as u32 },
        variant,
        lse: lse == 1,
        ..ScenarioSpec::decode(num_q_heads, num_kv_heads, head_dim, &seq_lens)
    };
    Drawn { form, spec, split_tokens, subgroups: subgroups == 1 }
}

/// Tokens and queries of every sequence, and the keys in one split.
fn lengths(rng: &mut StdRng, form: StepForm) -> (Vec<u32>, Option<Vec<u32>>, Option<u32>) {
    let (choices, splits): (&[u32], &[Option<u32>]) = match form {
        StepForm::Decode => (&[0, 1, 2, 15, 16, 17, 31, 64, 77, 130], &[None]),
        StepForm::Split => (&[0, 5, 63, 64, 65, 130, 300], &[Some(8), Some(24), Some(64)]),
        StepForm::Prefill => (&[1, 2, 7, 16, 33, 50], &[None, Some(16), Some(50)]),
        StepForm::Mixed => (&[0, 1, 2, 16, 33, 77, 130], &[None, Some(16), Some(50)]),
        StepForm::Speculative => (&[8, 16, 17, 40, 100, 200], &[None, Some(16), Some(50)]),
        StepForm::Cascade => (&[64, 70, 96, 100], &[Some(16)]),
    };
    let num_seqs = rng.random_range(if form == StepForm::Cascade { 3..=6 } else { 1..=6 });
    let seq_lens: Vec<u32> = (0..num_seqs).map(|_| pick(rng, choices)).collect();
    // One width of tile beside that of single tokens, for each is a kernel to compile.
    let chunk = if form == StepForm::Speculative { rng.random_range(2..=8) } else { pick(rng, &[3, 7, 21]) };
    let query_lens = match form {
        StepForm::Decode | StepForm::Split | StepForm::Cascade => None,
        StepForm::Prefill => Some(seq_lens.clone()),
        StepForm::Mixed => Some(seq_lens.iter().map(|_| pick(rng, &[0, 1, chunk])).collect()),
        StepForm::Speculative => Some(vec![chunk; seq_lens.len()]),
    };
    (seq_lens, query_lens, pick(rng, splits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::Fault;

    fn missing(rows: &[Row]) -> usize {
        let met: BTreeSet<Pair> = rows.iter().flat_map(pairs).collect();
        all_pairs().difference(&met).count()
    }

    #[test]
    fn a_round_of_seeds_holds_every_pair_of_values() {
        assert_eq!(missing(&ROWS), 0);
        assert!(missing(&ROWS[1..]) > 0, "a row that is left out is noticed");
        assert!((36..70).contains(&ROWS.len()), "{} rows", ROWS.len());
        assert_eq!(draw(7), draw(7));
    }

    #[test]
    fn every_fault_shows_in_some_seeds() {
        let drawn: Vec<Drawn> = (0..draws_in_a_round()).map(draw).collect();
        for fault in Fault::ALL {
            assert!(drawn.iter().filter(|drawn| fault.shows_in(&drawn.spec)).count() > 3, "{fault:?}");
        }
        let form = draw_form(StepForm::Mixed, KvDtype::Int4, 3);
        assert_eq!((form.form, form.spec.kv_dtype), (StepForm::Mixed, KvDtype::Int4));
    }
}
