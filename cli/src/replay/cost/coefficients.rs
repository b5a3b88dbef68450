//! The terms of the model.

use serde::{Deserialize, Serialize};

use super::fit::fit;
use crate::replay::StepWork;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    Append,
    Attention,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AppendCost {
    pub fixed_us: f64,
    pub token_us: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DecodeCost {
    pub fixed_us: f64,
    pub sequence_us: f64,
    pub key_us: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PrefillCost {
    pub fixed_us: f64,
    pub token_us: f64,
    /// Per query and key that it sees.
    pub pair_us: f64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Coefficients {
    pub append: AppendCost,
    pub decode: DecodeCost,
    pub prefill: PrefillCost,
}

impl Coefficients {
    pub(super) fn fitted<'a>(points: impl Iterator<Item = (Part, &'a StepWork, f64)> + Clone) -> Option<Self> {
        let append = points.clone().filter(|(part, ..)| *part == Part::Append);
        let append: Vec<_> = append.map(|(_, work, us)| (append_terms(work), us)).collect();
        let attention = points.filter(|(part, ..)| *part == Part::Attention);
        let decode = attention.clone().filter(|(_, work, _)| work.chunks == 0);
        let decode: Vec<_> = decode.map(|(_, work, us)| (decode_terms(work), us)).collect();
        let prefill = attention.filter(|(_, work, _)| work.decoding == 0);
        let prefill: Vec<_> = prefill.map(|(_, work, us)| (prefill_terms(work), us)).collect();

        let [fixed_us, token_us] = fit(&append)?;
        let append = AppendCost { fixed_us, token_us };
        let [fixed_us, sequence_us, key_us] = fit(&decode)?;
        let decode = DecodeCost { fixed_us, sequence_us, key_us };
        let [fixed_us, token_us, pair_us] = fit(&prefill)?;
        Some(Self { append, decode, prefill: PrefillCost { fixed_us, token_us, pair_us } })
    }

    pub fn layer_us(&self, part: Part, work: &StepWork) -> f64 {
        let Self { append, decode, prefill } = self;
        match part {
            Part::Append => sum([append.fixed_us, append.token_us], append_terms(work)),
            Part::Attention => {
                sum([decode.fixed_us, decode.sequence_us, decode.key_us], decode_terms(work))
                    + sum([prefill.fixed_us, prefill.token_us, prefill.pair_us], prefill_terms(work))
            }
        }
    }

    pub(super) fn all(&self) -> [(&'static str, f64); 8] {
        let Self { append, decode, prefill } = self;
        [
            ("append.fixed_us", append.fixed_us),
            ("append.token_us", append.token_us),
            ("decode.fixed_us", decode.fixed_us),
            ("decode.sequence_us", decode.sequence_us),
            ("decode.key_us", decode.key_us),
            ("prefill.fixed_us", prefill.fixed_us),
            ("prefill.token_us", prefill.token_us),
            ("prefill.pair_us", prefill.pair_us),
        ]
    }
}

fn append_terms(work: &StepWork) -> [f64; 2] {
    let tokens = f64::from(work.decoding) + f64::from(work.prompt_tokens);
    [present(tokens), tokens]
}

fn decode_terms(work: &StepWork) -> [f64; 3] {
    let sequences = f64::from(work.decoding);
    [present(sequences), sequences, work.decode_keys as f64]
}

fn prefill_terms(work: &StepWork) -> [f64; 3] {
    let tokens = f64::from(work.prompt_tokens);
    [present(tokens), tokens, work.prompt_pairs as f64]
}

/// What is not there has no fixed cost either.
fn present(count: f64) -> f64 {
    if count > 0.0 { 1.0 } else { 0.0 }
}

fn sum<const N: usize>(coefficients: [f64; N], terms: [f64; N]) -> f64 {
    coefficients.iter().zip(terms).map(|(coefficient, term)| coefficient * term).sum()
}
