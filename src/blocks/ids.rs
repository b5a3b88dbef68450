//! Numbers that must not be mixed up.

use std::fmt;

/// A physical block of the pool; the same block in every layer, for K and for V.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct BlockId(u32);

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
    pub const fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}.{}", self.index, self.generation)
    }
}
