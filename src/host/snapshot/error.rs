//! Why there is no snapshot, or why it does not fit.

use std::io;

use crate::blocks::BlockId;

/// An error of a snapshot. Nothing was changed, neither a cache nor a manager nor an older file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file could not be read or written.
    #[error("cannot {action} the snapshot: {message}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Its kind.
        kind: io::ErrorKind,
        /// The system's words.
        message: String,
    },
    /// It does not begin like a snapshot.
    #[error("this is no snapshot: it begins with {found:02x?}, not with {expected:02x?}")]
    NotASnapshot {
        /// Its first bytes.
        found: Vec<u8>,
        /// Those of a snapshot.
        expected: [u8; 8],
    },
    /// A newer version of this crate wrote it, or none.
    #[error("the snapshot has version {found}, but versions 1 to {supported} are understood; use a newer release")]
    Version {
        /// Its version.
        found: u32,
        /// The latest that is understood.
        supported: u32,
    },
    /// It ends too early.
    #[error("the snapshot ends in its {part}: {needed} bytes are needed, {given} are there; copy the file again")]
    Truncated {
        /// The part that is cut off.
        part: &'static str,
        /// Bytes of that part.
        needed: u64,
        /// Bytes that are there.
        given: u64,
    },
    /// Something follows past its end.
    #[error("the snapshot goes on past its end; one file holds one snapshot")]
    Trailing,
    /// Its bytes are not those that were written.
    #[error("the snapshot is damaged: its checksum does not fit; copy the file again")]
    Checksum,
    /// It says that it is longer than the caller allows.
    #[error("the snapshot's {part} has {bytes} bytes, but {limit} are allowed; allow more, or save fewer sequences")]
    TooLarge {
        /// The part.
        part: &'static str,
        /// Bytes of it.
        bytes: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// The header is no header, though its checksum fits.
    #[error("the snapshot's header cannot be decoded: {message}")]
    Header {
        /// The decoder's words.
        message: String,
    },
    /// A dimension that no cache has.
    #[error("the snapshot's {name} is {value}; it must be between 1 and {limit}")]
    Shape {
        /// The dimension.
        name: &'static str,
        /// Its value.
        value: u32,
        /// The most.
        limit: u32,
    },
    /// A record that contradicts itself or another one.
    #[error("sequence {sequence} of the snapshot: {what} is {value}, not {expected}")]
    Record {
        /// The record.
        sequence: usize,
        /// What is wrong.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it should be.
        expected: u64,
    },
    /// As many bytes of K and V as the sequences do not take.
    #[error("the snapshot has {given} bytes of K and V, but its sequences take {needed}")]
    Data {
        /// Bytes that are there.
        given: u64,
        /// Bytes of the sequences.
        needed: u64,
    },
    /// A sequence names a block whose content was not given.
    #[error("a sequence lies in block {block}, but what that block holds was not given")]
    NotHeld {
        /// The block.
        block: BlockId,
    },
    /// The cache is of another shape.
    #[error(
        "the snapshot's {field} is {saved}, but the cache's is {expected}; K and V of one model do not fit another"
    )]
    Mismatch {
        /// What differs.
        field: &'static str,
        /// The snapshot's.
        saved: String,
        /// The cache's.
        expected: String,
    },
    /// More sequences than the cache can have.
    #[error("the snapshot has {given} sequences, but the cache allows {limit}")]
    TooManySequences {
        /// Sequences of the snapshot.
        given: u64,
        /// The most.
        limit: u32,
    },
    /// A sequence is longer than the cache allows.
    #[error("sequence {sequence} of the snapshot has {len} tokens, but the cache allows {max_seq_len}")]
    TooLong {
        /// The record.
        sequence: usize,
        /// Its tokens.
        len: u32,
        /// The most.
        max_seq_len: u32,
    },
    /// The sequences take more blocks than the whole cache has.
    #[error("the snapshot takes more than the {num_blocks} blocks of the cache; restore it into a larger one")]
    TooManyBlocks {
        /// Blocks of the cache.
        num_blocks: u32,
    },
    /// Version 1 has one table to a sequence.
    #[error("the layers form {groups} groups, each with tables of its own; a snapshot holds sequences of one group")]
    Groups {
        /// Groups of layers.
        groups: usize,
    },
    /// The host has no memory left.
    #[error("out of host memory for {bytes} bytes of K and V")]
    HostMemory {
        /// What was asked for.
        bytes: u64,
    },
}

impl SnapshotError {
    pub(super) fn io(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Io { action, kind: error.kind(), message: error.to_string() }
    }
}
