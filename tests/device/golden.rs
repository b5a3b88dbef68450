//! Vectors that an independent implementation computed, `golden/make_vectors.py`: the oracle and every form of the
//! kernels have to agree with them, and the stored rows with the formats.

use crate::common::{bits, gpu, profiles, run, with_splits};
use serde::Deserialize;
use wgpu_paged_attention::formats::{KvDtype, decode_row, encode_row};
use wgpu_paged_attention::reference::Attended;
use wgpu_paged_attention::testkit::{Scenario, ScenarioSpec, ScenarioVariant};

/// How the vectors count: an integer `n` means `n / 1024`.
const GRID: f32 = 1024.0;

#[derive(Deserialize)]
struct Vectors {
    rows: Vec<StoredRow>,
    cases: Vec<Case>,
}

/// A row of K or V, the words that it is stored as, and what is read back from them.
#[derive(Deserialize)]
struct StoredRow {
    format: String,
    values: Vec<i32>,
    words: Vec<u32>,
    read_back_bits: Vec<u32>,
}

#[derive(Clone, Deserialize)]
struct Case {
    name: String,
    num_q_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    v_head_dim: u32,
    kv_format: String,
    block_size: u32,
    num_blocks: u32,
    scale: Option<f32>,
    causal: bool,
    window: Option<u32>,
    soft_cap: Option<f32>,
    alibi_slopes: Option<Vec<f32>>,
    sinks: Option<Vec<f32>>,
    sequences: Vec<Sequence>,
    q: Vec<i32>,
    out: Vec<f64>,
    /// `None` is −∞.
    lse: Vec<Option<f64>>,
}

/// K and V are `[seq_len, num_kv_heads, head_dim]`, `v_head_dim` wide for V.
#[derive(Clone, Deserialize)]
struct Sequence {
    seq_len: u32,
    queries: u32,
    blocks: Vec<u32>,
    k: Vec<i32>,
    v: Vec<i32>,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../golden/attention.json")).unwrap()
}

impl Case {
    fn scenario(&self) -> Scenario {
        let sequences = &self.sequences;
        let variant = ScenarioVariant {
            causal: self.causal,
            window: self.window,
            soft_cap: self.soft_cap,
            alibi: self.alibi_slopes.is_some(),
            sinks: self.sinks.is_some(),
            ..ScenarioVariant::PLAIN
        };
        let lens: Vec<u32> = sequences.iter().map(|seq| seq.seq_len).collect();
        let spec = ScenarioSpec {
            v_head_dim: Some(self.v_head_dim),
            kv_dtype: self.kv_format.parse().unwrap(),
            block_size: self.block_size,
            query_lens: Some(sequences.iter().map(|seq| seq.queries).collect()),
            variant,
            lse: true,
            ..ScenarioSpec::decode(self.num_q_heads, self.num_kv_heads, self.head_dim, &lens)
        };
        let tables = sequences.iter().map(|seq| seq.blocks.clone()).collect();
        let mut scenario = Scenario::blank(&spec, tables, self.num_blocks).unwrap();
        let at =
            |position: u32, head: u32, width: u32, d: u32| ((position * self.num_kv_heads + head) * width + d) as usize;
        scenario.fill(
            |seq, position, head, d| sequences[seq].k[at(position, head, self.head_dim, d)] as f32 / GRID,
            |seq, position, head, d| sequences[seq].v[at(position, head, self.v_head_dim, d)] as f32 / GRID,
        );
        assert_eq!(scenario.q.len(), self.q.len(), "{}", self.name);
        for (q, &n) in scenario.q.iter_mut().zip(&self.q) {
            *q = n as f32 / GRID;
        }
        scenario.scale = self.scale;
        scenario.alibi_slopes = self.alibi_slopes.clone().unwrap_or_default();
        scenario.sinks = self.sinks.clone().unwrap_or_default();
        scenario
    }

    fn answer(&self) -> Attended {
        let lse = self.lse.iter().map(|lse| lse.unwrap_or(f64::NEG_INFINITY)).collect();
        Attended { output: self.out.clone(), lse }
    }
}

/// Whether two answers in f64 are the same but for the order of their sums.
fn agrees(got: &Attended, want: &Attended) -> bool {
    let same = |got: &[f64], want: &[f64]| {
        got.len() == want.len()
            && got.iter().zip(want).all(|(got, want)| got == want || (got - want).abs() <= 1e-11 * want.abs().max(1.0))
    };
    same(&got.output, &want.output) && same(&got.lse, &want.lse)
}

#[test]
fn the_oracle_agrees_with_every_vector() {
    for case in vectors().cases {
        let scenario = case.scenario();
        assert!(agrees(&scenario.expected(), &case.answer()), "{}", case.name);
    }
}

#[test]
fn an_altered_vector_disagrees_with_the_oracle() {
    for case in vectors().cases {
        let scenario = case.scenario();
        let (expected, answer) = (scenario.expected(), case.answer());
        for index in [0, answer.output.len() - 1] {
            let mut altered = answer.clone();
            altered.output[index] += 1e-9;
            assert!(!agrees(&expected, &altered), "{}: output {index}", case.name);
        }
        for lse in 0..answer.lse.len() {
            let mut altered = answer.clone();
            altered.lse[lse] = if altered.lse[lse].is_finite() { altered.lse[lse] + 1e-9 } else { 0.0 };
            assert!(!agrees(&expected, &altered), "{}: log-sum-exp {lse}", case.name);
        }
        // The newest key of a sequence, which its last query sees whatever the variant.
        for seq in 0..case.sequences.len() {
            if case.sequences[seq].seq_len == 0 || case.sequences[seq].queries == 0 {
                continue;
            }
            let alter_k: fn(&mut Sequence) -> &mut Vec<i32> = |seq| &mut seq.k;
            // The softmax of a single key is 1 whatever its score, but its log-sum-exp is not.
            for values in [alter_k, |seq| &mut seq.v] {
                let mut altered = case.clone();
                *values(&mut altered.sequences[seq]).last_mut().unwrap() += 1500;
                let altered = altered.scenario().expected();
                assert!(!agrees(&altered, &answer), "{}: sequence {seq}", case.name);
            }
        }
    }
}

#[test]
fn every_form_of_the_kernels_agrees_with_every_vector() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        // In one piece, and in pieces as long as a block of most cases.
        for profile in [profile.clone(), with_splits(&profile, 4)] {
            for case in vectors().cases {
                let scenario = case.scenario();
                let outcome = run(&gpu, &profile, &scenario);
                let mut answer = case.answer();
                let at = || format!("{} on {} in splits of {}", case.name, profile.lane_comm, profile.split_tokens);
                scenario.judge_by(&answer, &outcome).unwrap_or_else(|verdict| panic!("{}: {verdict}", at()));
                answer.output[0] += 1e-3;
                assert!(scenario.judge_by(&answer, &outcome).is_err(), "{}: an altered vector passed", at());
            }
        }
    }
}

/// The words that a row is stored as, and the bits of what is read back.
fn store(format: KvDtype, row: &[f32]) -> (Vec<u32>, Vec<u32>) {
    let mut words = vec![0; 4 * format.row_units(row.len() as u32) as usize];
    encode_row(format, row, &mut words).unwrap();
    let mut back = vec![0.0; row.len()];
    decode_row(format, &words, &mut back).unwrap();
    (words, bits(&back))
}

#[test]
fn rows_are_stored_as_the_formats_are_defined() {
    for row in vectors().rows {
        let format: KvDtype = row.format.parse().unwrap();
        let values: Vec<f32> = row.values.iter().map(|&n| n as f32 / GRID).collect();
        let (words, back) = store(format, &values);
        assert_eq!((&words, &back), (&row.words, &row.read_back_bits), "{format} {values:?}");
        if values.iter().any(|&x| x != 0.0) {
            // The nearest other number that every format tells apart.
            let mut altered = values.clone();
            altered[0] = if altered[0] == 0.0 { 2.0 } else { -altered[0] };
            assert_ne!(store(format, &altered).0, row.words, "{format}: an altered row passed");
        }
    }
}
