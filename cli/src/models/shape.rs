//! The attention of one layer: by a model's name or by its numbers.

use std::borrow::Cow;
use std::fmt;

use wgpu_paged_attention::config::MAX_HEAD_DIM;

use super::{Model, ModelError};
use crate::common::clip;

/// The most query heads. Far above any model, and low enough that the bytes of the largest case fit in 64 bits.
pub const MAX_Q_HEADS: u32 = 4096;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("case {given:?} has {}; give five, as in {form}", crate::trace::count(*found as u64, "field"))]
    FieldCount { given: String, found: usize, form: &'static str },
    #[error("{field} {given:?} is not a whole number from 1 to {max}")]
    Field { field: &'static str, given: String, max: u32 },
    #[error(
        "num_q_heads {num_q_heads} is not a multiple of num_kv_heads {num_kv_heads}; every KV head serves equally many query heads"
    )]
    Indivisible { num_q_heads: u32, num_kv_heads: u32 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelShape {
    pub name: Cow<'static, str>,
    pub num_q_heads: u32,
    pub num_kv_heads: u32,
    pub head_dim: u32,
}

impl ModelShape {
    pub fn custom(num_q_heads: u32, num_kv_heads: u32, head_dim: u32) -> Result<Self, ShapeError> {
        for (field, value, max) in [
            ("num_q_heads", num_q_heads, MAX_Q_HEADS),
            ("num_kv_heads", num_kv_heads, MAX_Q_HEADS),
            ("head_dim", head_dim, MAX_HEAD_DIM),
        ] {
            number(field, &value.to_string(), max)?;
        }
        if !num_q_heads.is_multiple_of(num_kv_heads) {
            return Err(ShapeError::Indivisible { num_q_heads, num_kv_heads });
        }
        let name = Cow::Owned(format!("{num_q_heads}/{num_kv_heads}x{head_dim}"));
        Ok(Self { name, num_q_heads, num_kv_heads, head_dim })
    }

    pub fn by_name(name: &str) -> Result<Self, ModelError> {
        Model::by_name(name).map(|model| model.shape())
    }

    pub fn group(&self) -> u32 {
        self.num_q_heads / self.num_kv_heads
    }
}

impl fmt::Display for ModelShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

pub fn number(field: &'static str, text: &str, max: u32) -> Result<u32, ShapeError> {
    match text.parse() {
        Ok(value) if (1..=max).contains(&value) => Ok(value),
        _ => Err(ShapeError::Field { field, given: clip(text), max }),
    }
}
