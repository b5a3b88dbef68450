//! Which model, and how much memory its cache may take.

use std::borrow::Cow;
use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use wgpu_paged_attention::config::{
    CacheConfig, KvDtype, MAX_BLOCK_SIZE, MAX_HEAD_DIM, MAX_LAYERS_OR_HEADS, MAX_SEQ_LEN,
};

use super::{MAX_Q_HEADS, Model, ModelShape};
use crate::common::{Failure, Status, up_to};
use crate::plan::ByteSize;

/// A model that has no name here.
#[derive(Debug, Args)]
pub struct OtherModelArgs {
    /// A model by its config.json, as Hugging Face publishes it.
    #[arg(long, value_name = "FILE", conflicts_with = "model")]
    pub config: Option<PathBuf>,
    /// A model by its numbers: query heads; with --head-dim and perhaps --kv-heads.
    #[arg(long, value_name = "N", value_parser = up_to(MAX_Q_HEADS), requires = "head_dim",
        conflicts_with_all = ["model", "config"])]
    pub heads: Option<u32>,
    /// Its KV heads [default: as many].
    #[arg(long, value_name = "N", value_parser = up_to(MAX_Q_HEADS), requires = "heads")]
    pub kv_heads: Option<u32>,
    /// Elements of one of its heads.
    #[arg(long, value_name = "N", value_parser = up_to(MAX_HEAD_DIM), requires = "heads")]
    pub head_dim: Option<u32>,
}

impl OtherModelArgs {
    /// `layers` is how many a model by its numbers has.
    pub fn model(&self, layers: u32, max_len: Option<u32>) -> Result<Option<Model>, Failure> {
        if let Some(path) = &self.config {
            let model = Model::from_config(path, max_len);
            return Ok(Some(said(model.map_err(|error| Failure::new(Status::Usage, format!("--config {error}")))?)));
        }
        let (Some(heads), Some(head_dim)) = (self.heads, self.head_dim) else { return Ok(None) };
        let shape = ModelShape::custom(heads, self.kv_heads.unwrap_or(heads), head_dim)
            .map_err(|error| Failure::new(Status::Usage, format!("--heads, --kv-heads: {error}")))?;
        Ok(Some(said(Model::custom(layers, shape, max_len))))
    }
}

fn said(model: Model) -> Model {
    if let Some(note) = &model.note {
        eprintln!("note: {}: {note}", model.name);
    }
    model
}

pub fn longest(model: &Model, asked: Option<u32>) -> u32 {
    if let Some(asked) = asked.filter(|asked| *asked > model.max_seq_len) {
        let (name, made_for) = (&model.name, model.max_seq_len);
        eprintln!("warning: --max-len {asked} is longer than the {made_for} tokens that {name} was made for");
    }
    asked.unwrap_or(model.max_seq_len)
}

/// The model and its cache.
#[derive(Debug, Args)]
pub struct CacheArgs {
    /// A model by name.
    #[arg(long, value_name = "NAME", default_value = "llama-13b", value_parser = models())]
    pub model: Model,
    #[command(flatten)]
    pub other: OtherModelArgs,
    /// Its layers that keep K and V, where it is given by its numbers.
    #[arg(long, value_name = "N", value_parser = up_to(MAX_LAYERS_OR_HEADS), requires = "heads")]
    pub layers: Option<u32>,
    /// Storage of K and V: f32, f16, bf16, int8, fp8, int4.
    #[arg(long, value_name = "FORMAT", default_value = "f16")]
    pub kv_dtype: KvDtype,
    /// Tokens per block.
    #[arg(long, value_name = "TOKENS", default_value = "16", value_parser = up_to(MAX_BLOCK_SIZE))]
    pub block_size: u32,
    /// Memory for K and V: bytes, or a number with kB, MB, GB, TB (powers of 1,000) or KiB, MiB, GiB, TiB.
    #[arg(long, value_name = "SIZE", default_value = "26GB")]
    pub budget: ByteSize,
    /// The longest sequence, in tokens: what a contiguous cache reserves for each [default: what the model was made for].
    #[arg(long, value_name = "TOKENS", value_parser = up_to(MAX_SEQ_LEN))]
    pub max_len: Option<u32>,
}

impl CacheArgs {
    pub fn model(&self) -> Result<Model, Failure> {
        let other = self.other.model(self.layers.unwrap_or(1), self.max_len)?;
        Ok(other.unwrap_or_else(|| self.model.clone()))
    }

    pub fn cache(&self, model: &Model) -> CacheConfig {
        model
            .cache_config()
            .with_kv_dtype(self.kv_dtype)
            .with_block_size(self.block_size)
            .with_memory_budget_bytes(self.budget.0)
            .with_max_seq_len(longest(model, self.max_len))
    }
}

/// What the library says of a cache, with the options in the place of its fields.
pub fn in_options(error: &dyn std::error::Error) -> Failure {
    let fields = [
        ("memory_budget_bytes", "--budget"),
        ("raise num_blocks", "raise --budget"),
        ("max_seq_len", "--max-len"),
        ("max_sequences", "--max-sequences"),
        ("block_size", "--block-size"),
        ("step_tokens", "--step-tokens"),
    ];
    let text = fields.iter().fold(error.to_string(), |text, (field, option)| text.replace(field, option));
    Failure::new(Status::Usage, text)
}

pub fn models() -> impl TypedValueParser<Value = Model> {
    let values = Model::BUILT_IN.into_iter().filter_map(|model| match model.name {
        Cow::Borrowed(name) => Some(PossibleValue::new(name)),
        // Only models from files make up a name.
        Cow::Owned(_) => None,
    });
    PossibleValuesParser::new(values).try_map(|name| Model::by_name(&name))
}
