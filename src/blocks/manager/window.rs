//! Blocks that no query will see again return to the pool while their sequence lives.

use crate::blocks::manager::ManagerOptions;
use crate::error::ManagerError;

/// The widest window of the layers that share a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Keys that a query sees, its own included.
    keys: u32,
    slack: u32,
}

impl Window {
    /// `None` if some layers see everything.
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

    /// Leading blocks that a sequence of `len` tokens does without, though it may still be cut by the slack.
    pub(super) fn given_back(&self, len: u32, block_size: u32) -> u32 {
        self.outside(len.saturating_sub(self.slack), block_size)
    }

    /// The shortest length at which `blocks` leading blocks are outside.
    pub(super) fn shortest(&self, blocks: u32, block_size: u32) -> u32 {
        // The length at which they were released is an upper bound.
        (u64::from(blocks) * u64::from(block_size) + u64::from(self.keys) - 1) as u32
    }
}
