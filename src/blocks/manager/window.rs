//! Blocks that no query will see again return to the pool while their sequence lives.

use crate::blocks::manager::ManagerOptions;
use crate::blocks::{CacheManager, RELEASED};
use crate::error::ManagerError;

/// The widest window of all groups of layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Keys that a query sees, its own included.
    keys: u32,
    slack: u32,
}

impl Window {
    /// `None` if the layers of some group see everything.
    pub(super) fn widest(options: &ManagerOptions) -> Result<Option<Self>, ManagerError> {
        if let Some(group) = options.windows.iter().position(|&window| window == Some(0)) {
            return Err(ManagerError::ZeroWindow { group });
        }
        let all: Option<Vec<u32>> = options.windows.iter().copied().collect();
        let widest = all.and_then(|windows| windows.into_iter().max());
        Ok(widest.map(|keys| Self { keys, slack: options.window_slack }))
    }

    /// Leading blocks that no query from position `len` on sees.
    pub(super) fn outside(&self, len: u32, block_size: u32) -> u32 {
        (u64::from(len) + 1).saturating_sub(self.keys.into()) as u32 / block_size
    }

    /// The shortest length at which `blocks` leading blocks are outside.
    pub(super) fn shortest(&self, blocks: u32, block_size: u32) -> u32 {
        // The length at which they were released is an upper bound.
        (u64::from(blocks) * u64::from(block_size) + u64::from(self.keys) - 1) as u32
    }
}

impl CacheManager {
    /// Gives back the blocks of a row that left the windows, the last one first as everywhere.
    pub(super) fn release_outside(&mut self, row: u32) {
        let Some(window) = self.window else {
            return;
        };
        let state = &mut self.sequences[row as usize];
        let outside = window.outside(state.len.saturating_sub(window.slack), self.layout.block_size());
        // Usually there is none.
        if outside <= state.released {
            return;
        }
        let columns = state.released as usize..outside as usize;
        let first = std::mem::replace(&mut state.released, outside) == 0;
        for entry in self.tables.row_mut(row)[columns].iter_mut().rev() {
            self.store.give_back(std::mem::replace(entry, RELEASED));
        }
        // A sequence that has lost a block shares none from then on, however many more it loses.
        if first {
            self.change_table(row);
        }
    }
}
