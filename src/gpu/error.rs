//! What can go wrong between the host and the device.

use crate::error::{LayoutError, PlanError};
use crate::gpu::kernel::unroll::UnrollError;
use crate::plan::Schedule;

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
    /// A scale, soft cap or rotary base that is not positive and finite.
    #[error("{option} is {value}; it must be positive and finite")]
    NotPositive {
        /// The option.
        option: &'static str,
        /// Its value.
        value: f32,
    },
    /// A window that shows a query nothing, not even its own key.
    #[error("window is 0; it counts the query's own key, so give 1 or more, or None for no window")]
    EmptyWindow,
    /// Slopes or sinks that are not one per query head.
    #[error("{option} has {given} elements, but there are {num_q_heads} query heads")]
    HeadTerms {
        /// The option.
        option: &'static str,
        /// Its elements.
        given: usize,
        /// Query heads.
        num_q_heads: u32,
    },
    /// A slope or sink that is not finite.
    #[error("{option}[{head}] is {value}; it must be finite")]
    HeadTerm {
        /// The option.
        option: &'static str,
        /// The query head.
        head: usize,
        /// The value.
        value: f32,
    },
    /// More query heads than slopes or sinks can be given for.
    #[error("{option} are given for {num_q_heads} query heads; the limit is {limit}")]
    TooManyHeads {
        /// The option.
        option: &'static str,
        /// Query heads.
        num_q_heads: u32,
        /// The most.
        limit: u32,
    },
    /// Half precision in the caller's buffers, with heads of odd width: two heads would share a word.
    #[error("{name} is {dim}; queries, rows and outputs in f16 need an even one")]
    OddHead {
        /// The dimension.
        name: &'static str,
        /// Its value.
        dim: u32,
    },
    /// Rotary dimensions that are odd, none, or more than a head has.
    #[error("{dims} dimensions are to be rotated; it must be an even number from 2 to head_dim, which is {head_dim}")]
    RotaryDims {
        /// Dimensions asked for.
        dims: u32,
        /// Elements of one head of K.
        head_dim: u32,
    },
    /// Inverse frequencies that are not one per pair.
    #[error("inv_freq has {given} elements, but {dims} rotary dimensions form {} pairs; give one for each", dims / 2)]
    InvFreqCount {
        /// Its elements.
        given: usize,
        /// Rotary dimensions.
        dims: u32,
    },
    /// An inverse frequency whose angles are not finite.
    #[error("inv_freq[{pair}] is {value}; every angle made of it must be finite")]
    InvFreq {
        /// The pair.
        pair: usize,
        /// The value.
        value: f64,
    },
    /// Queries for an append that rotates nothing.
    #[error("queries were given, but the append was made without rotary; give them to the attention as they are")]
    QueriesNotRotated,
    /// A layer that the cache does not have.
    #[error("layer {layer} does not exist; the cache has {num_layers}")]
    Layer {
        /// The layer asked for.
        layer: u32,
        /// Layers of the cache.
        num_layers: u32,
    },
    /// A block that is to be copied, but does not exist.
    #[error("pairs[{index}].{field} is block {block}, but that pool has {num_blocks}; correct the pair")]
    Block {
        /// The pair.
        index: usize,
        /// The pool: `external` or `own`.
        field: &'static str,
        /// The block.
        block: u32,
        /// Blocks of that pool.
        num_blocks: u32,
    },
    /// A block of a list that does not exist.
    #[error("{list}[{index}] is block {block}, but there are {num_blocks}; correct the list")]
    NoSuchBlock {
        /// The list.
        list: &'static str,
        /// The place in it.
        index: usize,
        /// The block.
        block: u32,
        /// Blocks that there are.
        num_blocks: u32,
    },
    /// Copies whose outcome would depend on their order.
    #[error(
        "copies[{index}] writes block {block}, which another copy of the list reads or writes; make two lists of it"
    )]
    CopyOrder {
        /// The copy.
        index: usize,
        /// Its target.
        block: u32,
    },
    /// A block that was not among those that were taken to the host.
    #[error("blocks[{index}] asks for what block {block} held, but that one was not swapped out")]
    NotHeld {
        /// The place in the list.
        index: usize,
        /// The block.
        block: u32,
    },
    /// Blocks of a cache of another shape.
    #[error("the blocks have {field} {given}, but the cache has {expected}")]
    BlockShape {
        /// What differs.
        field: &'static str,
        /// Theirs.
        given: String,
        /// The cache's.
        expected: String,
    },
    /// Blocks that are still on their way to the host.
    #[error("the blocks are still on their way; submit the encoder, poll the device, and ask again")]
    Pending,
    /// Blocks that were to come to the host with an encoder that nobody submitted.
    #[error("the encoder that was to take the blocks to the host was dropped unsubmitted; record the swap again")]
    NotSubmitted,
    /// The host has no memory left.
    #[error("out of host memory while making {what} ({bytes} bytes)")]
    HostMemory {
        /// What was to be made.
        what: &'static str,
        /// Its size.
        bytes: u64,
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
    /// A plan, step, attention, appender or transfer of a cache of another shape.
    #[error("the {what} was made for another cache")]
    Foreign {
        /// What is external.
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
    /// A plan that was cut in another way than the kernels were compiled for.
    #[error("the plan was made with {given:?}, but the cache uses {expected:?}; make plans with KvCache::new_plan")]
    Schedule {
        /// The plan's.
        given: Schedule,
        /// The cache's.
        expected: Schedule,
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
