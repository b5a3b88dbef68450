//! Why a model could not be had.

use std::io;

/// Why a model could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No built-in model has this name.
    #[error("unknown model {given:?}; known are {known}, or give the config.json of another one")]
    UnknownModel {
        /// The name asked for, shortened.
        given: String,
        /// The names there are, separated by commas.
        known: String,
    },
    /// The file could not be opened or read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file is too large to be a configuration.
    #[error("{file}: more than {limit} bytes, so it is no config.json; give the file of that name")]
    TooLarge {
        /// The file.
        file: String,
        /// The most that are read.
        limit: u64,
    },
    /// The file is no JSON object.
    #[error("{file}: not a JSON object: {source}")]
    Json {
        /// The file.
        file: String,
        /// What the parser said, with line and column.
        source: serde_json::Error,
    },
    /// A field that the model needs is not there.
    #[error("{file}: no field {field:?}")]
    Missing {
        /// The file.
        file: String,
        /// Its name.
        field: String,
    },
    /// A field holds something else.
    #[error("{file}: {field} is {value}, not {expected}")]
    Field {
        /// The file.
        file: String,
        /// Its name.
        field: String,
        /// Its value, shortened.
        value: String,
        /// What belongs there.
        expected: String,
    },
    /// A kind of model whose fields are not known here.
    #[error("{file}: model_type {given:?} is not known; known are {known}")]
    UnknownType {
        /// The file.
        file: String,
        /// The kind, shortened.
        given: String,
        /// The kinds there are, separated by commas.
        known: String,
    },
    /// A model that keeps a compressed form of K and V.
    #[error(
        "{file}: {field} is {value}: multi-head latent attention keeps one compressed row per token instead of K and V \
         of each head, which this cache does not store"
    )]
    LatentAttention {
        /// The file.
        file: String,
        /// The field that says so.
        field: String,
        /// Its value, shortened.
        value: String,
    },
}
