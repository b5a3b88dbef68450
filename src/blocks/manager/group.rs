//! What belongs to one table: the layers that share it, its rows, and how far each of them is used.

use std::ops::Range;

use crate::blocks::manager::block_store::Store;
use crate::blocks::manager::window::Window;
use crate::blocks::prefix::Seat;
use crate::blocks::{BlockId, BlockTables, RELEASED};
use crate::layout::KvLayout;

/// What the manager knows about one row of a table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TableState {
    /// The used columns of the row, those of an open step and released ones included.
    pub(super) num_blocks: u32,
    /// Leading columns whose blocks left the window.
    pub(super) released: u32,
    /// Leading columns that the device has seen in a committed step.
    pub(super) uploaded: u32,
    /// A number that no table had before; another one whenever the row changes before the block that a step writes first.
    pub(super) era: u64,
}

/// Layers that share a table. A row of it belongs to the sequence of that row, in every group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) layout: KvLayout,
    pub(super) window: Option<Window>,
    pub(super) tables: BlockTables,
    /// Of every row.
    pub(super) states: Vec<TableState>,
}

impl Group {
    /// Memory of one row, in bytes.
    pub(super) fn row_bytes(layout: &KvLayout) -> u64 {
        4 * u64::from(layout.max_blocks_per_seq()) + size_of::<TableState>() as u64
    }

    /// A group without blocks, or `None` if there is no memory for its table.
    pub(super) fn new(layout: KvLayout, slack: u32) -> Option<Self> {
        // A contiguous sequence has one block, of which no part is given back.
        let window = layout.window().filter(|_| layout.paged()).map(|keys| Window { keys, slack });
        let rows = layout.max_sequences();
        let tables = BlockTables::new(rows, layout.max_blocks_per_seq())?;
        let mut states = Vec::new();
        states.try_reserve_exact(rows as usize).ok()?;
        states.resize(rows as usize, TableState::default());
        Some(Self { layout, window, tables, states })
    }

    #[inline]
    pub(super) fn state(&self, row: u32) -> &TableState {
        &self.states[row as usize]
    }

    pub(super) fn state_mut(&mut self, row: u32) -> &mut TableState {
        &mut self.states[row as usize]
    }

    /// Blocks that a sequence owns before it has tokens.
    pub(super) fn first_blocks(&self) -> u32 {
        u32::from(!self.layout.paged())
    }

    /// Columns of a row once its sequence has `len` tokens. A contiguous sequence owns its block before it has a token.
    #[inline]
    pub(super) fn columns_at(&self, row: u32, len: u32) -> u32 {
        let num_blocks = self.state(row).num_blocks;
        // Mostly the last block has room, and a product is there sooner than a quotient.
        if len <= self.tokens_of(num_blocks) { num_blocks } else { self.layout.blocks_for(len) }
    }

    /// The column of a position, found at once where it is the last one or behind it.
    #[inline]
    pub(super) fn column_of(&self, row: u32, position: u32) -> u32 {
        let num_blocks = self.state(row).num_blocks;
        let end = self.tokens_of(num_blocks);
        if position >= end.saturating_sub(self.layout.block_size()) && position < end {
            num_blocks - 1
        } else {
            position / self.layout.block_size()
        }
    }

    /// Tokens for which so many columns have room. Below 2^31, for the last column begins below the longest sequence.
    fn tokens_of(&self, columns: u32) -> u32 {
        columns * self.layout.block_size()
    }

    /// Bytes of a token's share of a block.
    pub(super) fn token_bytes(&self) -> u64 {
        self.layout.block_bytes() / u64::from(self.layout.block_size())
    }

    /// The used columns of a row.
    #[inline]
    pub(super) fn used(&self, row: u32) -> &[BlockId] {
        &self.tables.row(row)[..self.state(row).num_blocks as usize]
    }

    /// The blocks of a row, without those that left the window.
    pub(super) fn owned(&self, row: u32) -> &[BlockId] {
        &self.used(row)[self.state(row).released as usize..]
    }

    /// Leading columns of a row that no query from position `len` on sees.
    pub(super) fn outside(&self, len: u32) -> u32 {
        self.window.map_or(0, |window| window.outside(len, self.layout.block_size()))
    }

    /// The shortest length to which a sequence can be cut that is to have `len` tokens: `len` unless the next token would
    /// see keys that left the window.
    pub(super) fn shortest(&self, row: u32, len: u32) -> u32 {
        let released = self.state(row).released;
        match self.window {
            Some(window) if self.outside(len) < released => window.shortest(released, self.layout.block_size()),
            _ => len,
        }
    }

    /// Leading columns that a sequence of `len` tokens does without, though it may still be cut by the slack.
    pub(super) fn given_back(&self, len: u32) -> u32 {
        self.window.map_or(0, |window| window.given_back(len, self.layout.block_size()))
    }

    /// The columns that end in a column of the first group, whose blocks have `reference_size` tokens.
    pub(super) fn columns_ending_in(&self, column: u32, reference_size: u32) -> Range<u32> {
        let size = u64::from(self.layout.block_size());
        let (begin, end) =
            (u64::from(column) * u64::from(reference_size), (u64::from(column) + 1) * u64::from(reference_size));
        (begin / size) as u32..(end / size) as u32
    }

    /// Where the prefix cache has the block of a column.
    pub(super) fn seat(&self, idx: usize, column: u32, reference_size: u32) -> Seat {
        let per_reference = reference_size / self.layout.block_size();
        Seat { group: idx as u32, place: column.checked_rem(per_reference).unwrap_or(0) }
    }

    /// The block that a sequence of `len` tokens owns already and writes into when it grows.
    #[inline]
    pub(super) fn written_block(&self, row: u32, len: u32) -> Option<BlockId> {
        // Never a released one: the last token of a sequence is inside all windows.
        self.used(row).get(self.column_of(row, len) as usize).copied()
    }

    /// Gives a new sequence the blocks that it owns before it has tokens.
    pub(super) fn take_first(&mut self, row: u32, store: &mut Store) {
        let num_blocks = self.first_blocks();
        store.allocate(&mut self.tables.row_mut(row)[..num_blocks as usize]);
        self.state_mut(row).num_blocks = num_blocks;
    }

    /// Makes one row share all blocks of another.
    pub(super) fn share(&mut self, from: u32, to: u32, store: &mut Store) {
        let TableState { num_blocks, released, .. } = *self.state(from);
        self.tables.copy_row(from, to, num_blocks as usize);
        let state = self.state_mut(to);
        (state.num_blocks, state.released) = (num_blocks, released);
        store.retain_all(self.owned(to));
    }

    /// The columns of a row that a sequence cut to `len` tokens keeps: a contiguous one has its block in any case.
    pub(super) fn kept(&self, row: u32, len: u32) -> u32 {
        self.layout.blocks_for(len).max(self.first_blocks()).min(self.state(row).num_blocks)
    }

    /// Forgets the columns past the first `len` tokens, which were given back.
    pub(super) fn cut(&mut self, row: u32, len: u32) {
        let keep = self.kept(row, len);
        let state = self.state_mut(row);
        state.num_blocks = keep;
        state.released = state.released.min(keep);
        state.uploaded = state.uploaded.min(keep);
    }

    /// Gives back the blocks of a row that left the window, the last one first as everywhere. Returns whether they are the
    /// first that its sequence loses: from then on it shares no beginning, however many more it loses.
    pub(super) fn release_outside(&mut self, row: u32, len: u32, store: &mut Store) -> bool {
        let Some(window) = self.window else {
            return false;
        };
        let released = self.state(row).released;
        // Usually there is none.
        if !window.leaves(len, self.tokens_of(released + 1)) {
            return false;
        }
        let outside = window.given_back(len, self.layout.block_size());
        let state = &mut self.states[row as usize];
        let columns = state.released as usize..outside as usize;
        let first = std::mem::replace(&mut state.released, outside) == 0;
        for entry in self.tables.row_mut(row)[columns].iter_mut().rev() {
            store.give_back(std::mem::replace(entry, RELEASED));
        }
        first
    }
}
