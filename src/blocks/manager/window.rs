//! Blocks that no query will see again return to the pool while their sequence lives.

/// The window of the layers that share a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Keys that a query sees, its own included.
    pub(super) keys: u32,
    /// Tokens by which a sequence may be cut after blocks left the window.
    pub(super) slack: u32,
}

impl Window {
    /// Leading blocks that no query from position `len` on sees.
    pub(super) fn outside(&self, len: u32, block_size: u32) -> u32 {
        (u64::from(len) + 1).saturating_sub(self.keys.into()) as u32 / block_size
    }

    /// Leading blocks that a sequence of `len` tokens does without, though it may still be cut by the slack.
    pub(super) fn given_back(&self, len: u32, block_size: u32) -> u32 {
        self.outside(len.saturating_sub(self.slack), block_size)
    }

    /// Whether a sequence of `len` tokens does without its first `tokens`, alike.
    pub(super) fn leaves(&self, len: u32, tokens: u32) -> bool {
        u64::from(len.saturating_sub(self.slack)) + 1 >= u64::from(self.keys) + u64::from(tokens)
    }

    /// The shortest length at which `blocks` leading blocks are outside.
    pub(super) fn shortest(&self, blocks: u32, block_size: u32) -> u32 {
        // The length at which they were released is an upper bound.
        (u64::from(blocks) * u64::from(block_size) + u64::from(self.keys) - 1) as u32
    }
}
