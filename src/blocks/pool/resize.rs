//! Pools that grow, and that shrink where their last blocks are free.

use super::{BlockPool, LOOKAHEAD, Node};
use crate::blocks::BlockId;
use crate::error::PoolError;

impl BlockPool {
    /// The fewest blocks that the pool can have now: one more than the highest id in use. Looks at the blocks behind it.
    pub fn min_num_blocks(&self) -> u32 {
        let blocks = &self.nodes[..self.num_blocks() as usize];
        blocks.iter().rposition(|node| node.refs > 0).map_or(0, |last| last as u32 + 1).max(1)
    }

    /// Makes the pool larger, or smaller by its last blocks, in time that is proportional to its size and without memory.
    ///
    /// New blocks go out before all that were used, so that what these hold survives as long as possible.
    ///
    /// # Errors
    /// [`PoolError::PoolSize`] beyond the maximum, and [`PoolError::TailInUse`] if a block that would go has owners.
    pub fn resize(&mut self, num_blocks: u32) -> Result<(), PoolError> {
        if num_blocks == 0 || num_blocks > self.max_num_blocks {
            return Err(PoolError::PoolSize { num_blocks, limit: self.max_num_blocks });
        }
        let least = self.min_num_blocks();
        if num_blocks < least {
            return Err(PoolError::TailInUse { num_blocks, block: BlockId::of_pool(least - 1), least });
        }
        if num_blocks > self.num_blocks() {
            self.grow(num_blocks);
        } else {
            self.shrink(num_blocks);
        }
        Ok(())
    }

    /// Puts the new blocks between the end of the ring and its head. The end moves behind them.
    fn grow(&mut self, num_blocks: u32) {
        let old_end = self.num_blocks();
        let Node { prev: tail, next: head, .. } = self.nodes[old_end as usize];
        let (first, last) = (old_end, num_blocks - 1);
        let (head, tail) = if head == old_end { (num_blocks, last) } else { (head, tail) };
        self.nodes.truncate(old_end as usize);
        self.nodes.extend((first..=num_blocks).map(|id| Node {
            refs: 0,
            prev: if id == first { num_blocks } else { id - 1 },
            next: if id == last { head } else { id + 1 },
            ahead: (id + LOOKAHEAD as u32).min(num_blocks),
        }));
        let end = &mut self.nodes[num_blocks as usize];
        (end.prev, end.next) = (tail, first);
        self.nodes[head as usize].prev = last;
        self.nodes[tail as usize].next = num_blocks;
        self.num_free += num_blocks - old_end;
    }

    /// Takes the last blocks, which are free, out of the list. The end of the ring moves before them.
    fn shrink(&mut self, num_blocks: u32) {
        let old_end = self.num_blocks();
        for id in num_blocks..old_end {
            let Node { prev, next, .. } = self.nodes[id as usize];
            self.nodes[prev as usize].next = next;
            self.nodes[next as usize].prev = prev;
        }
        let end = self.nodes[old_end as usize];
        self.nodes[end.prev as usize].next = num_blocks;
        self.nodes[end.next as usize].prev = num_blocks;
        // Only the end itself is left in the list.
        let ring = |at: u32| if at == old_end { num_blocks } else { at };
        self.nodes[num_blocks as usize] = Node { prev: ring(end.prev), next: ring(end.next), ..end };
        self.nodes.truncate(num_blocks as usize + 1);
        self.num_free -= old_end - num_blocks;
        // Hints to what is not there any more.
        self.nodes.iter_mut().for_each(|node| node.ahead = node.ahead.min(num_blocks));
        self.recent.iter_mut().for_each(|block| *block = (*block).min(num_blocks));
    }
}
