//! What becomes of a row, in the oracle's form and in the device's.

use std::fmt;

use crate::gpu::{AppendSpec, MropeSections, RotarySpec, RotaryStyle};
use crate::reference::{Rotary, inverse_frequencies, rms_norm, rotate, rotate_by_axis};

/// What becomes of a row: a norm, if there is one, and a rotation, if pairs are rotated.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Which elements form pairs.
    pub style: RotaryStyle,
    /// Elements that do; 0 for no rotation.
    pub dims: u32,
    /// Base of the frequencies.
    pub base: f32,
    /// Frequencies in its place.
    pub inv_freq: Option<Vec<f64>>,
    /// Added to every position.
    pub offset: i32,
    /// What cosines and sines are multiplied by.
    pub attention_factor: f64,
    /// Pairs by time, height and width.
    pub sections: Option<MropeSections>,
    /// Added to the mean of the squares; without it there is no norm.
    pub norm_eps: Option<f32>,
}

impl Turn {
    /// A rotation of the first `dims` elements.
    pub fn new(style: RotaryStyle, dims: u32) -> Self {
        let (base, offset, attention_factor) = (10_000.0, 0, 1.0);
        Self { style, dims, base, inv_freq: None, offset, attention_factor, sections: None, norm_eps: None }
    }

    /// Whether rows stay as they are.
    pub fn is_none(&self) -> bool {
        self.dims == 0 && self.norm_eps.is_none()
    }

    /// The device's rotation.
    pub fn rotary(&self) -> RotarySpec {
        let spec = match &self.inv_freq {
            Some(inv_freq) => RotarySpec::from_inv_freq(self.style, inv_freq.clone()),
            None => RotarySpec::new(self.style, self.dims).with_base(self.base),
        };
        let spec = spec.with_offset(self.offset).with_attention_factor(self.attention_factor);
        self.sections.map_or(spec.clone(), |sections| spec.with_sections(sections))
    }

    /// An append with it.
    pub fn add_to(&self, spec: AppendSpec) -> AppendSpec {
        let spec = self.norm_eps.map_or(spec.clone(), |eps| spec.with_qk_norm(eps));
        if self.dims > 0 { spec.with_rotary(self.rotary()) } else { spec }
    }

    /// The oracle's rows: heads of as many elements as there are weights, token after token.
    pub(super) fn expected(&self, rows: &[f32], weights: &[f32], positions: &[i32], axes: &[[u32; 3]]) -> Vec<f64> {
        let inv_freq = self.inv_freq.clone();
        let inv_freq = inv_freq.unwrap_or_else(|| inverse_frequencies(self.base.into(), self.dims as usize));
        let interleaved = self.style == RotaryStyle::Interleaved;
        let (offset, attention_factor) = (self.offset.into(), self.attention_factor);
        let rotary = Rotary { interleaved, inv_freq: &inv_freq, offset, attention_factor };
        let per_token = rows.len() / positions.len();
        let head = |row: &[f32], token: usize| {
            let row = match self.norm_eps {
                Some(eps) => rms_norm(row, weights, eps.into()),
                None => row.iter().map(|&x| x.into()).collect(),
            };
            match self.sections {
                Some(sections) => rotate_by_axis(&rotary, &row, |pair| axes[token][axis(sections, pair)].into()),
                None => rotate(&rotary, &row, positions[token].into()),
            }
        };
        let tokens = rows.chunks(per_token).enumerate();
        tokens.flat_map(|(token, rows)| rows.chunks(weights.len()).flat_map(move |row| head(row, token))).collect()
    }
}

/// Whose position turns a pair, read off a list that is laid out as Hugging Face's models do it.
fn axis(sections: MropeSections, pair: usize) -> usize {
    let [time, height, width] = sections.pairs().map(|pairs| pairs as usize);
    if !sections.is_interleaved() {
        return [vec![0; time], vec![1; height], vec![2; width]].concat()[pair];
    }
    let mut axes = vec![0; time + height + width];
    axes.iter_mut().skip(1).step_by(3).take(height).for_each(|axis| *axis = 1);
    axes.iter_mut().skip(2).step_by(3).take(width).for_each(|axis| *axis = 2);
    axes[pair]
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(self.norm_eps.map(|_| "norm".to_owned()));
        if self.dims > 0 {
            let style = if self.style == RotaryStyle::Interleaved { "interleaved" } else { "half-split" };
            words.push(format!("{style} rotation of {}", self.dims));
        }
        if let Some(sections) = self.sections {
            let dealt = if sections.is_interleaved() { ", dealt" } else { "" };
            words.push(format!("sections {:?}{dealt}", sections.pairs()));
        }
        if self.attention_factor != 1.0 {
            words.push(format!("factor {}", self.attention_factor));
        }
        f.write_str(&if words.is_empty() { "as given".to_owned() } else { words.join(", ") })
    }
}
