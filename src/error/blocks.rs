//! What can go wrong with blocks, sequences and steps.

use crate::error::PlanError;
use crate::ids::{BlockId, SeqId};

/// A request that the [`BlockPool`](crate::blocks::BlockPool) refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Nothing was allocated.
    #[error(
        "out of KV blocks: {needed} needed, {free} of {total} free; release a sequence or enlarge the pool, up to its \
         max_num_blocks"
    )]
    OutOfBlocks {
        /// Blocks asked for.
        needed: u64,
        /// Blocks free at that moment.
        free: u32,
        /// Blocks in the pool.
        total: u32,
    },
    /// The id does not belong to this pool.
    #[error("block {block} is not in this pool of {num_blocks}; use ids that this pool handed out")]
    OutOfRange {
        /// The id as given.
        block: BlockId,
        /// Blocks in the pool.
        num_blocks: u32,
    },
    /// The block is free already: freed twice, or never allocated.
    #[error("block {block} is free; free or retain a block only while it is allocated")]
    NotAllocated {
        /// The id as given.
        block: BlockId,
    },
    /// The reference count of a block is at its maximum.
    #[error("block {block} has {limit} owners, the most it can have; copy it instead of sharing it")]
    TooManyOwners {
        /// The id as given.
        block: BlockId,
        /// The largest reference count.
        limit: u32,
    },
    /// More blocks than ids exist for.
    #[error("a pool of {num_blocks} blocks is larger than {limit}; use fewer blocks")]
    TooManyBlocks {
        /// Blocks asked for.
        num_blocks: u32,
        /// The largest pool.
        limit: u32,
    },
    /// The pool was made for fewer blocks.
    #[error("a pool of {num_blocks} blocks is outside 1..={limit}; make the cache with a larger max_num_blocks")]
    PoolSize {
        /// Blocks asked for.
        num_blocks: u32,
        /// The most that it may have.
        limit: u32,
    },
    /// Blocks that would go are in use.
    #[error(
        "the pool cannot shrink to {num_blocks} blocks: block {block} is in use; release its owners, or keep {least}"
    )]
    TailInUse {
        /// Blocks asked for.
        num_blocks: u32,
        /// The last block in use.
        block: BlockId,
        /// The fewest blocks that the pool can have now.
        least: u32,
    },
    /// The host could not give the memory for the bookkeeping.
    #[error("no host memory for {bytes} bytes of block bookkeeping; use fewer blocks")]
    HostMemory {
        /// Bytes asked for.
        bytes: u64,
    },
}

/// A request that the [`CacheManager`](crate::blocks::CacheManager) refuses, [`reserve`] apart.
///
/// [`reserve`]: crate::blocks::CacheManager::reserve
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The sequence was released, or the handle comes from elsewhere.
    #[error("{seq} is stale: it was released, or belongs to another manager; create a new sequence")]
    StaleSequence {
        /// The handle as given.
        seq: SeqId,
    },
    /// Every row of the block table is taken.
    #[error("all {limit} sequences are in use; release one or raise max_sequences")]
    TooManySequences {
        /// Sequences that may live at a time.
        limit: u32,
    },
    /// The sequence takes part in the step that is still open.
    #[error("{seq} is part of the open step; commit or roll it back first")]
    SequenceInStep {
        /// The handle as given.
        seq: SeqId,
    },
    /// Blocks that the open step may have to give back would be taken.
    #[error("a step is open; commit or roll it back first")]
    StepOpen,
    /// A sequence can only be cut where it has tokens.
    #[error("{seq} has {seq_len} tokens and cannot be cut to {len}; reserve tokens to make it longer")]
    TruncateBeyond {
        /// The handle as given.
        seq: SeqId,
        /// The length asked for.
        len: u32,
        /// The length it has.
        seq_len: u32,
    },
    /// Keys that the next token would see have left the window and are gone.
    #[error(
        "{seq} cannot be cut to {len} tokens: its window has moved on, and {shortest} is the shortest length whose keys \
         are still there; cut it to that or to 0, or raise window_slack"
    )]
    Released {
        /// The handle as given.
        seq: SeqId,
        /// The length asked for.
        len: u32,
        /// The shortest length but 0.
        shortest: u32,
    },
    /// More or fewer ids than tokens that were to get them.
    #[error("{given} token ids were given for {expected} tokens of {seq}; give one for each")]
    TokenIdCount {
        /// The sequence.
        seq: SeqId,
        /// Ids given.
        given: u64,
        /// Tokens that they were given for; those that were cut off since are not counted.
        expected: u32,
    },
    /// The tokens have their ids already.
    #[error("token {position} of {seq} has its id already, as the first {known} have; tell each once")]
    TokenIdsTwice {
        /// The sequence.
        seq: SeqId,
        /// The first of the tokens.
        position: u32,
        /// Leading tokens whose ids are known.
        known: u32,
    },
    /// The tokens were cut off since they were committed, whether or not others took their place.
    #[error("token {position} of {seq} was cut off since; tell the ids of the tokens before it only")]
    TruncatedTokenIds {
        /// The sequence.
        seq: SeqId,
        /// The first token that was cut off.
        position: u32,
    },
    /// The step of the token is further back than the manager remembers.
    #[error(
        "token {position} of {seq} has waited for its id for more than {limit} steps; tell ids sooner, or raise late_steps"
    )]
    LateTokenIds {
        /// The sequence.
        seq: SeqId,
        /// The first token without an id.
        position: u32,
        /// The steps that may wait.
        limit: u32,
    },
    /// More steps than the manager remembers for a sequence.
    #[error("late_steps is {late_steps}, more than {limit}; choose fewer")]
    LateSteps {
        /// The option as given.
        late_steps: u32,
        /// The most steps.
        limit: u32,
    },
    /// Tokens before these have no ids yet.
    #[error(
        "ids were given from token {position} of {seq} on, but those from token {known} on come next; tell tokens in the \
         order in which they were taken"
    )]
    TokenIdsSkip {
        /// The sequence.
        seq: SeqId,
        /// The first of the tokens.
        position: u32,
        /// The first token without an id.
        known: u32,
    },
    /// The token lies in a cached block, under another id.
    #[error(
        "token {position} of {seq} is {given}, but {cached} in the cached block that it shares; give shared tokens one id"
    )]
    OtherTokenId {
        /// The handle as given.
        seq: SeqId,
        /// The token.
        position: u32,
        /// Its id as given.
        given: u32,
        /// Its id in the prefix cache.
        cached: u32,
    },
    /// The prefix cache shares blocks of a few tokens; a contiguous cache has none.
    #[error("prefix_cache needs a paged cache; set paged or leave it off")]
    NotPaged,
    /// Blocks that sequences use cannot be taken out of the prefix cache.
    #[error("{used} blocks are in use; release all sequences before the prefix cache is reset")]
    PrefixCacheInUse {
        /// Blocks in use.
        used: u32,
    },
    /// A record describes no sequence of this cache.
    #[error("record {record}: {what} is {value}, but {expected} was expected; import records as they were exported")]
    Record {
        /// Position in the records.
        record: usize,
        /// What does not fit.
        what: &'static str,
        /// What the record holds.
        value: u64,
        /// What it should hold, or at most hold.
        expected: u64,
    },
    /// Records that share a block disagree about it.
    #[error(
        "record {record}: block {block} is shared with record {other}, which has other tokens, another place or another domain for it"
    )]
    SharedRecord {
        /// Position in the records.
        record: usize,
        /// The record that named the block first.
        other: usize,
        /// The block, as numbered in the records.
        block: BlockId,
    },
    /// There is no reservation to commit or roll back.
    #[error("no step is open; reserve one first")]
    NoOpenStep,
    /// The plan does not belong to the open reservation of this manager.
    #[error("this plan is not the open step of this manager; pass the plan that reserve filled")]
    WrongPlan,
    /// The host could not give the memory for the bookkeeping.
    #[error("no host memory for {bytes} bytes of tables; lower max_sequences, max_seq_len or late_steps")]
    HostMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// The pool refused; a contiguous cache takes its block when a sequence is created.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// Why a step could not be reserved. Counts, tables and the order of the free list are as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The previous step was neither committed nor rolled back.
    #[error("a step is already open; commit or roll it back first")]
    StepOpen,
    /// The sequence was released, or the handle comes from elsewhere.
    #[error("request {request}: {seq} is stale: it was released, or belongs to another manager; create a new sequence")]
    StaleSequence {
        /// Position in the requests.
        request: usize,
        /// The handle as given.
        seq: SeqId,
    },
    /// A sequence can grow once per step only.
    #[error("request {request}: {seq} appears twice in one step; add up its tokens in one request")]
    DuplicateSequence {
        /// Position of the second mention.
        request: usize,
        /// The handle as given.
        seq: SeqId,
    },
    /// The sequence would outgrow its table row.
    #[error(
        "request {request}: {len} tokens and {new_tokens} new ones exceed max_seq_len {max_seq_len}; \
         stop the sequence or raise the limit"
    )]
    TooLong {
        /// Position in the requests.
        request: usize,
        /// Tokens already in the cache.
        len: u32,
        /// Tokens to be added.
        new_tokens: u32,
        /// The limit of one sequence.
        max_seq_len: u32,
    },
    /// The pool cannot hold the new tokens.
    #[error(
        "out of KV blocks: {needed} needed, {free} of {total} free, {} missing; release a sequence or enlarge the pool, up \
         to its max_num_blocks",
        needed.saturating_sub((*free).into())
    )]
    OutOfBlocks {
        /// Blocks that the whole step needs, those for copies of shared blocks included.
        needed: u64,
        /// Blocks free at that moment.
        free: u32,
        /// Blocks in the pool.
        total: u32,
    },
    /// The step is too large to be described to the device.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl ReserveError {
    /// Blocks that would have to become free for the step to be reserved; `None` if that is not what it lacks.
    pub fn missing_blocks(&self) -> Option<u64> {
        match *self {
            Self::OutOfBlocks { needed, free, .. } => Some(needed.saturating_sub(free.into())),
            _ => None,
        }
    }
}

/// Why no choice of sequences to preempt can end a shortage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PreemptError {
    /// The sequence that is to be helped was released, or the handle comes from elsewhere.
    #[error("{seq} is stale: it was released, or belongs to another manager; create a new sequence")]
    StaleSequence {
        /// The handle as given.
        seq: SeqId,
    },
    /// All that may be preempted together own too little.
    #[error("{missing} blocks are missing, but preemption would free {reclaimable} at most; let the sequence wait")]
    NotEnough {
        /// Blocks asked for.
        missing: u64,
        /// Blocks that all sequences of lower rank would free together.
        reclaimable: u64,
    },
}

/// What [`CacheManager::check_invariants`](crate::blocks::CacheManager::check_invariants) found: a bug of this crate, or
/// memory that was overwritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvariantError {
    /// A block stands in the tables of two groups of layers.
    #[error("block {block} belongs to group {first} and to group {second}; this is a bug of the block manager")]
    Groups {
        /// The block.
        block: BlockId,
        /// A group that has it.
        first: u32,
        /// Another one.
        second: u32,
    },
    /// The list of free blocks is broken.
    #[error("free list at block {block}: {what}")]
    FreeList {
        /// Where.
        block: BlockId,
        /// How.
        what: &'static str,
    },
    /// A count does not match what it counts.
    #[error("the count of {name} is {stored}, but there are {counted}")]
    Counter {
        /// What is counted.
        name: &'static str,
        /// The count.
        stored: u64,
        /// A fresh count.
        counted: u64,
    },
    /// A block has more or fewer owners than tables name it.
    #[error("block {block} has {stored} owners, but is named {counted} times")]
    Owners {
        /// The block.
        block: BlockId,
        /// Its reference count.
        stored: u32,
        /// Tables and copies of the open step that name it.
        counted: u32,
    },
    /// A sequence does not make sense.
    #[error("the sequence in row {row}: {what} is {value}, expected {expected}")]
    Sequence {
        /// Its row of the table.
        row: u32,
        /// What is wrong.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it should be.
        expected: u64,
    },
    /// The prefix index is broken.
    #[error("prefix index at block {block}: {what}")]
    Prefix {
        /// Where.
        block: BlockId,
        /// How.
        what: &'static str,
    },
}
