//! Rotary position embedding as a model's `config.json` describes it, in the words of Hugging Face.
//!
//! [`RopeParameters`] is the object `rope_scaling`, or `rope_parameters` where the file is of transformers 5: it is read by
//! any deserializer of serde, and refuses keys and types that it does not know. [`RopeParameters::rope`] works out what the
//! object means, in f64: a frequency for every pair and a factor, which is all that a kernel has to know.
//!
//! ```
//! use wgpu_paged_attention::rope::{RopeModel, RopeParameters};
//! use wgpu_paged_attention::{RotarySpec, RotaryStyle};
//!
//! // Llama 3.1 8B: the object, what stands beside it in the file, and the length that the cache is made for.
//! let object = r#"{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
//!     "original_max_position_embeddings": 8192, "rope_type": "llama3"}"#;
//! let parameters: RopeParameters = serde_json::from_str(object)?;
//! let model = RopeModel::new(128, 131_072).with_rope_theta(500_000.0);
//! let spec = RotarySpec::from_rope(RotaryStyle::HalfSplit, parameters.rope(&model)?);
//! # let error = serde_json::from_str::<RopeParameters>(r#"{"rope_type": "llama3", "fctor": 8.0}"#).unwrap_err();
//! # assert!(error.to_string().starts_with("unknown field `fctor`"), "{error}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | `rope_type` | frequencies | factor of cosines and sines |
//! |---|---|---|
//! | `default`, and `mrope` with its sections | `rope_theta^(−2i / dims)` | 1 |
//! | `linear` | over `factor` | 1 |
//! | `dynamic` | of a base that grows with the length (NTK) | 1 |
//! | `llama3` | low ones over `factor`, those between blended | 1 |
//! | `yarn` | low ones over `factor`, those between on a ramp | `attention_factor`, or by `mscale` and `mscale_all_dim` |
//! | `longrope`, `su` | over `short_factor[i]` or `long_factor[i]` | `attention_factor`, or by the ratio of lengths |
//! | `proportional` | `rope_theta^(−2i / head_dim)` for a part of the pairs, 0 for the rest | 1 |
//!
//! With `partial_rotary_factor`, `dims` is that part of `head_dim`. Any type may have `mrope_section`.
//!
//! # Lengths
//!
//! Hugging Face works `dynamic` and `longrope` out anew as a batch grows, so that its bits depend on the batch. Here the length
//! that the cache is made for decides once, and all tokens are turned alike.
//!
//! # What is beside the rotation
//!
//! DeepSeek's attention multiplies its scale by the square of `0.1 · mscale_all_dim · ln(factor) + 1`; give that to
//! [`AttentionSpec::with_scale`](crate::gpu::AttentionSpec::with_scale). A file of transformers 5 with an object for each type
//! of layer is a map from names to [`RopeParameters`], and every type of layer has a spec of its own.

mod check;
mod error;
mod scaling;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::setters::setters;

pub use error::RopeError;

/// How frequencies are worked out; see the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RopeType {
    /// As in the paper.
    #[default]
    Default,
    /// Positions are interpolated.
    Linear,
    /// The base grows with the length.
    Dynamic,
    /// Interpolation by parts, with a factor of attention.
    Yarn,
    /// A list of factors for short texts, and one for long ones.
    #[serde(alias = "su")]
    LongRope,
    /// Llama 3.1's interpolation by parts.
    Llama3,
    /// Qwen2-VL's name for [`Default`](Self::Default) with sections.
    Mrope,
    /// Gemma 4's partial rotation, whose frequencies and pairs are those of the whole head.
    Proportional,
}

impl fmt::Display for RopeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Default => "default",
            Self::Linear => "linear",
            Self::Dynamic => "dynamic",
            Self::Yarn => "yarn",
            Self::LongRope => "longrope",
            Self::Llama3 => "llama3",
            Self::Mrope => "mrope",
            Self::Proportional => "proportional",
        })
    }
}

/// The object `rope_scaling` or `rope_parameters` of a `config.json`; its fields have the names of the keys.
///
/// A key that is not known is refused when the object is read, and one that the type does not use by
/// [`rope`](Self::rope). Both `rope_type` and the older `type` may be there, if they agree.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are Hugging Face's; the module says what they do")]
pub struct RopeParameters {
    pub rope_type: Option<RopeType>,
    /// The older name of `rope_type`.
    #[serde(rename = "type")]
    pub older_type: Option<RopeType>,
    pub rope_theta: Option<f64>,
    pub partial_rotary_factor: Option<f64>,
    pub factor: Option<f64>,
    pub original_max_position_embeddings: Option<u32>,
    pub attention_factor: Option<f64>,
    pub beta_fast: Option<f64>,
    pub beta_slow: Option<f64>,
    pub truncate: Option<bool>,
    pub mscale: Option<f64>,
    pub mscale_all_dim: Option<f64>,
    pub short_factor: Option<Vec<f64>>,
    pub long_factor: Option<Vec<f64>>,
    pub short_mscale: Option<f64>,
    pub long_mscale: Option<f64>,
    pub low_freq_factor: Option<f64>,
    pub high_freq_factor: Option<f64>,
    pub mrope_section: Option<Vec<u32>>,
    pub mrope_interleaved: Option<bool>,
}

/// What the rotation of a model depends on beside the object: fields of its `config.json` that older files have outside of
/// it, and the length that is served.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeModel {
    head_dim: u32,
    seq_len: u32,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    max_position_embeddings: Option<u32>,
    original_max_position_embeddings: Option<u32>,
}

impl RopeModel {
    /// Heads of `head_dim` elements, in a cache for sequences of up to `seq_len` tokens: its `max_seq_len`.
    pub fn new(head_dim: u32, seq_len: u32) -> Self {
        Self {
            head_dim,
            seq_len,
            rope_theta: None,
            partial_rotary_factor: None,
            max_position_embeddings: None,
            original_max_position_embeddings: None,
        }
    }

    setters! {
        /// Sets the base of the frequencies, where the object has none; 10,000 if neither has.
        with_rope_theta(rope_theta: f64) => Some(rope_theta);
        /// Sets the part of a head that is rotated, where the object has none; all of it if neither has.
        with_partial_rotary_factor(partial_rotary_factor: f64) => Some(partial_rotary_factor);
        /// Sets the longest text of the model, which some types need.
        with_max_position_embeddings(max_position_embeddings: u32) => Some(max_position_embeddings);
        /// Sets its longest text before it was stretched, where the object has none (Phi-3).
        with_original_max_position_embeddings(original_max_position_embeddings: u32) =>
            Some(original_max_position_embeddings);
    }
}

/// What a rotation comes to; [`RotarySpec::from_rope`](crate::gpu::RotarySpec::from_rope) takes it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Rope {
    /// Radians per position of every pair.
    pub inv_freq: Vec<f64>,
    /// What cosines and sines are multiplied by.
    pub attention_factor: f64,
    /// Pairs that are turned by the position in time, height and width, if there are three.
    pub mrope_section: Option<[u32; 3]>,
    /// Whether these are dealt out in turn.
    pub mrope_interleaved: bool,
}

impl RopeParameters {
    /// A rotation of this type, without any other key.
    pub fn new(rope_type: RopeType) -> Self {
        Self { rope_type: Some(rope_type), ..Self::default() }
    }

    /// What the object means for a model.
    ///
    /// # Errors
    /// [`RopeError`] names the key that is missing, of no use to the type, out of range, of the wrong length, or in
    /// contradiction to another.
    pub fn rope(&self, model: &RopeModel) -> Result<Rope, RopeError> {
        check::check(self)?;
        scaling::rope(self, model)
    }
}
