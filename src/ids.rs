//! Numbers that must not be mixed up.

use std::fmt;

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};

/// A physical block of the pool; the same block in every layer, for K and for V.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable, Serialize, Deserialize)]
#[repr(transparent)]
#[serde(try_from = "u32", into = "u32")]
pub struct BlockId(u32);

/// The entry of a block that a sequence has given back because it left every window.
///
/// Only the host's table shows it; on the device the entry keeps a number of some block, and kernels that apply one of the
/// windows do not look at what it holds.
pub const RELEASED: BlockId = BlockId(u32::MAX);

impl BlockId {
    /// The highest id; numbers above it stay free for marks of our own.
    pub const MAX: Self = Self((1 << 31) - 1);

    /// The block with this number, if there can be one.
    pub const fn new(id: u32) -> Option<Self> {
        if id <= Self::MAX.0 { Some(Self(id)) } else { None }
    }

    /// The number, as it stands in block tables.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Of a block of a pool, counted there.
    pub(crate) const fn of_pool(id: u32) -> Self {
        debug_assert!(id <= Self::MAX.0);
        Self(id)
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<u32> for BlockId {
    type Error = String;

    fn try_from(id: u32) -> Result<Self, String> {
        Self::new(id).ok_or_else(|| format!("block {id} is beyond {}, the highest id", Self::MAX))
    }
}

/// With the number, as engines write it in their own tables.
impl PartialEq<u32> for BlockId {
    fn eq(&self, number: &u32) -> bool {
        self.0 == *number
    }
}

impl From<BlockId> for u32 {
    fn from(block: BlockId) -> Self {
        block.0
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A handle to one sequence of one [`CacheManager`](crate::blocks::CacheManager).
///
/// Its place is used again after a release, but under another generation, so an old handle is noticed, as is one of another
/// manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    index: u32,
    generation: u32,
    manager: u64,
}

impl SeqId {
    pub(crate) const fn new(index: u32, generation: u32, manager: u64) -> Self {
        Self { index, generation, manager }
    }

    /// The row of the block table, below `max_sequences`.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// How often the row had been given out before.
    #[cfg(test)]
    pub(crate) const fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}.{}", self.index, self.generation)
    }
}
