//! The block tables of all sequences, as the device sees them.

use crate::blocks::BlockId;

/// `[max_sequences, max_blocks_per_seq]` block numbers, row-major: the host's copy of the device's table.
///
/// Only the leading entries of a row belong to its sequence; the manager knows how many. What lies past
/// them may be left over from earlier owners. Leading entries are [`RELEASED`](crate::blocks::RELEASED) where a window has moved
/// on.
#[derive(Clone, Debug)]
pub struct BlockTables {
    words: Vec<BlockId>,
    columns: u32,
}

impl BlockTables {
    /// An empty table, or `None` if there is no memory for it.
    pub(crate) fn new(rows: u32, columns: u32) -> Option<Self> {
        let entries = usize::try_from(u64::from(rows) * u64::from(columns)).ok()?;
        let mut words = Vec::new();
        words.try_reserve_exact(entries).ok()?;
        words.resize(entries, BlockId::default());
        Some(Self { words, columns })
    }

    /// Columns of a row: the most blocks a sequence can have.
    pub fn columns(&self) -> u32 {
        self.columns
    }

    /// Rows: the most sequences.
    pub fn rows(&self) -> u32 {
        (self.words.len() / self.columns as usize) as u32
    }

    /// The whole table, in the layout of the device's buffer.
    pub fn words(&self) -> &[BlockId] {
        &self.words
    }

    /// Element index of the first entry of a row.
    pub fn base(&self, row: u32) -> u32 {
        // The table has at most 2^30 entries.
        row * self.columns
    }

    /// The entries of a row, unused ones included.
    pub(crate) fn row(&self, row: u32) -> &[BlockId] {
        let base = self.base(row) as usize;
        &self.words[base..base + self.columns as usize]
    }

    /// Makes the first entries of one row those of another.
    pub(crate) fn copy_row(&mut self, from: u32, to: u32, columns: usize) {
        let (from, to) = (self.base(from) as usize, self.base(to) as usize);
        self.words.copy_within(from..from + columns, to);
    }

    pub(crate) fn row_mut(&mut self, row: u32) -> &mut [BlockId] {
        let base = self.base(row) as usize;
        &mut self.words[base..base + self.columns as usize]
    }
}
