//! The formulas, in f64. `i` counts pairs, and a pair's wavelength is the number of positions in which it turns once.

use std::f64::consts::TAU;

use super::check::{BETA_FAST, BETA_SLOW, check_number};
use super::{Rope, RopeError, RopeModel, RopeParameters, RopeType};

/// The base of models that do not tell theirs.
const USUAL_THETA: f64 = 10_000.0;

/// What a rotation is worked out from, once its keys have been checked.
struct Scaling<'a> {
    it: &'a RopeParameters,
    model: &'a RopeModel,
    rope_type: RopeType,
    theta: f64,
    /// Elements of a head that form pairs.
    dims: u32,
}

pub(super) fn rope(it: &RopeParameters, model: &RopeModel) -> Result<Rope, RopeError> {
    let theta = either("rope_theta", it.rope_theta, model.rope_theta)?;
    check_number("rope_theta", theta, |theta| theta > 1.0, "greater than 1, and finite")?;
    let (part, dims) = rotated_dims(it, model)?;
    let scaling = Scaling { it, model, rope_type: it.rope_type(), theta: theta.unwrap_or(USUAL_THETA), dims };
    let (inv_freq, attention_factor) = match scaling.rope_type {
        RopeType::Default | RopeType::Mrope => (scaling.plain(), 1.0),
        RopeType::Linear => {
            let factor = scaling.needed("factor", it.factor)?;
            (scaling.plain().into_iter().map(|freq| freq / factor).collect(), 1.0)
        }
        RopeType::Dynamic => (scaling.dynamic()?, 1.0),
        RopeType::Yarn => scaling.yarn()?,
        RopeType::LongRope => scaling.longrope()?,
        RopeType::Llama3 => (scaling.llama3()?, 1.0),
        RopeType::Proportional => (scaling.proportional(part), 1.0),
    };
    let mrope_section = scaling.sections(inv_freq.len())?;
    Ok(Rope { inv_freq, attention_factor, mrope_section, mrope_interleaved: it.mrope_interleaved == Some(true) })
}

/// A value of the object, or one that stands beside it; they may not differ.
fn either<T: Copy + PartialEq + std::fmt::Display>(
    key: &'static str,
    own: Option<T>,
    beside: Option<T>,
) -> Result<Option<T>, RopeError> {
    match (own, beside) {
        (Some(own), Some(beside)) if own != beside => Err(RopeError::Contradiction {
            key,
            value: own.to_string(),
            other: "the one beside the rope object",
            other_value: beside.to_string(),
            remedy: "leave one of them out",
        }),
        _ => Ok(own.or(beside)),
    }
}

/// Which part of a head is rotated, and its elements in pairs: all of them where the part is of the frequencies.
fn rotated_dims(it: &RopeParameters, model: &RopeModel) -> Result<(f64, u32), RopeError> {
    const KEY: &str = "partial_rotary_factor";
    let part = either(KEY, it.partial_rotary_factor, model.partial_rotary_factor)?;
    check_number(KEY, part, |part| part > 0.0 && part <= 1.0, "above 0 and at most 1")?;
    let part = part.unwrap_or(1.0);
    let is_whole = it.rope_type() == RopeType::Proportional;
    let dims = if is_whole { model.head_dim } else { (f64::from(model.head_dim) * part) as u32 };
    if dims == 0 || !dims.is_multiple_of(2) {
        let expected = format!("a part of head_dim {} that is an even number from 2 on, not {dims}", model.head_dim);
        return Err(RopeError::Value { key: KEY, value: part.to_string(), expected });
    }
    Ok((part, dims))
}

impl Scaling<'_> {
    fn needed<T>(&self, key: &'static str, value: Option<T>) -> Result<T, RopeError> {
        value.ok_or(RopeError::Missing { key, rope_type: self.rope_type })
    }

    fn plain(&self) -> Vec<f64> {
        self.of_base(self.theta)
    }

    fn of_base(&self, base: f64) -> Vec<f64> {
        (0..self.dims / 2).map(|i| base.powf(-2.0 * f64::from(i) / f64::from(self.dims))).collect()
    }

    /// The longest text that the model was trained for before its context was extended. Where neither the object nor the model
    /// has that number, this is `otherwise`, or it is missing.
    fn original_len(&self, otherwise: Option<u32>) -> Result<f64, RopeError> {
        const KEY: &str = "original_max_position_embeddings";
        let original =
            either(KEY, self.it.original_max_position_embeddings, self.model.original_max_position_embeddings)?;
        let original = self.needed(KEY, original.or(otherwise))?;
        check_number(KEY, Some(original.into()), |original| original > 1.0, "greater than 1")?;
        Ok(original.into())
    }

    /// How much longer texts became, as given or by their lengths.
    fn factor(&self, original: f64) -> Result<f64, RopeError> {
        match self.it.factor {
            Some(factor) => Ok(factor),
            None => Ok(f64::from(self.needed("factor", self.model.max_position_embeddings)?) / original),
        }
    }

    /// NTK-aware scaling (bloc97, emozilla 2023), for the longest sequence of the cache.
    fn dynamic(&self) -> Result<Vec<f64>, RopeError> {
        let factor = self.needed("factor", self.it.factor)?;
        // Hugging Face divides by the longest text of the model, whatever it says of an original one.
        let original = match self.model.max_position_embeddings {
            Some(longest) => f64::from(longest),
            None => self.original_len(None)?,
        };
        let longest = f64::from(self.model.seq_len).max(original);
        let (dims, growth) = (f64::from(self.dims), factor * longest / original - (factor - 1.0));
        // One pair turns by 1 whatever the base.
        let power = if self.dims == 2 { 1.0 } else { dims / (dims - 2.0) };
        let base = self.theta * growth.powf(power);
        if !base.is_finite() {
            let expected = format!("so small that the base of {longest} tokens is finite");
            return Err(RopeError::Value { key: "factor", value: factor.to_string(), expected });
        }
        Ok(self.of_base(base))
    }

    /// YaRN (Peng et al. 2023): pairs that turn often within the original length keep their frequencies, those that turn
    /// seldom are interpolated, and between them lies a ramp.
    fn yarn(&self) -> Result<(Vec<f64>, f64), RopeError> {
        let (it, original, dims) =
            (self.it, self.original_len(self.model.max_position_embeddings)?, f64::from(self.dims));
        let factor = self.factor(original)?;
        // The pair that turns so often within the original length; pairs are no whole numbers here.
        let turning = |times: f64| dims * (original / (times * TAU)).ln() / (2.0 * self.theta.ln());
        let (low, high) = (turning(it.beta_fast.unwrap_or(BETA_FAST)), turning(it.beta_slow.unwrap_or(BETA_SLOW)));
        let whole = it.truncate.unwrap_or(true);
        let (low, high) = if whole { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(dims - 1.0));
        // A step is a very steep ramp.
        let width = if low == high { 0.001 } else { high - low };
        let of_pair = |(i, freq): (usize, f64)| {
            let stretched = ((i as f64 - low) / width).clamp(0.0, 1.0);
            freq / factor * stretched + freq * (1.0 - stretched)
        };
        let inv_freq = self.plain().into_iter().enumerate().map(of_pair).collect();
        let mscale = |mscale: f64| if factor > 1.0 { 0.1 * mscale * factor.ln() + 1.0 } else { 1.0 };
        // As in Hugging Face's, 0 is as good as none, and one without the other is nothing.
        let both = it.mscale.zip(it.mscale_all_dim).filter(|&(one, all)| one > 0.0 && all > 0.0);
        let by_scales = both.map_or(mscale(1.0), |(one, all)| mscale(one) / mscale(all));
        Ok((inv_freq, it.attention_factor.unwrap_or(by_scales)))
    }

    /// LongRoPE (Ding et al. 2024): every pair has a factor of its own, one for texts up to the original length and one for
    /// longer ones. The longest sequence of the cache decides.
    fn longrope(&self) -> Result<(Vec<f64>, f64), RopeError> {
        let (it, original) = (self.it, self.original_len(self.model.max_position_embeddings)?);
        let is_long = f64::from(self.model.seq_len) > original;
        let pairs = self.dims as usize / 2;
        let mut chosen: &[f64] = &[];
        for (key, list, is_chosen) in
            [("short_factor", &it.short_factor, !is_long), ("long_factor", &it.long_factor, is_long)]
        {
            let list = self.needed(key, list.as_ref())?;
            if list.len() != pairs {
                return Err(RopeError::Length { key, given: list.len(), expected: pairs });
            }
            if let Some(index) = list.iter().position(|factor| !(factor.is_finite() && *factor > 0.0)) {
                return Err(RopeError::Element { key, index, value: list[index] });
            }
            chosen = if is_chosen { list } else { chosen };
        }
        let inv_freq = self.plain().into_iter().zip(chosen).map(|(freq, factor)| freq / factor).collect();
        let given = it.attention_factor.or(if is_long { it.long_mscale } else { it.short_mscale });
        let attention_factor = match given {
            Some(given) => given,
            None => {
                let factor = self.factor(original)?;
                if factor > 1.0 { (1.0 + factor.ln() / original.ln()).sqrt() } else { 1.0 }
            }
        };
        Ok((inv_freq, attention_factor))
    }

    /// Llama 3.1: pairs with long wavelengths are interpolated, those with short ones kept, and the others blended.
    fn llama3(&self) -> Result<Vec<f64>, RopeError> {
        let factor = self.needed("factor", self.it.factor)?;
        let low = self.needed("low_freq_factor", self.it.low_freq_factor)?;
        let high = self.needed("high_freq_factor", self.it.high_freq_factor)?;
        let original = self.original_len(None)?;
        let scaled = |freq: f64| {
            // How often the pair turns within the original length, on a scale from `low` (0) to `high` (1).
            let kept = ((original * freq / TAU - low) / (high - low)).clamp(0.0, 1.0);
            freq / factor * (1.0 - kept) + freq * kept
        };
        Ok(self.plain().into_iter().map(scaled).collect())
    }

    /// Gemma 4: the first part of the pairs is rotated, with the frequencies that they have in a whole head.
    fn proportional(&self, part: f64) -> Vec<f64> {
        let rotated = (part * f64::from(self.dims) / 2.0) as usize;
        let factor = self.it.factor.unwrap_or(1.0);
        let of_pair = |(i, freq): (usize, f64)| if i < rotated { freq / factor } else { 0.0 };
        self.plain().into_iter().enumerate().map(of_pair).collect()
    }

    /// The sections of M-RoPE, if there are any: three, which share out the pairs.
    fn sections(&self, pairs: usize) -> Result<Option<[u32; 3]>, RopeError> {
        const KEY: &str = "mrope_section";
        let Some(section) = &self.it.mrope_section else {
            let needs_them = self.it.mrope_interleaved == Some(true) || self.it.older_type == Some(RopeType::Mrope);
            let is_missing = needs_them || self.rope_type == RopeType::Mrope;
            return if is_missing { self.needed(KEY, None) } else { Ok(None) };
        };
        let &[time, height, width] = &section[..] else {
            return Err(RopeError::Length { key: KEY, given: section.len(), expected: 3 });
        };
        if section.iter().copied().map(u64::from).sum::<u64>() != pairs as u64 {
            let expected = format!("numbers whose sum is the {pairs} pairs that are rotated");
            return Err(RopeError::Value { key: KEY, value: format!("{section:?}"), expected });
        }
        Ok(Some([time, height, width]))
    }
}
