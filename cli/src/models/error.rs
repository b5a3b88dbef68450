//! Why a model could not be had.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(
        "unknown model {given:?}; known are {known}, or give the config.json of another one with --config, or --heads, \
         --kv-heads and --head-dim"
    )]
    UnknownModel { given: String, known: String },
    #[error("{file}: {source}")]
    Io { file: String, source: io::Error },
    #[error("{file}: more than {limit} bytes, so it is not a config.json; give the file of that name")]
    TooLarge { file: String, limit: u64 },
    #[error("{file}: not a JSON object: {source}")]
    Json { file: String, source: serde_json::Error },
    #[error("{file}: no field {field:?}{others}; --heads, --kv-heads and --head-dim do without a file")]
    Missing { file: String, field: String, others: String },
    #[error("{file}: {field} is {value}, not {expected}")]
    Field { file: String, field: String, value: String, expected: String },
    #[error("{file}: none of the {num_layers} layers keeps K and V, so there is nothing to cache")]
    NoAttention { file: String, num_layers: u32 },
    #[error(
        "{file}: {field} is {value}: multi-head latent attention keeps one compressed row per token instead of K and V \
         of each head, which this cache does not store"
    )]
    LatentAttention { file: String, field: String, value: String },
}
