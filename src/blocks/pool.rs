//! The free list and the reference counts.

use std::hint::black_box;

use crate::blocks::BlockId;
use crate::error::PoolError;
use crate::setters::options;

/// How far ahead of the head of the queue a block's node is fetched into the cache.
const LOOKAHEAD: usize = 16;

/// One block: a member of the free list, or in use; a free block has neighbours, one in use has owners about to leave.
///
/// 16 bytes, so that no node straddles two cache lines and an operation touches one line that is not in the cache yet.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
struct Node {
    /// Owners; a block is in the free list iff it has none.
    refs: u32,
    /// The free block before this one; of a block in use, the owners that leave it when the open step is committed.
    prev: u32,
    /// The free block behind this one; of no meaning for a block in use.
    next: u32,
    /// The block that was [`LOOKAHEAD`] places behind this one when it was freed: a hint, which may be out of date.
    ahead: u32,
}

/// Hands out blocks and counts their owners.
///
/// Free blocks form a queue: the one freed longest ago goes out first, so what a freed block holds survives as long
/// as possible. Every operation takes constant time, and none allocates memory.
///
/// A block of another pool is a [`PoolError::OutOfRange`], one more owner than can be counted a
/// [`PoolError::TooManyOwners`], and a free block where one in use is expected a [`PoolError::NotAllocated`].
#[derive(Debug)]
pub struct BlockPool {
    /// One node per block and a last one that closes the free list to a ring: its `next` is the head and its `prev`
    /// the tail, which saves every operation the question whether the list is empty.
    nodes: Vec<Node>,
    max_num_blocks: u32,
    num_free: u32,
    /// Blocks with two owners or more.
    num_shared: u32,
    /// The latest blocks that went to the end of the queue, in a ring; they still wait for their `ahead`.
    recent: [u32; LOOKAHEAD],
    /// The oldest of them.
    oldest: usize,
}

impl BlockPool {
    /// A pool whose blocks are all free; they go out in the order of their ids.
    ///
    /// # Errors
    /// [`PoolError::TooManyBlocks`] if ids would go beyond [`BlockId::MAX`], [`PoolError::HostMemory`] if the
    /// bookkeeping does not fit into memory.
    pub fn new(num_blocks: u32) -> Result<Self, PoolError> {
        Self::growing(num_blocks, num_blocks)
    }

    /// As [`new`](Self::new), with bookkeeping for a pool that may [grow](Self::resize) to `max_num_blocks`.
    pub fn growing(num_blocks: u32, max_num_blocks: u32) -> Result<Self, PoolError> {
        let (most, limit) = (max_num_blocks.max(num_blocks), BlockId::MAX.get() + 1);
        if most > limit {
            return Err(PoolError::TooManyBlocks { num_blocks: most, limit });
        }
        let len = most as usize + 1;
        let mut nodes = Vec::new();
        nodes
            .try_reserve_exact(len)
            .map_err(|_| PoolError::HostMemory { bytes: len as u64 * size_of::<Node>() as u64 })?;
        // Ids are at most 2^31, so the sums do not overflow.
        nodes.extend((0..=num_blocks).map(|id| Node {
            refs: 0,
            prev: id.checked_sub(1).unwrap_or(num_blocks),
            next: if id == num_blocks { 0 } else { id + 1 },
            ahead: (id + LOOKAHEAD as u32).min(num_blocks),
        }));
        let recent = std::array::from_fn(|place| {
            let from_end = (LOOKAHEAD - place) as u32;
            num_blocks.checked_sub(from_end).unwrap_or(num_blocks)
        });
        Ok(Self { nodes, max_num_blocks: most, num_free: num_blocks, num_shared: 0, recent, oldest: 0 })
    }

    /// Blocks in the pool.
    pub fn num_blocks(&self) -> u32 {
        (self.nodes.len() - 1) as u32
    }

    options! {
        /// Blocks that the pool may have.
        max_num_blocks: u32;
        /// Blocks that [`allocate`](Self::allocate) can still hand out.
        num_free: u32;
        /// Blocks with two owners or more.
        num_shared: u32;
    }

    /// Owners of a block; 0 if it is free.
    pub fn ref_count(&self, block: BlockId) -> Result<u32, PoolError> {
        Ok(self.node(block)?.refs)
    }

    /// Hands out the block that has been free the longest, with one owner.
    #[inline]
    pub fn allocate(&mut self) -> Result<BlockId, PoolError> {
        if self.num_free == 0 {
            return Err(self.out_of_blocks(1));
        }
        Ok(self.pop_front())
    }

    /// Fills `out` with newly allocated blocks, or allocates none at all.
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`] if fewer are free than `out` has places.
    pub fn allocate_into(&mut self, out: &mut [BlockId]) -> Result<(), PoolError> {
        if out.len() as u64 > u64::from(self.num_free) {
            return Err(self.out_of_blocks(out.len() as u64));
        }
        for place in out {
            *place = self.pop_front();
        }
        Ok(())
    }

    /// Adds an owner to each of the blocks, or to none: those in use are retained, free ones taken out of the queue.
    /// Returns how many were free.
    pub fn touch(&mut self, blocks: impl ExactSizeIterator<Item = BlockId> + Clone) -> Result<u32, PoolError> {
        // In a large pool neither a block nor its neighbours are in the cache. Looking at all of them first lets the
        // waits for memory overlap; the second pass finds everything at hand.
        for block in blocks.clone() {
            let node = self.node(block)?;
            if u64::from(node.refs) + blocks.len() as u64 > u32::MAX.into() {
                return Err(PoolError::TooManyOwners { block, limit: u32::MAX });
            }
            if node.refs == 0 {
                black_box(self.nodes[node.prev as usize].refs | self.nodes[node.next as usize].refs);
            }
        }
        let free = self.num_free;
        for block in blocks {
            let node = self.nodes[block.index()];
            if node.refs == 0 {
                self.unlink(block.get(), node);
            } else {
                self.nodes[block.index()].refs += 1;
                self.num_shared += u32::from(node.refs == 1);
            }
        }
        Ok(free - self.num_free)
    }

    /// Adds an owner.
    pub fn retain(&mut self, block: BlockId) -> Result<(), PoolError> {
        let refs = self.refs_in_use(block)?;
        let more = refs.checked_add(1).ok_or(PoolError::TooManyOwners { block, limit: u32::MAX })?;
        self.nodes[block.index()].refs = more;
        self.num_shared += u32::from(refs == 1);
        Ok(())
    }

    /// Drops an owner; the last one sends the block to the end of the queue. Returns whether that happened.
    #[inline]
    pub fn free(&mut self, block: BlockId) -> Result<bool, PoolError> {
        let refs = self.refs_in_use(block)?;
        if refs > 1 {
            self.nodes[block.index()].refs = refs - 1;
            self.num_shared -= u32::from(refs == 2);
            return Ok(false);
        }
        let ring = self.num_blocks();
        let tail = self.nodes[ring as usize].prev;
        self.link(block.get(), tail, ring);
        let oldest = std::mem::replace(&mut self.recent[self.oldest], block.get());
        self.nodes[oldest as usize].ahead = block.get();
        self.oldest = (self.oldest + 1) % LOOKAHEAD;
        Ok(true)
    }

    /// Undoes the latest allocation that was not undone yet: the block returns to the head of the queue.
    pub(crate) fn unallocate(&mut self, block: BlockId) {
        assert_eq!(self.nodes[block.index()].refs, 1, "a block of the open step has one owner");
        let ring = self.num_blocks();
        let head = self.nodes[ring as usize].next;
        self.link(block.get(), ring, head);
    }

    /// Adds an owner to each of the blocks, which are in use and have fewer owners than can be counted.
    pub(crate) fn retain_all(&mut self, blocks: &[BlockId]) {
        let mut newly_shared = 0;
        for &block in blocks {
            let refs = &mut self.nodes[block.index()].refs;
            debug_assert!(*refs > 0);
            newly_shared += u32::from(*refs == 1);
            *refs += 1;
        }
        self.num_shared += newly_shared;
    }

    /// Owners of a block in use that stay when the open step is committed.
    pub(crate) fn staying(&self, block: BlockId) -> u32 {
        let node = self.nodes[block.index()];
        debug_assert!(node.refs > 0);
        node.refs - node.prev
    }

    /// Owners that leave a block in use when the open step is committed.
    pub(crate) fn leaving(&self, block: BlockId) -> u32 {
        let node = self.nodes[block.index()];
        if node.refs > 0 { node.prev } else { 0 }
    }

    /// Notes that an owner of a block in use will leave it.
    pub(crate) fn leave(&mut self, block: BlockId) {
        debug_assert!(self.staying(block) > 0);
        self.nodes[block.index()].prev += 1;
    }

    /// Takes back [`leave`](Self::leave).
    pub(crate) fn stay(&mut self, block: BlockId) {
        debug_assert!(self.leaving(block) > 0);
        self.nodes[block.index()].prev -= 1;
    }

    /// The free blocks in the order in which they would go out.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        let ring = self.num_blocks();
        let mut at = ring;
        std::iter::from_fn(move || {
            at = self.nodes[at as usize].next;
            (at != ring).then(|| BlockId::of_pool(at))
        })
    }

    pub(crate) fn out_of_blocks(&self, needed: u64) -> PoolError {
        PoolError::OutOfBlocks { needed, free: self.num_free, total: self.num_blocks() }
    }

    fn node(&self, block: BlockId) -> Result<Node, PoolError> {
        let num_blocks = self.num_blocks();
        if block.get() >= num_blocks {
            return Err(PoolError::OutOfRange { block, num_blocks });
        }
        Ok(self.nodes[block.index()])
    }

    fn refs_in_use(&self, block: BlockId) -> Result<u32, PoolError> {
        let node = self.node(block)?;
        if node.refs == 0 {
            return Err(PoolError::NotAllocated { block });
        }
        Ok(node.refs)
    }

    /// Takes the head of the queue; the caller has seen that there is one.
    #[inline]
    fn pop_front(&mut self) -> BlockId {
        let ring = self.num_blocks();
        let head = self.nodes[ring as usize].next;
        let node = self.nodes[head as usize];
        // In a well-used pool the queue jumps about in memory, and each hop would wait for the one before. Loading the
        // node of a later block now lets many of those waits overlap.
        black_box(self.nodes[node.ahead as usize].refs);
        // As `unlink` does, but the block before the head is known to be the ring's end.
        self.nodes[ring as usize].next = node.next;
        self.nodes[node.next as usize].prev = ring;
        let taken = &mut self.nodes[head as usize];
        (taken.refs, taken.prev) = (1, 0);
        self.num_free -= 1;
        BlockId::of_pool(head)
    }

    /// Takes a free block out of the list and gives it one owner.
    fn unlink(&mut self, id: u32, node: Node) {
        self.nodes[node.prev as usize].next = node.next;
        self.nodes[node.next as usize].prev = node.prev;
        let taken = &mut self.nodes[id as usize];
        (taken.refs, taken.prev) = (1, 0);
        self.num_free -= 1;
    }

    /// Puts a block without owners between two neighbours of the list.
    fn link(&mut self, id: u32, prev: u32, next: u32) {
        let node = &mut self.nodes[id as usize];
        node.refs = 0;
        node.prev = prev;
        node.next = next;
        self.nodes[prev as usize].next = id;
        self.nodes[next as usize].prev = id;
        self.num_free += 1;
    }
}

mod check;
mod resize;
#[cfg(test)]
mod tests;
