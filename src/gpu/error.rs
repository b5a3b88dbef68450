//! What can go wrong between the host and the device.

use super::unroll::UnrollError;
use crate::error::{LayoutError, PlanError};

/// An error of a cache on a device. Nothing was recorded, and the cache is as it was.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The pool cannot be cut to fit the device's bindings.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The step is too large to be dispatched.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A shader could not be put together.
    #[error(transparent)]
    Shader(#[from] UnrollError),
    /// Query heads that are no multiple of the KV heads.
    #[error("num_q_heads is {num_q_heads}, not a positive multiple of the {num_kv_heads} KV heads of the cache")]
    QueryHeads {
        /// Query heads asked for.
        num_q_heads: u32,
        /// KV heads of the cache.
        num_kv_heads: u32,
    },
    /// A scale that is not positive and finite.
    #[error("scale is {scale}; it must be positive and finite")]
    Scale {
        /// The scale asked for.
        scale: f32,
    },
    /// A layer that the cache does not have.
    #[error("layer {layer} does not exist; the cache has {num_layers}")]
    Layer {
        /// The layer asked for.
        layer: u32,
        /// Layers of the cache.
        num_layers: u32,
    },
    /// A buffer, a slice of a buffer or a pool of the wrong size.
    #[error("{argument} has {given} bytes, but {needed} are needed")]
    TooSmall {
        /// The argument.
        argument: &'static str,
        /// Bytes it has.
        given: u64,
        /// Bytes it needs.
        needed: u64,
    },
    /// A size that exceeds what the device was created with.
    #[error("{what} would take {needed} bytes, but the device allows {limit}; ask for a higher limit or use less")]
    Limit {
        /// What was to be made.
        what: &'static str,
        /// Bytes it takes.
        needed: u64,
        /// Bytes the device allows.
        limit: u64,
    },
    /// A buffer that was created without a usage it needs.
    #[error("{argument} lacks the usage {needed:?}; create the buffer with it")]
    Usage {
        /// The argument.
        argument: &'static str,
        /// The missing usage.
        needed: wgpu::BufferUsages,
    },
    /// A slice that does not start where a binding may start.
    #[error("{argument} starts at byte {offset}, which is no multiple of {alignment}")]
    Alignment {
        /// The argument.
        argument: &'static str,
        /// Where it starts.
        offset: u64,
        /// The device's `min_storage_buffer_offset_alignment`.
        alignment: u32,
    },
    /// One buffer is both read and written, which wgpu allows not even for ranges that do not touch.
    #[error("{read} and {written} share a buffer; a dispatch cannot read and write the same buffer, so use two")]
    SharedBuffer {
        /// The argument that is read.
        read: &'static str,
        /// The argument that is written.
        written: &'static str,
    },
    /// An attention made to write the log-sum-exp needs a buffer for it, and one made without must not get any.
    #[error("the attention was made with lse = {expected}, but a buffer for it was {}", if *.expected { "not given" } else { "given" })]
    Lse {
        /// Whether the attention writes it.
        expected: bool,
    },
    /// A plan, step or attention of a cache of another shape.
    #[error("the {what} was made for another cache")]
    Foreign {
        /// What is foreign.
        what: &'static str,
    },
    /// Splits so long that the device would end the kernel's loops before they are done.
    #[error("one invocation would take {rounds} loop rounds, but this device stops after {limit}; use smaller splits")]
    LoopRounds {
        /// Rounds of the longest invocation.
        rounds: u64,
        /// Rounds the device completes.
        limit: u32,
    },
    /// A plan with splits of another length than the kernels were compiled for.
    #[error("the plan has splits of {given} tokens, but the cache uses {expected}; make plans with KvCache::new_plan")]
    SplitTokens {
        /// The plan's.
        given: u32,
        /// The cache's.
        expected: u32,
    },
    /// A profile that asks for what the device cannot do.
    #[error("the profile's {field} is {value}; {limit}")]
    Profile {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        limit: &'static str,
    },
    /// The device has no memory left.
    #[error("out of device memory while making {what} ({bytes} bytes); use a smaller cache")]
    OutOfMemory {
        /// What was to be made.
        what: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// The device is gone; everything made on it is, too.
    #[error("the device is lost; create a new one, and the cache with it")]
    DeviceLost,
    /// wgpu refused what was asked of it.
    #[error("wgpu refused {what}: {message}")]
    Validation {
        /// What was to be made.
        what: &'static str,
        /// wgpu's words.
        message: String,
    },
}
