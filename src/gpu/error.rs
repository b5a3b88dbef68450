//! What can go wrong with a cache on a device.

use crate::error::{LayoutError, PlanError};

/// An error of a cache on a device. Nothing was recorded, and the cache is as it was.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The pool cannot be cut to fit the device's bindings.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// There is more work than dispatches can serve.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A spec contradicts itself, the cache or the device.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// An argument does not fit the call: a layer or a block that does not exist, a part made for another cache, a
    /// buffer that is missing, too small, not aligned, shared or without its usage, a stride that does not fit, or
    /// ranges that overlap.
    #[error(transparent)]
    Argument(#[from] ArgumentError),
    /// The device cannot do it: a buffer or a binding would be too large, or the device is out of memory or lost.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// An option of a spec or a profile that contradicts the others, the cache or the device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", sentence(.option, .problem))]
#[non_exhaustive]
pub struct SpecError {
    /// The option.
    pub option: &'static str,
    /// What is wrong with it: its value, the limit, and the remedy.
    pub problem: String,
}

/// An argument that does not fit the call, the cache or the other arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", sentence(.name, .problem))]
#[non_exhaustive]
pub struct ArgumentError {
    /// The argument.
    pub name: &'static str,
    /// What is wrong with it: its value, the limit, and the remedy.
    pub problem: String,
}

/// What the device, or the memory of the host, does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device is gone, and everything made on it with it.
    #[error("the device is lost; create a new one, and the cache with it")]
    Lost,
    /// The device has no memory left.
    #[error("out of device memory while making {what} ({bytes} bytes); use a smaller cache")]
    OutOfMemory {
        /// What was to be made.
        what: String,
        /// Its size.
        bytes: u64,
    },
    /// The host has no memory left.
    #[error("out of host memory while making {what} ({bytes} bytes); free some, or take fewer blocks at a time")]
    HostMemory {
        /// What was to be made.
        what: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// A size exceeds what the device was created with.
    #[error("{what} would take {needed} bytes, but the device allows {limit}; ask for a higher limit or use less")]
    Limit {
        /// What was to be made.
        what: &'static str,
        /// Bytes it takes.
        needed: u64,
        /// Bytes the device allows.
        limit: u64,
    },
    /// Splits are so long that the device would end the kernel's loops before they are done.
    #[error("one invocation would take {rounds} loop rounds, but this device stops after {limit}; use smaller splits")]
    LoopRounds {
        /// Rounds of the longest invocation.
        rounds: u64,
        /// Rounds the device completes.
        limit: u32,
    },
    /// Blocks are still on their way to the host.
    #[error("the blocks are still on their way; submit the encoder, poll the device, and ask again")]
    Pending,
    /// The encoder that was to take blocks to the host was dropped, or wgpu refused it.
    #[error("the encoder that was to take the blocks to the host was dropped or refused; record the swap again")]
    NotSubmitted,
    /// The encoder that was to copy a layer into its new pools was dropped, or wgpu refused it.
    #[error(
        "the encoder that was to copy layer {layer} into its new pools was dropped or refused; resize that layer again, \
         which copies from the old ones"
    )]
    ResizeNotSubmitted {
        /// The layer.
        layer: u32,
    },
    /// wgpu refused what was asked of it.
    #[error("wgpu refused {what}: {message}")]
    Validation {
        /// What was to be made.
        what: String,
        /// wgpu's words.
        message: String,
    },
}

/// The name and the problem, with no space before an index.
fn sentence(name: &str, problem: &str) -> String {
    if problem.starts_with('[') { format!("{name}{problem}") } else { format!("{name} {problem}") }
}

impl SpecError {
    pub(crate) fn new(option: &'static str, problem: impl Into<String>) -> Self {
        Self { option, problem: problem.into() }
    }
}

impl ArgumentError {
    pub(crate) fn new(name: &'static str, problem: impl Into<String>) -> Self {
        Self { name, problem: problem.into() }
    }

    /// For what was made by, or for, another cache.
    pub(crate) fn other_cache(name: &'static str) -> Self {
        Self::new(name, "was made for another cache; use it with that one, or make one for this cache")
    }

    /// For what was made for a cache of another shape.
    pub(crate) fn other_shape(name: &'static str, (field, theirs, ours): (&'static str, String, String)) -> Self {
        let problem = format!(
            "was made for another cache, whose {field} is {theirs}, while that of this one is {ours}; caches that one \
             manager drives have one shape"
        );
        Self::new(name, problem)
    }
}
