//! Which keys go with which type, and what they may hold.

use super::{RopeError, RopeParameters, RopeType};

/// YaRN's, unless they are told: how often a pair turns that is kept, and one that is interpolated.
pub(super) const BETA_FAST: f64 = 32.0;
pub(super) const BETA_SLOW: f64 = 1.0;

impl RopeParameters {
    /// The type, once [`check`] has passed.
    pub(super) fn rope_type(&self) -> RopeType {
        self.rope_type.or(self.older_type).unwrap_or_default()
    }
}

/// Refuses what no model can mean, but for what depends on the model.
pub(super) fn check(parameters: &RopeParameters) -> Result<(), RopeError> {
    check_types(parameters)?;
    check_use(parameters)?;
    check_values(parameters)
}

fn check_types(parameters: &RopeParameters) -> Result<(), RopeError> {
    match (parameters.rope_type, parameters.older_type) {
        // Hugging Face writes both where it has read Qwen2-VL's.
        (Some(new), Some(old)) if new != old && (new, old) != (RopeType::Default, RopeType::Mrope) => {
            Err(RopeError::Contradiction {
                key: "rope_type",
                value: new.to_string(),
                other: "type",
                other_value: old.to_string(),
                remedy: "leave one of them out",
            })
        }
        _ => Ok(()),
    }
}

/// Refuses keys that the type does not read.
fn check_use(it: &RopeParameters) -> Result<(), RopeError> {
    use RopeType::{Dynamic, Linear, Llama3, LongRope, Proportional, Yarn};
    let keys: [(&'static str, bool, &[RopeType]); 13] = [
        ("factor", it.factor.is_some(), &[Linear, Dynamic, Yarn, LongRope, Llama3, Proportional]),
        ("attention_factor", it.attention_factor.is_some(), &[Yarn, LongRope]),
        ("beta_fast", it.beta_fast.is_some(), &[Yarn]),
        ("beta_slow", it.beta_slow.is_some(), &[Yarn]),
        ("truncate", it.truncate.is_some(), &[Yarn]),
        ("mscale", it.mscale.is_some(), &[Yarn]),
        ("mscale_all_dim", it.mscale_all_dim.is_some(), &[Yarn]),
        ("short_factor", it.short_factor.is_some(), &[LongRope]),
        ("long_factor", it.long_factor.is_some(), &[LongRope]),
        ("short_mscale", it.short_mscale.is_some(), &[LongRope]),
        ("long_mscale", it.long_mscale.is_some(), &[LongRope]),
        ("low_freq_factor", it.low_freq_factor.is_some(), &[Llama3]),
        ("high_freq_factor", it.high_freq_factor.is_some(), &[Llama3]),
    ];
    let rope_type = it.rope_type();
    match keys.into_iter().find(|(_, given, types)| *given && !types.contains(&rope_type)) {
        Some((key, ..)) => Err(RopeError::Unused { key, rope_type }),
        None => Ok(()),
    }
}

fn check_values(it: &RopeParameters) -> Result<(), RopeError> {
    for (key, value) in [
        ("attention_factor", it.attention_factor),
        ("beta_fast", it.beta_fast),
        ("beta_slow", it.beta_slow),
        ("short_mscale", it.short_mscale),
        ("long_mscale", it.long_mscale),
        ("low_freq_factor", it.low_freq_factor),
        ("high_freq_factor", it.high_freq_factor),
    ] {
        check_number(key, value, |value| value > 0.0, "positive and finite")?;
    }
    for (key, value) in [("mscale", it.mscale), ("mscale_all_dim", it.mscale_all_dim)] {
        check_number(key, value, |value| value >= 0.0, "0 or positive, and finite")?;
    }
    check_number("factor", it.factor, |value| value >= 1.0, "at least 1, and finite")?;
    let names = ["low_freq_factor", "high_freq_factor", "beta_slow", "beta_fast"];
    // Of YaRN's two one may be told, and the other is the usual.
    let betas = [it.beta_slow.or(it.beta_fast.map(|_| BETA_SLOW)), it.beta_fast.or(it.beta_slow.map(|_| BETA_FAST))];
    let values = [it.low_freq_factor, it.high_freq_factor, betas[0], betas[1]];
    for (names, values) in names.chunks(2).zip(values.chunks(2)) {
        if let (Some(low), Some(high)) = (values[0], values[1])
            && low >= high
        {
            return Err(RopeError::Contradiction {
                key: names[0],
                value: low.to_string(),
                other: names[1],
                other_value: high.to_string(),
                remedy: "the first must be less than the second",
            });
        }
    }
    Ok(())
}

/// Refuses a number that is not finite, or not `allowed`.
pub(super) fn check_number(
    key: &'static str,
    value: Option<f64>,
    allowed: impl Fn(f64) -> bool,
    expected: &str,
) -> Result<(), RopeError> {
    match value {
        Some(value) if !(value.is_finite() && allowed(value)) => {
            Err(RopeError::Value { key, value: value.to_string(), expected: expected.to_owned() })
        }
        _ => Ok(()),
    }
}
