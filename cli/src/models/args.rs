//! Which model, and how much memory its cache may take.

use std::borrow::Cow;
use std::path::PathBuf;

use crate::models::Model;
use crate::plan::ByteSize;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use wgpu_paged_attention::config::{CacheConfig, KvDtype, MAX_BLOCK_SIZE, MAX_SEQ_LEN};

use crate::args::up_to;
use crate::common::status::{Failure, Status};

/// The model and its cache.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// A model by name.
    #[arg(long, value_name = "NAME", default_value = "llama-13b", value_parser = models())]
    pub model: Model,
    /// A model by its config.json, as Hugging Face publishes it.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub config: Option<PathBuf>,
    /// Storage of K and V: f32, f16, bf16, int8, fp8, int4.
    #[arg(long, value_name = "FORMAT", default_value = "f16")]
    pub kv_dtype: KvDtype,
    /// Tokens per block.
    #[arg(long, value_name = "TOKENS", default_value = "16", value_parser = up_to(MAX_BLOCK_SIZE))]
    pub block_size: u32,
    /// Memory for K and V: bytes, or a number with kB, MB, GB, TB (powers of 1,000) or KiB, MiB, GiB, TiB.
    #[arg(long, value_name = "SIZE", default_value = "26GB")]
    pub budget: ByteSize,
    /// The longest sequence, in tokens: what a contiguous cache reserves for each.
    #[arg(long, value_name = "TOKENS", default_value = "4096", value_parser = up_to(MAX_SEQ_LEN))]
    pub max_len: u32,
}

impl CacheArgs {
    /// The model, by name or by file.
    pub fn model(&self) -> Result<Model, Failure> {
        match &self.config {
            Some(path) => {
                Model::from_config(path).map_err(|error| Failure::new(Status::Usage, format!("--config {error}")))
            }
            None => Ok(self.model.clone()),
        }
    }

    /// Its cache.
    pub fn cache(&self, model: &Model) -> CacheConfig {
        model
            .cache_config()
            .with_kv_dtype(self.kv_dtype)
            .with_block_size(self.block_size)
            .with_memory_budget_bytes(self.budget.0)
            .with_max_seq_len(self.max_len)
    }
}

fn models() -> impl TypedValueParser<Value = Model> {
    let values = Model::BUILT_IN.into_iter().filter_map(|model| match model.name {
        Cow::Borrowed(name) => Some(PossibleValue::new(name)),
        // Only models from files make up a name.
        Cow::Owned(_) => None,
    });
    PossibleValuesParser::new(values).try_map(|name| Model::by_name(&name))
}
