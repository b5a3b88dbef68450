//! Whether the free list is one: every block without owners once, linked both ways, and counted.

use super::BlockPool;
use crate::blocks::BlockId;
use crate::error::InvariantError;

impl BlockPool {
    /// Looks at every block.
    pub fn check_invariants(&self) -> Result<(), InvariantError> {
        let ring = self.num_blocks();
        let (mut before, mut seen) = (ring, 0_u32);
        let broken = |block, what| Err(InvariantError::FreeList { block: BlockId::of_pool(block), what });
        loop {
            let at = self.nodes[before as usize].next;
            if at > ring || self.nodes[at as usize].prev != before {
                return broken(at, "its neighbours do not agree");
            }
            if at == ring {
                break;
            }
            if self.nodes[at as usize].refs > 0 {
                return broken(at, "it has owners");
            }
            seen += 1;
            if seen > ring {
                return broken(at, "the list has no end");
            }
            before = at;
        }
        let nodes = &self.nodes[..ring as usize];
        let count = |wanted: fn(u32) -> bool| nodes.iter().filter(|node| wanted(node.refs)).count() as u64;
        for (name, stored, counted) in [
            ("free blocks", self.num_free, seen.into()),
            ("blocks without owners", self.num_free, count(|refs| refs == 0)),
            ("shared blocks", self.num_shared, count(|refs| refs > 1)),
        ] {
            if u64::from(stored) != counted {
                return Err(InvariantError::Counter { name, stored: stored.into(), counted });
            }
        }
        match nodes.iter().position(|node| node.refs > 0 && node.prev > node.refs) {
            None => Ok(()),
            Some(block) => broken(block as u32, "more owners leave it than it has"),
        }
    }
}
