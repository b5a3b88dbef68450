//! Models: what their K and V look like, by name or from a `config.json` as Hugging Face publishes them.

pub mod args;
mod error;
mod families;
mod fields;
mod hub;
mod layers;
mod shape;
mod weights;

use std::borrow::Cow;
use std::path::Path;

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::config::CacheConfig;

use crate::common::clip;
use families::{ANY, FAMILIES, Family, Mlp, Windows};
use fields::{Fields, HEAD_DIM, HIDDEN, KV_HEADS, LAYERS, MAX_LEN, Q_HEADS, WINDOW, shown};

pub use error::ModelError;
pub use shape::{MAX_Q_HEADS, ModelShape, ShapeError, number};

#[cfg(test)]
use wgpu_paged_attention::config::KvDtype;
#[cfg(test)]
use wgpu_paged_attention::layout::UNIT_BYTES;

/// The longest context of a model that does not tell; engines assume the same.
const USUAL_MAX_LEN: u32 = 2048;

/// What a cache has to know of a model, and how large the rest of it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    pub name: Cow<'static, str>,
    pub num_layers: u32,
    pub num_q_heads: u32,
    pub num_kv_heads: u32,
    pub head_dim: u32,
    pub max_seq_len: u32,
    /// Layers whose queries see the last `window` keys only; the others see all of them.
    pub windowed_layers: u32,
    /// Keys that a query of those layers sees, its own included.
    pub window: Option<u32>,
    pub num_weights: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Model {
    /// The models known by name, with the numbers of their published configurations. `llama-13b` is the shape of both
    /// LLaMA-13B and Llama-2-13B, with the context of the second; `mistral-7b` is the first version, the one with a
    /// window; `phi-3-mini` is the one for 4k tokens.
    pub const BUILT_IN: [Self; 10] = [
        Self::built_in("llama-13b", 40, [40, 40, 128], 4096, 13_015_864_320),
        Self::built_in("llama-2-7b", 32, [32, 32, 128], 4096, 6_738_415_616),
        Self::built_in("llama-3-8b", 32, [32, 8, 128], 8192, 8_030_261_248),
        Self::built_in("llama-3-70b", 80, [64, 8, 128], 8192, 70_553_706_496),
        Self::built_in("mistral-7b", 32, [32, 8, 128], 32_768, 7_241_732_096).windowed(32, 4096),
        Self::built_in("qwen2-7b", 28, [28, 4, 128], 32_768, 7_615_616_512),
        Self::built_in("qwen3-8b", 36, [32, 8, 128], 40_960, 8_190_735_360),
        Self::built_in("gemma-2-9b", 42, [16, 8, 256], 8192, 9_241_705_984).windowed(21, 4096),
        Self::built_in("gemma-3-270m", 18, [4, 1, 256], 32_768, 268_098_176).windowed(15, 512),
        Self::built_in("phi-3-mini", 32, [32, 32, 96], 4096, 3_821_079_552).windowed(32, 2047),
    ];

    const fn built_in(
        name: &'static str,
        num_layers: u32,
        [num_q_heads, num_kv_heads, head_dim]: [u32; 3],
        max_seq_len: u32,
        num_weights: u64,
    ) -> Self {
        Self {
            name: Cow::Borrowed(name),
            num_layers,
            num_q_heads,
            num_kv_heads,
            head_dim,
            max_seq_len,
            windowed_layers: 0,
            window: None,
            num_weights: Some(num_weights),
            note: None,
        }
    }

    const fn windowed(mut self, layers: u32, window: u32) -> Self {
        self.windowed_layers = layers;
        self.window = Some(window);
        self
    }

    pub fn by_name(name: &str) -> Result<Self, ModelError> {
        Self::BUILT_IN.into_iter().find(|model| model.name == name).ok_or_else(|| ModelError::UnknownModel {
            given: clip(name),
            known: Self::BUILT_IN.map(|model| model.name).join(", "),
        })
    }

    /// The model that a `config.json` of Hugging Face describes, named after its folder; `max_len` is its longest context
    /// where the file does not tell.
    pub fn from_config(path: impl AsRef<Path>, max_len: Option<u32>) -> Result<Self, ModelError> {
        hub::read(path.as_ref(), max_len)
    }

    pub fn custom(num_layers: u32, shape: ModelShape, max_len: Option<u32>) -> Self {
        let heads = [shape.num_q_heads, shape.num_kv_heads, shape.head_dim];
        let mut model = Self { name: shape.name, num_weights: None, ..Self::built_in("", num_layers, heads, 0, 0) };
        model.assume_length(max_len);
        model
    }

    fn assume_length(&mut self, max_len: Option<u32>) {
        self.max_seq_len = max_len.unwrap_or(USUAL_MAX_LEN);
        if max_len.is_none() {
            let more = self.note.take().map_or_else(String::new, |note| format!("{note}; "));
            let untold = format!("{more}nothing tells its longest context, so it is taken as {USUAL_MAX_LEN} tokens");
            self.note = Some(format!("{untold}; --max-len gives another"));
        }
    }

    #[cfg(test)]
    pub fn kv_bytes_per_token(&self, format: KvDtype) -> u64 {
        let row_bytes = 2 * UNIT_BYTES * u64::from(format.row_units(self.head_dim));
        u64::from(self.num_layers).saturating_mul(self.num_kv_heads.into()).saturating_mul(row_bytes)
    }

    pub fn cache_config(&self) -> CacheConfig {
        CacheConfig::new(self.num_layers, self.num_kv_heads, self.head_dim).with_max_seq_len(self.max_seq_len)
    }

    pub fn shape(&self) -> ModelShape {
        ModelShape {
            name: self.name.clone(),
            num_q_heads: self.num_q_heads,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
        }
    }
}

#[cfg(test)]
mod tests;
