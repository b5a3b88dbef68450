//! Why a log could not be served.

use super::scheduler::ObserverError;
use wgpu_paged_attention::error::{ConfigError, ManagerError, ReserveError};

/// A replay that could not begin or go on. Requests that do not fit are counted, not errors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The cache is impossible, its budget too small for one sequence or block for instance.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The bookkeeping does not fit into memory, or the manager refuses what the scheduler should not have asked for.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// The manager refuses a step for another reason than a lack of blocks.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// A step has no room for any token.
    #[error("step_tokens is 0; a step takes at least 1 token")]
    ZeroStepTokens,
    /// The clock stands still, or leaps.
    #[error("the clock gives {seconds} s for a step of {tokens} tokens; a step takes 1e-9 to 1e9 s")]
    Clock {
        /// What it gave.
        seconds: f64,
        /// Tokens of the step.
        tokens: u32,
    },
    /// What watches the steps wants no more of them.
    #[error("step {step}: {source}")]
    Observer {
        /// The step, counted from 1.
        step: u64,
        /// What it said.
        source: ObserverError,
    },
}
