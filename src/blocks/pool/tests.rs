use super::*;

fn id(block: u32) -> BlockId {
    BlockId::new(block).unwrap()
}

fn free_ids(pool: &BlockPool) -> Vec<u32> {
    pool.free_blocks().map(BlockId::get).collect()
}

fn drain(pool: &mut BlockPool) -> Vec<u32> {
    std::iter::from_fn(|| pool.allocate().ok()).map(BlockId::get).collect()
}

#[test]
fn blocks_go_out_in_the_order_in_which_they_were_freed() {
    let mut pool = BlockPool::new(5).unwrap();
    assert_eq!(drain(&mut pool), [0, 1, 2, 3, 4]);
    for block in [3, 0, 4] {
        assert_eq!(pool.free(id(block)), Ok(true));
    }
    assert_eq!(free_ids(&pool), [3, 0, 4]);
    assert_eq!(pool.allocate().unwrap(), id(3));
    pool.free(id(1)).unwrap();
    assert_eq!(drain(&mut pool), [0, 4, 1]);
}

#[test]
fn an_exhausted_pool_says_so_and_stays_as_it_is() {
    let mut pool = BlockPool::new(3).unwrap();
    pool.allocate().unwrap();
    let mut out = [BlockId::of_pool(77); 3];
    let error = pool.allocate_into(&mut out).unwrap_err();
    assert_eq!(error, PoolError::OutOfBlocks { needed: 3, free: 2, total: 3 });
    assert_eq!(
        error.to_string(),
        "out of KV blocks: 3 needed, 2 of 3 free; release a sequence or enlarge the pool, up to its max_num_blocks"
    );
    assert_eq!((out, free_ids(&pool)), ([BlockId::of_pool(77); 3], vec![1, 2]));
    pool.allocate_into(&mut out[..2]).unwrap();
    assert_eq!(out, [1, 2, 77]);
    assert_eq!(pool.allocate(), Err(PoolError::OutOfBlocks { needed: 1, free: 0, total: 3 }));
    pool.allocate_into(&mut []).unwrap();
}

#[test]
fn freeing_twice_or_outside_changes_nothing() {
    let mut pool = BlockPool::new(4).unwrap();
    let block = pool.allocate().unwrap();
    pool.free(block).unwrap();
    let before = free_ids(&pool);
    assert_eq!(pool.free(block), Err(PoolError::NotAllocated { block }));
    assert_eq!(pool.free(id(3)), Err(PoolError::NotAllocated { block: id(3) }));
    assert_eq!(pool.retain(block), Err(PoolError::NotAllocated { block }));
    // Number 4 is the node that closes the ring.
    for outside in [id(4), BlockId::MAX] {
        let error = PoolError::OutOfRange { block: outside, num_blocks: 4 };
        assert_eq!(pool.free(outside), Err(error));
        assert_eq!(pool.retain(outside), Err(error));
        assert_eq!(pool.touch([id(0), outside].into_iter()), Err(error));
        assert_eq!(pool.ref_count(outside), Err(error));
    }
    assert_eq!(free_ids(&pool), before);
    assert_eq!(pool.num_free(), 4);
}

#[test]
fn a_shared_block_is_free_when_its_last_owner_is_gone() {
    let mut pool = BlockPool::new(2).unwrap();
    let block = pool.allocate().unwrap();
    pool.retain(block).unwrap();
    assert_eq!(pool.ref_count(block), Ok(2));
    assert_eq!(pool.free(block), Ok(false));
    assert_eq!(pool.num_free(), 1);
    assert_eq!(pool.free(block), Ok(true));
    assert_eq!((pool.ref_count(block), pool.num_free()), (Ok(0), 2));
}

#[test]
fn owners_are_not_counted_past_the_end() {
    let mut pool = BlockPool::new(1).unwrap();
    let block = pool.allocate().unwrap();
    pool.nodes[0].refs = u32::MAX;
    assert_eq!(pool.retain(block), Err(PoolError::TooManyOwners { block, limit: u32::MAX }));
    assert_eq!(pool.ref_count(block), Ok(u32::MAX));
}

#[test]
fn touched_blocks_leave_the_queue_or_get_one_more_owner() {
    let mut pool = BlockPool::new(5).unwrap();
    assert_eq!(pool.touch([2].map(id).into_iter()), Ok(1));
    assert_eq!(free_ids(&pool), [0, 1, 3, 4]);
    // Neighbours, one in use already, and one that is named twice.
    assert_eq!(pool.touch([3, 2, 4, 3].map(id).into_iter()), Ok(2));
    assert_eq!(free_ids(&pool), [0, 1]);
    assert_eq!([2, 3, 4].map(|block| pool.ref_count(id(block)).unwrap()), [2, 2, 1]);
    assert_eq!(pool.num_shared(), 2);
    pool.check_invariants().unwrap();
    pool.free(id(4)).unwrap();
    assert_eq!(drain(&mut pool), [0, 1, 4]);
    assert_eq!(pool.touch(std::iter::empty()), Ok(0));
    pool.nodes[2].refs = u32::MAX - 1;
    assert_eq!(pool.touch([0, 2].map(id).into_iter()), Err(PoolError::TooManyOwners { block: id(2), limit: u32::MAX }));
    assert_eq!(pool.ref_count(id(0)), Ok(1));
}

#[test]
fn undone_allocations_restore_the_order() {
    let mut pool = BlockPool::new(6).unwrap();
    let mut out = [BlockId::default(); 4];
    pool.allocate_into(&mut out).unwrap();
    for block in out.into_iter().rev() {
        pool.unallocate(id(block.get()));
    }
    assert_eq!(free_ids(&pool), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn stale_hints_do_not_disturb_the_queue() {
    // Small pools and long runs of frees make hints point at blocks in use, at themselves and at the ring's end.
    for num_blocks in [1, 2, 15, 16, 17, 40] {
        let mut pool = BlockPool::new(num_blocks).unwrap();
        let mut want: std::collections::VecDeque<u32> = (0..num_blocks).collect();
        for round in 0..200 {
            for _ in 0..round % (num_blocks + 1) {
                let block = pool.allocate().unwrap();
                assert_eq!(want.pop_front(), Some(block.get()));
                pool.free(block).unwrap();
                want.push_back(block.get());
            }
            let middle = want.remove((round as usize * 7) % want.len()).unwrap();
            pool.touch([id(middle)].into_iter()).unwrap();
            pool.free(id(middle)).unwrap();
            want.push_back(middle);
        }
        assert!(want.iter().copied().eq(free_ids(&pool)));
    }
}

#[test]
fn pools_of_no_and_of_too_many_blocks_are_handled() {
    let mut empty = BlockPool::new(0).unwrap();
    assert_eq!(empty.allocate(), Err(PoolError::OutOfBlocks { needed: 1, free: 0, total: 0 }));
    assert_eq!(empty.free_blocks().count(), 0);
    let error = BlockPool::new(u32::MAX).unwrap_err();
    assert_eq!(error, PoolError::TooManyBlocks { num_blocks: u32::MAX, limit: 1 << 31 });
}

#[test]
fn broken_lists_and_counts_are_found() {
    use crate::error::InvariantError;
    let after = |corrupt: fn(&mut BlockPool)| {
        let mut pool = BlockPool::new(6).unwrap();
        for _ in 0..3 {
            pool.allocate().unwrap();
        }
        pool.retain(id(1)).unwrap();
        assert_eq!(pool.check_invariants(), Ok(()));
        corrupt(&mut pool);
        pool.check_invariants().unwrap_err()
    };
    let list = |block, what| InvariantError::FreeList { block, what };
    assert_eq!(after(|pool| pool.nodes[4].prev = 5), list(BlockId::of_pool(4), "its neighbours do not agree"));
    assert_eq!(after(|pool| pool.nodes[3].next = 77), list(BlockId::of_pool(77), "its neighbours do not agree"));
    assert_eq!(after(|pool| pool.nodes[4].refs = 1), list(BlockId::of_pool(4), "it has owners"));
    assert_eq!(after(|pool| pool.nodes[0].prev = 2), list(BlockId::of_pool(0), "more owners leave it than it has"));
    let counter = |name, stored, counted| InvariantError::Counter { name, stored, counted };
    assert_eq!(after(|pool| pool.num_free += 1), counter("free blocks", 4, 3));
    assert_eq!(after(|pool| pool.num_shared = 0), counter("shared blocks", 0, 1));
    // Free without being in the list.
    assert_eq!(after(|pool| pool.nodes[0].refs = 0), counter("blocks without owners", 3, 4));
    // Two rings.
    let cut_off = after(|pool| {
        (pool.nodes[3].next, pool.nodes[5].prev) = (6, 5);
        pool.nodes[6].prev = 3;
    });
    assert_eq!(cut_off, counter("free blocks", 3, 1));
}
