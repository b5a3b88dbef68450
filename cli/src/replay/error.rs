//! Why a log could not be served.

use wgpu_paged_attention::error::{ConfigError, ManagerError, ReserveError};

use super::ObserverError;

/// A replay that could not begin or go on. Requests that do not fit are counted, not errors.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Manager(#[from] ManagerError),
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    #[error("step_tokens is 0; a step takes at least 1 token")]
    ZeroStepTokens,
    #[error("the clock gives {seconds} s for a step of {tokens} tokens; a step takes 1e-9 to 1e9 s")]
    Clock { seconds: f64, tokens: u32 },
    #[error("the replay is longer than 584 years at step {step}; give a clock with shorter steps")]
    EndOfTime { step: u64 },
    #[error("step {step}: {source}")]
    Observer { step: u64, source: ObserverError },
}
