//! Which blocks still hold what earlier owners left there.

use crate::blocks::BlockId;

/// What is known of one block.
#[derive(Clone, Copy, Debug)]
struct State {
    /// It may hold data of its last owner that was not cleared.
    stale: bool,
    /// It is in the queue.
    queued: bool,
}

/// A block that was never used: its memory comes from somewhere.
const NEW: State = State { stale: true, queued: false };

/// The blocks that were given back and not cleared yet.
#[derive(Debug)]
pub(super) struct Clears {
    states: Vec<State>,
    /// Every block once at most; some were taken again in the meantime.
    queue: Vec<BlockId>,
}

impl Clears {
    /// All blocks are stale at first. Or the bytes that there was no memory for.
    pub(super) fn new(num_blocks: u32, max_num_blocks: u32) -> Result<Self, u64> {
        let blocks = max_num_blocks as usize;
        let (mut states, mut queue) = (Vec::new(), Vec::new());
        states
            .try_reserve_exact(blocks)
            .and_then(|()| queue.try_reserve_exact(blocks))
            .map_err(|_| (blocks * (size_of::<State>() + size_of::<BlockId>())) as u64)?;
        states.resize(num_blocks as usize, NEW);
        Ok(Self { states, queue })
    }

    /// The pool has another size.
    pub(super) fn resize(&mut self, num_blocks: u32) {
        self.states.resize(num_blocks as usize, NEW);
        self.queue.retain(|block| block.get() < num_blocks);
    }

    /// The block went back to the pool.
    pub(super) fn released(&mut self, block: BlockId) {
        let state = &mut self.states[block.index()];
        state.stale = true;
        if !std::mem::replace(&mut state.queued, true) {
            self.queue.push(block);
        }
    }

    pub(super) fn is_stale(&self, block: BlockId) -> bool {
        self.states[block.index()].stale
    }

    /// Appends the queued blocks that are still `unused`, and takes them to be clear from now on.
    pub(super) fn take(&mut self, out: &mut Vec<BlockId>, unused: impl Fn(BlockId) -> bool) {
        for block in self.queue.drain(..) {
            let state = &mut self.states[block.index()];
            state.queued = false;
            if unused(block) {
                state.stale = false;
                out.push(block);
            }
        }
    }
}
