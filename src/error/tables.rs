//! What can go wrong with tables that an engine keeps itself.

use crate::error::PlanError;

/// Tables of an engine that describe no possible step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// There are more or fewer tables than groups of layers.
    #[error("{given} tables for {expected} groups of layers; pass one for each to plan_group_tables")]
    Groups {
        /// Tables.
        given: usize,
        /// Groups of the cache.
        expected: usize,
    },
    /// Two groups of layers are told unlike things about one step.
    #[error(
        "group {group}: {what} of sequence {row} is {given}, but {expected} in group 0; all groups serve the same queries"
    )]
    UnlikeGroups {
        /// The group.
        group: usize,
        /// What differs.
        what: &'static str,
        /// The sequence; 0 where it is their number.
        row: usize,
        /// The value that the caller gives for this group.
        given: u64,
        /// The value that the caller gives for the first group.
        expected: u64,
    },
    /// A block is written in one group of layers while another has it too: their rows are the same memory.
    #[error(
        "block {block} is written in group {group} and also stands in a table of group {other}; a block belongs to one group"
    )]
    SharedBlock {
        /// The block.
        block: u32,
        /// The group that writes to it.
        group: usize,
        /// A group that writes to it as well, or may read it.
        other: usize,
    },
    /// Two arrays disagree about the number of sequences or tokens.
    #[error("{name} has {actual} elements instead of {expected}; make the arrays agree")]
    Length {
        /// The argument.
        name: &'static str,
        /// Elements that the other arguments call for.
        expected: u64,
        /// Elements it has.
        actual: u64,
    },
    /// Offsets must count from the first element.
    #[error("{name}[0] is {value}; it must be 0")]
    OffsetStart {
        /// The array of offsets.
        name: &'static str,
        /// What it held.
        value: u32,
    },
    /// Offsets went backwards.
    #[error("{name}[{index}] is {value}, below the {previous} before it; offsets never decrease")]
    OffsetOrder {
        /// The array of offsets.
        name: &'static str,
        /// Position of the smaller offset.
        index: usize,
        /// The offset before it.
        previous: u32,
        /// What it held.
        value: u32,
    },
    /// The list of blocks ends before an offset into it.
    #[error("indptr[{index}] is {offset}, but indices has {given} elements; make the arrays agree")]
    IndicesTooShort {
        /// Position of the offset.
        index: usize,
        /// The offset.
        offset: u32,
        /// Elements of `indices`.
        given: usize,
    },
    /// The last block of a sequence holds at least one token, and at most a block of them.
    #[error("last_page_len[{row}] is {len}, outside 1..={block_size}; a sequence without tokens has no block")]
    LastPageLen {
        /// The sequence.
        row: usize,
        /// What the array held.
        len: u32,
        /// Tokens per block.
        block_size: u32,
    },
    /// The blocks of a sequence hold more tokens than the cache allows.
    #[error("sequence {row} of indptr has {seq_len} tokens, more than {limit}; raise max_seq_len")]
    TooManyPages {
        /// The sequence.
        row: usize,
        /// Its length: full blocks, and the last one.
        seq_len: u64,
        /// `max_seq_len`.
        limit: u32,
    },
    /// A sequence is longer than its table row or than the cache allows.
    #[error("seq_lens[{row}] is {seq_len}, more than {limit}; give the table more columns or raise max_seq_len")]
    SeqTooLong {
        /// The sequence.
        row: usize,
        /// Its length.
        seq_len: u32,
        /// The longest it could be: `max_blocks * block_size`, or `max_seq_len` where that is less.
        limit: u64,
    },
    /// A used column names a block outside the pool.
    #[error("block_table[{row}, {col}] is block {id}, but the pool has {num_blocks}; correct the table")]
    InvalidBlock {
        /// The sequence.
        row: usize,
        /// The logical block.
        col: usize,
        /// What the table held.
        id: u32,
        /// Blocks in the pool.
        num_blocks: u32,
    },
    /// A block of the list is outside the pool.
    #[error("indices[{index}] is block {id}, but the pool has {num_blocks}; correct the list")]
    InvalidIndex {
        /// Position in `indices`.
        index: usize,
        /// What it held.
        id: u32,
        /// Blocks in the pool.
        num_blocks: u32,
    },
    /// A token belongs to a sequence that is not in the batch, without being padding.
    #[error("batch_indices[{index}] is {batch}, outside 0..{num_seqs}; use -1 for padding")]
    InvalidBatch {
        /// The query token.
        index: usize,
        /// What the array held.
        batch: i32,
        /// Sequences of the batch.
        num_seqs: usize,
    },
    /// A token lies past the end of its sequence.
    #[error(
        "positions[{index}] is {position}, but sequence {seq} has {seq_len} tokens; lengths count the tokens of this step"
    )]
    InvalidPosition {
        /// The query token.
        index: usize,
        /// What the array held.
        position: u32,
        /// Its sequence.
        seq: usize,
        /// Tokens of that sequence.
        seq_len: u32,
    },
    /// A slot is negative without being the padding value -1, or lies past the pool.
    #[error("slot_mapping[{index}] is {slot}, outside 0..{num_slots}; use -1 for padding")]
    InvalidSlot {
        /// The query token.
        index: usize,
        /// What the mapping held.
        slot: i64,
        /// Slots in the pool.
        num_slots: u64,
    },
    /// Two tokens of the step would be written to one slot.
    #[error("tokens {first} and {second} both go to slot {slot}; give each a slot of its own, or -1 for padding")]
    SharedSlot {
        /// The slot.
        slot: u32,
        /// The first of the two query tokens.
        first: u32,
        /// The second.
        second: u32,
    },
    /// Rotations are computed for the positions of the cache only.
    #[error("mrope_positions[{row}][{axis}] is {position}, outside 0..{limit}; raise max_seq_len")]
    MropePosition {
        /// The query token.
        row: usize,
        /// 0 for time, 1 for height, 2 for width.
        axis: usize,
        /// What the array held.
        position: u32,
        /// Positions of the cache: its `max_seq_len`.
        limit: u32,
    },
    /// The plan belongs to a reservation that would be lost.
    #[error("this plan holds an open step; commit or roll it back first")]
    StepOpen,
    /// The step is too large to be described to the device.
    #[error(transparent)]
    Plan(#[from] PlanError),
}
