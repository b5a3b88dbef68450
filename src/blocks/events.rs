//! What happens to cached blocks, for routers that send a text where its beginning is cached.

use serde::Serialize;

use crate::blocks::{BlockId, PrefixKey};

/// A change of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum BlockEvent {
    /// A full block can now be found.
    Stored {
        /// The block.
        block: BlockId,
        /// The group of layers to which it belongs.
        group: u32,
        /// Its key; in groups behind the first, that of the first group's block in which it ends.
        key: PrefixKey,
        /// The key of the block before it; `None` for the first of a text.
        parent: Option<PrefixKey>,
    },
    /// A block was reused or truncated away; it was the only one with this key in its group, a duplicate, or one of several that
    /// end in one block of the first group.
    Removed {
        /// The block.
        block: BlockId,
        /// The group of layers to which it belonged.
        group: u32,
        /// The key it had.
        key: PrefixKey,
    },
    /// The cache was reset: nothing can be found any more.
    Cleared,
}

/// Events in their order, if they are kept.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    events: Option<Vec<BlockEvent>>,
}

impl EventLog {
    pub(crate) fn new(wanted: bool) -> Self {
        Self { events: wanted.then(Vec::new) }
    }

    pub(crate) fn push(&mut self, event: impl FnOnce() -> BlockEvent) {
        if let Some(events) = &mut self.events {
            events.push(event());
        }
    }

    pub(crate) fn take(&mut self) -> Vec<BlockEvent> {
        self.events.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
