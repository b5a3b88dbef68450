//! Rotations of published models against tables that an independent implementation made, `golden/make_rope.py`.

use serde::Deserialize;
use wgpu_paged_attention::rope::{RopeModel, RopeParameters};
use wgpu_paged_attention::{RotarySpec, RotaryStyle};

/// What cosines and sines may be off: they are rounded to f32.
const TOLERANCE: f64 = 1e-6;

#[derive(Deserialize)]
struct Vectors {
    positions: Vec<u32>,
    cases: Vec<Case>,
}

#[derive(Clone, Deserialize)]
struct Case {
    name: String,
    rope: RopeParameters,
    head_dim: u32,
    seq_len: u32,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    max_position_embeddings: Option<u32>,
    original_max_position_embeddings: Option<u32>,
    inv_freq: Vec<f64>,
    attention_factor: f64,
    /// Cosine and sine of every pair at every position.
    rotations: Vec<Vec<f64>>,
}

fn vectors() -> Vectors {
    serde_json::from_str(include_str!("../golden/rope.json")).unwrap()
}

impl Case {
    fn model(&self) -> RopeModel {
        let mut model = RopeModel::new(self.head_dim, self.seq_len);
        if let Some(rope_theta) = self.rope_theta {
            model = model.with_rope_theta(rope_theta);
        }
        if let Some(part) = self.partial_rotary_factor {
            model = model.with_partial_rotary_factor(part);
        }
        if let Some(len) = self.max_position_embeddings {
            model = model.with_max_position_embeddings(len);
        }
        if let Some(len) = self.original_max_position_embeddings {
            model = model.with_original_max_position_embeddings(len);
        }
        model
    }

    fn spec(&self) -> RotarySpec {
        let rope = self.rope.rope(&self.model()).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        assert!((rope.attention_factor - self.attention_factor).abs() < 1e-12, "{}", self.name);
        RotarySpec::from_rope(RotaryStyle::HalfSplit, rope)
    }

    /// The largest difference of a cosine or a sine, and of a frequency as a part of it.
    fn errors(&self, spec: &RotarySpec, positions: &[u32]) -> (f64, f64) {
        let inv_freq = spec.inv_freq();
        assert_eq!(inv_freq.len(), self.inv_freq.len(), "{}", self.name);
        let relative = |(got, want): (&f64, &f64)| if got == want { 0.0 } else { (got - want).abs() / want };
        let of_freq = inv_freq.iter().zip(&self.inv_freq).map(relative).fold(0.0, f64::max);
        let turns = positions.iter().flat_map(|&position| spec.cos_sin(position)).flatten();
        let want: Vec<f64> = self.rotations.concat();
        let turns: Vec<f32> = turns.collect();
        assert_eq!(turns.len(), want.len(), "{}", self.name);
        (turns.iter().zip(&want).map(|(&got, want)| (f64::from(got) - want).abs()).fold(0.0, f64::max), of_freq)
    }
}

#[test]
fn every_rotation_is_that_of_the_tables() {
    let Vectors { positions, cases } = vectors();
    let mut worst = (0.0, 0.0);
    for case in &cases {
        let (of_turn, of_freq) = case.errors(&case.spec(), &positions);
        assert!(of_turn < TOLERANCE && of_freq < 1e-11, "{}: {of_turn:e}, frequencies {of_freq:e}", case.name);
        worst = (of_turn.max(worst.0), of_freq.max(worst.1));
    }
    println!("{} rotations, largest error {:e}, of a frequency {:e}", cases.len(), worst.0, worst.1);
}

#[test]
fn a_rotation_of_another_model_is_not_that_of_the_tables() {
    let Vectors { positions, cases } = vectors();
    for case in &cases {
        let fails = |wrong: Case| {
            let (of_turn, _) = case.errors(&wrong.spec_of_any_factor(), &positions);
            assert!(of_turn > TOLERANCE, "{}: {wrong:?} passed", case.name, wrong = wrong.rope);
        };
        let base = case.rope.rope_theta.or(case.rope_theta).unwrap_or(10_000.0) * 1.001;
        let mut rope = case.rope.clone();
        rope.rope_theta = None;
        fails(Case { rope_theta: Some(base), rope, ..case.clone() });
        if let Some(factor) = case.rope.factor {
            let mut rope = case.rope.clone();
            rope.factor = Some(1.01 * factor);
            if case.name != "internlm-2, within its length" {
                fails(Case { rope, ..case.clone() });
            }
        }
    }
}

impl Case {
    fn spec_of_any_factor(&self) -> RotarySpec {
        RotarySpec::from_rope(RotaryStyle::HalfSplit, self.rope.rope(&self.model()).unwrap())
    }
}
