//! The records of an encoded step, as the shaders read them.

use bytemuck::{Pod, Zeroable};

/// One query token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Row {
    /// Keys that the query sees: its own and those before it. 0 gives zeros.
    pub kv_len: u32,
    /// Where the block table of its sequence starts: an element of the resident table, or a word of the encoded step.
    pub table_base: u32,
    /// Splits of the rows before it.
    pub split_start: u32,
    /// Splits of those rows before it that have more than one.
    pub partial_start: u32,
}

/// What an encoded step begins with; offsets count words from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct StepHeader {
    /// Query tokens.
    pub num_rows: u32,
    /// Tokens to append.
    pub num_slots: u32,
    /// Changed entries of the resident table.
    pub num_updates: u32,
    /// Splits of all rows.
    pub num_splits: u32,
    /// Tokens in one split.
    pub split_tokens: u32,
    /// Offset of the [`Row`]s.
    pub rows_base: u32,
    /// Offset of the slots.
    pub slots_base: u32,
    /// Offset of the [`TableUpdate`]s; inline tables follow behind them.
    pub updates_base: u32,
}

/// An entry of the resident table that changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TableUpdate {
    /// Element of the flat `[max_sequences, max_blocks_per_seq]` table.
    pub index: u32,
    /// The block that goes there.
    pub block: u32,
}
