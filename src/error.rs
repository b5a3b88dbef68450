//! What can go wrong on the host, one enum per stage.
//!
//! Every variant carries the offending value and the limit it broke, and its message ends with the way out.
//! Whatever returns one of these has left the cache as it was.

mod blocks;
mod tables;

use crate::config::LayerKind;

pub use blocks::{InvariantError, ManagerError, PoolError, PreemptError, ReserveError};
pub use tables::TableError;

/// A [`CacheConfig`](crate::config::CacheConfig) that describes no possible cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A size lies outside the range that the kernels and the 32-bit ids can serve.
    #[error("{name} is {value}, outside {min}..={max}; choose a value in that range")]
    OutOfRange {
        /// The field of the configuration.
        name: &'static str,
        /// What it held.
        value: u64,
        /// The smallest accepted value.
        min: u64,
        /// The largest accepted value.
        max: u64,
    },
    /// Nothing says how large the pool should be.
    #[error("the pool has no size; set num_blocks or memory_budget_bytes")]
    NoPoolSize,
    /// Two sizes were given for one pool, and they need not agree.
    #[error("num_blocks is {num_blocks} and memory_budget_bytes is {memory_budget_bytes}; set only one of them")]
    TwoPoolSizes {
        /// The size in blocks.
        num_blocks: u32,
        /// The size in bytes.
        memory_budget_bytes: u64,
    },
    /// The budget does not pay for a single block.
    #[error(
        "memory_budget_bytes is {budget}, but one block of {block_size} tokens takes {block_bytes} bytes; \
         raise the budget to at least that"
    )]
    BudgetTooSmall {
        /// The budget in bytes.
        budget: u64,
        /// K and V bytes of one block over all layers.
        block_bytes: u64,
        /// Tokens in one block; `max_seq_len` for a contiguous cache.
        block_size: u32,
    },
    /// A contiguous cache is too small for one sequence of full length.
    #[error(
        "{num_blocks} blocks of {block_size} tokens hold {tokens} tokens, but a contiguous sequence reserves \
         {max_seq_len}; raise num_blocks or lower max_seq_len"
    )]
    PoolTooSmall {
        /// Configured blocks.
        num_blocks: u32,
        /// Configured tokens per block.
        block_size: u32,
        /// Their product.
        tokens: u64,
        /// Tokens that every contiguous sequence reserves.
        max_seq_len: u32,
    },
    /// More slots than a `u32` can number, the highest value being the one that means "skip".
    #[error(
        "{num_blocks} blocks of {block_size} tokens make {slots} slots, more than the {limit} that a slot \
         number can tell apart; use fewer or smaller blocks"
    )]
    TooManySlots {
        /// Blocks in the pool, as configured or as the budget would pay for.
        num_blocks: u64,
        /// Tokens per block.
        block_size: u32,
        /// Their product.
        slots: u64,
        /// The most slots a pool may have.
        limit: u64,
    },
    /// The block tables of all sequences together are too large.
    #[error(
        "{max_sequences} sequences of {max_blocks_per_seq} blocks need {entries} table entries, more than \
         {limit}; lower max_sequences or max_seq_len, or use larger blocks"
    )]
    TableTooLarge {
        /// Rows of the table.
        max_sequences: u32,
        /// Columns of the table.
        max_blocks_per_seq: u32,
        /// Their product, summed up over the groups of layers so far.
        entries: u64,
        /// The most entries that all tables may have.
        limit: u64,
    },
    /// The cache would have more bytes than a `u64` can count.
    #[error("{num_blocks} blocks of {block_bytes} bytes are more than {limit} bytes; use fewer blocks or layers")]
    CacheTooLarge {
        /// Blocks in the pool.
        num_blocks: u32,
        /// K and V bytes of one block over all layers.
        block_bytes: u64,
        /// The largest countable size.
        limit: u64,
    },
    /// What is said of all layers is not so in one that is described for itself.
    #[error("{name} is {value}, but {given} in layer {layer} of layers; leave {name} out, or make both agree")]
    LayersDisagree {
        /// The field of the configuration.
        name: &'static str,
        /// What it says of all layers.
        value: u64,
        /// The first layer that differs.
        layer: u32,
        /// What it says; a window of 0 is none.
        given: u64,
    },
    /// There are more or fewer layers than are described.
    #[error("num_layers is {num_layers}, but {given} layers are described; leave num_layers out, or make both agree")]
    LayerCount {
        /// The number as configured.
        num_layers: u64,
        /// Layers that are described.
        given: u64,
    },
    /// The layers are of too many kinds, or their groups are too small.
    #[error(
        "layers of {kinds} kinds form {groups} groups, more than {limit}; put more layers into a group, or give some \
         kinds a cache of their own"
    )]
    TooManyGroups {
        /// Groups, each of as many places as the most numerous kind has layers, or as were asked for.
        groups: u64,
        /// Kinds of layers.
        kinds: usize,
        /// The most groups.
        limit: usize,
    },
    /// Groups share memory block by block, which a contiguous cache does not.
    #[error("layers form {groups} groups, which need a paged cache; set paged, or make all layers alike")]
    GroupsNotPaged {
        /// Groups of layers.
        groups: u64,
    },
    /// Blocks of two kinds of layers cannot have the same bytes.
    #[error(
        "a token takes {wide_k} bytes of K and {wide_v} of V in layers of {widest}, which is no whole multiple, the same of \
         both, of the {k} and {v} bytes in layers of {kind}; give one of the kinds a cache of its own, or pad its heads"
    )]
    UnlikeRows {
        /// The kind that does not fit.
        kind: LayerKind,
        /// Bytes of a token's K in one of its layers.
        k: u64,
        /// Bytes of its V.
        v: u64,
        /// The kind with the widest rows.
        widest: LayerKind,
        /// Bytes of a token's K there.
        wide_k: u64,
        /// Bytes of its V.
        wide_v: u64,
    },
    /// Blocks of two kinds of layers do not end together, so prefixes could not be found in both.
    #[error(
        "blocks of {block_size} tokens in layers of {kind} and of {other} in layers of {first}: neither is a multiple of the \
         other; give one of the kinds a cache of its own"
    )]
    UnlikeBlocks {
        /// The kind that does not fit.
        kind: LayerKind,
        /// Its tokens per block.
        block_size: u32,
        /// The kind of the first group.
        first: LayerKind,
        /// Tokens per block there.
        other: u32,
    },
    /// The name of a storage format is not known.
    #[error("unknown KV format {given:?}; use f32, f16, bf16, int8, fp8 or int4")]
    UnknownFormat {
        /// The name as it was given.
        given: String,
    },
}

/// A row of K or V that cannot be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The stored words do not match the elements.
    #[error(
        "a row of {elements} elements in {format} takes {needed} words, but {given} were given; pass exactly as many"
    )]
    RowWords {
        /// The name of the storage format.
        format: &'static str,
        /// Elements of the row.
        elements: usize,
        /// Words given.
        given: usize,
        /// Words that the row takes.
        needed: usize,
    },
}

/// A pool that cannot be cut into pieces a device can bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Even a single KV head of one layer exceeds the binding limit.
    #[error(
        "one KV head of one layer takes {head_bytes} bytes, more than a binding of {limit}; \
         use at most {max_blocks} blocks instead of {num_blocks}"
    )]
    HeadTooLarge {
        /// Bytes of one head's keys or values in one layer, whichever are more.
        head_bytes: u64,
        /// The effective limit of one binding.
        limit: u64,
        /// Blocks in the pool.
        num_blocks: u32,
        /// The largest number of blocks that would fit.
        max_blocks: u64,
    },
    /// Layers with unlike numbers of KV heads cannot be cut into as many equal head shards each.
    #[error(
        "layers of {heads} and of {other} KV heads need {needed} head shards of at most {limit} bytes, and cannot be cut into \
         so many or more equal ones; use fewer blocks"
    )]
    UnlikeHeads {
        /// KV heads of the layers with the fewest.
        heads: u32,
        /// KV heads of those with the most.
        other: u32,
        /// The fewest head shards that fit.
        needed: u32,
        /// The effective limit of one binding.
        limit: u64,
    },
}

/// A step whose sizes do not fit the 32-bit words that describe it to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A count is beyond its limit.
    #[error("the step has {value} {what}, more than {limit}; split it into smaller steps")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// The count.
        value: u64,
        /// The largest that can be described.
        limit: u64,
    },
    /// A dispatch was asked for with a size of zero where a size is needed.
    #[error("{name} is 0; it must be at least 1")]
    Zero {
        /// The argument.
        name: &'static str,
    },
    /// The host could not give the memory for the arrays of the step.
    #[error("no host memory for a step of {rows} rows; split it into smaller steps")]
    HostMemory {
        /// Rows of the step.
        rows: u64,
    },
}
