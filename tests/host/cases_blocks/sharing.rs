//! Blocks with several owners, and blocks that are freed.

use crate::block_id;
use wgpu_paged_attention::blocks::{BlockId, BlockPool, CacheManager, Domain, ManagerOptions};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::{ManagerError, PoolError, ReserveError};
use wgpu_paged_attention::plan::{BlockCopy, Schedule, StepPlan};

use crate::cases_blocks::engine::Engine;

#[test]
fn p01_the_last_block_of_a_fork_is_copied_once_when_its_branches_part() {
    let mut it = Engine::plain(8);
    let a = it.sequence(20);
    assert_eq!(it.used(), 2);
    let b = it.cache.fork(a).unwrap();
    assert_eq!((it.used(), it.table(b)), (2, vec![0, 1]));
    it.cache.reserve(&[(b, 1)], &mut it.plan).unwrap();
    assert_eq!(it.plan.copies(), [BlockCopy { source: block_id(1), target: block_id(2) }]);
    assert_eq!(it.plan.slots(), [2 * 16 + 4]);
    it.commit();
    assert_eq!(it.used(), 3);
    // The last owner writes in place.
    it.cache.reserve(&[(a, 1)], &mut it.plan).unwrap();
    assert_eq!((it.plan.copies(), it.plan.slots()), (&[][..], &[16 + 4][..]));
    it.commit();
    assert_eq!((it.used(), it.table(a), it.table(b)), (3, vec![0, 1], vec![0, 2]));
    it.cache.release(a).unwrap();
    assert_eq!((it.used(), it.table(b), it.cache.stats().copies), (2, vec![0, 2], 1));
}

#[test]
fn branches_that_part_in_one_step_need_one_copy_less_than_there_are() {
    let mut it = Engine::plain(8);
    let a = it.sequence(20);
    let (b, c) = (it.cache.fork(a).unwrap(), it.cache.fork(a).unwrap());
    let all = [(b, 1), (a, 1), (c, 1)];
    assert!(it.cache.can_reserve(&all, 0));
    it.cache.reserve(&all, &mut it.plan).unwrap();
    assert_eq!(
        it.plan.copies(),
        [
            BlockCopy { source: block_id(1), target: block_id(2) },
            BlockCopy { source: block_id(1), target: block_id(3) }
        ]
    );
    it.cache.rollback(&mut it.plan).unwrap();
    it.cache.check_invariants().unwrap();
    assert_eq!((it.table(a), it.table(b), it.free()), (vec![0, 1], vec![0, 1], vec![2, 3, 4, 5, 6, 7]));
    // Two blocks are just enough.
    it.sequence(4 * 16);
    assert!(it.cache.can_reserve(&all, 0));
    let d = it.sequence(1);
    assert!(!it.cache.can_reserve(&all, 0));
    let error = it.cache.reserve(&all, &mut it.plan).unwrap_err();
    assert_eq!(error, ReserveError::OutOfBlocks { needed: 2, free: 1, total: 8 });
    assert_eq!(error.missing_blocks(), Some(1));
    it.cache.check_invariants().unwrap();
    it.cache.release(d).unwrap();
    it.cache.reserve(&all, &mut it.plan).unwrap();
    it.commit();
    assert_eq!((it.table(b), it.table(a), it.table(c)), (vec![0, 7], vec![0, 6], vec![0, 1]));
}

#[test]
fn p06_a_block_is_freed_once() {
    let mut pool = BlockPool::new(4).unwrap();
    let blocks: Vec<BlockId> = (0..4).map(|_| pool.allocate().unwrap()).collect();
    let b = blocks[1];
    assert_eq!([b, b].map(|block| pool.free(block)), [Ok(true), Err(PoolError::NotAllocated { block: b })]);
    assert_eq!(pool.num_free(), 1);
    blocks.iter().filter(|&&block| block != b).for_each(|&block| assert!(pool.free(block).unwrap()));
    assert_eq!(pool.free(b), Err(PoolError::NotAllocated { block: b }));
    assert_eq!(pool.num_free(), 4);
    let mut again: Vec<BlockId> = (0..4).map(|_| pool.allocate().unwrap()).collect();
    again.sort_unstable();
    assert_eq!(again, blocks);
}

#[test]
fn p11_a_cut_into_a_shared_or_cached_block_spoils_nobody_elses() {
    let mut it = Engine::caching(8);
    let text: Vec<u32> = (0..32).collect();
    let (a, _) = it.text(&text, &Domain::default());
    let b = it.cache.fork(a).unwrap();
    it.cache.truncate(b, 20).unwrap();
    it.cache.reserve_tokens(&[(b, &[99])], &mut it.plan).unwrap();
    assert_eq!(
        (it.plan.copies(), it.plan.slots()),
        (&[BlockCopy { source: block_id(1), target: block_id(2) }][..], &[2 * 16 + 4][..])
    );
    it.commit();
    assert_eq!((it.used(), it.table(a), it.table(b)), (3, vec![0, 1], vec![0, 2]));

    // The same where only the prefix cache would miss the block, in which it was found.
    it.cache.release(b).unwrap();
    it.cache.release(a).unwrap();
    let (a, cached) = it.cache.create_sequence_with_tokens(&[&text[..], &[99]].concat(), &Domain::default()).unwrap();
    assert_eq!(cached, 32);
    it.cache.truncate(a, 20).unwrap();
    it.cache.reserve_tokens(&[(a, &[99])], &mut it.plan).unwrap();
    assert_eq!(it.plan.copies().iter().map(|copy| copy.source).collect::<Vec<_>>(), [1]);
    it.commit();
    let longer: Vec<u32> = (0..33).collect();
    assert_eq!(it.cached(&longer), 32);
}

#[test]
fn truncation_is_refused_where_it_makes_no_sense() {
    let mut it = Engine::plain(8);
    let seq = it.sequence(20);
    assert_eq!(it.cache.truncate(seq, 21), Err(ManagerError::TruncateBeyond { seq, len: 21, seq_len: 20 }));
    it.cache.reserve(&[(seq, 1)], &mut it.plan).unwrap();
    assert_eq!(it.cache.truncate(seq, 3), Err(ManagerError::SequenceInStep { seq }));
    assert_eq!(it.cache.fork(seq), Err(ManagerError::SequenceInStep { seq }));
    assert_eq!(it.cache.export_sequence(seq), Err(ManagerError::SequenceInStep { seq }));
    it.commit();
    it.cache.truncate(seq, 16).unwrap();
    assert_eq!((it.table(seq), it.free()), (vec![0], vec![2, 3, 4, 5, 6, 7, 1]));
    it.cache.truncate(seq, 0).unwrap();
    it.cache.release(seq).unwrap();
    assert_eq!(it.cache.truncate(seq, 0), Err(ManagerError::StaleSequence { seq }));
    assert_eq!(it.cache.fork(seq), Err(ManagerError::StaleSequence { seq }));
}

#[test]
fn c10_the_queue_follows_what_is_touched() {
    let mut pool = BlockPool::new(3).unwrap();
    let [a, b, c] = [(); 3].map(|()| pool.allocate().unwrap());
    [a, b, c].iter().for_each(|&block| assert!(pool.free(block).unwrap()));
    for block in [a, b] {
        assert_eq!(pool.touch([block].into_iter()), Ok(1));
        assert_eq!(pool.touch([block].into_iter()), Ok(0));
        assert_eq!((pool.free(block), pool.free(block)), (Ok(false), Ok(true)));
    }
    assert_eq!([(); 3].map(|()| pool.allocate().unwrap()), [c, a, b]);
    assert_eq!(pool.allocate(), Err(PoolError::OutOfBlocks { needed: 1, free: 0, total: 3 }));
    pool.check_invariants().unwrap();
}

#[test]
fn r07_nothing_takes_nothing() {
    let mut it = Engine::caching(8);
    for len in [0, 16, 17] {
        let seq = it.sequence(len);
        let before = (it.free(), it.table(seq));
        it.cache.reserve_tokens(&[(seq, &[])], &mut it.plan).unwrap();
        assert_eq!((it.plan.num_rows(), it.plan.copies().len()), (0, 0));
        it.commit();
        assert_eq!((it.free(), it.table(seq)), before);
    }
    let (seq, cached) = it.cache.create_sequence_with_tokens(&[], &Domain::default()).unwrap();
    assert_eq!((cached, it.cache.seq_len(seq)), (0, Ok(0)));
}

#[test]
fn a_contiguous_cache_forks_and_clears_but_does_not_cache() {
    let layout = CacheConfig::new(1, 1, 8)
        .with_num_blocks(20)
        .with_paged(false)
        .with_max_seq_len(100)
        .with_window(1)
        .layout()
        .unwrap();
    let caching = CacheManager::with_options(&layout, &ManagerOptions::default().with_prefix_cache(true));
    assert_eq!(caching.unwrap_err(), ManagerError::NotPaged);
    let options = ManagerOptions::default().with_clear_freed(true);
    let mut cache = CacheManager::with_options(&layout, &options).unwrap();
    let mut plan = StepPlan::new(Schedule::default());
    let a = cache.create_sequence().unwrap();
    cache.reserve(&[(a, 100)], &mut plan).unwrap();
    assert_eq!(plan.clears(), [0]);
    cache.commit(&mut plan).unwrap();
    cache.truncate(a, 5).unwrap();
    let b = cache.fork(a).unwrap();
    cache.reserve(&[(a, 1), (b, 1)], &mut plan).unwrap();
    assert_eq!(
        (plan.copies(), plan.clears()),
        (&[BlockCopy { source: block_id(0), target: block_id(1) }][..], &[][..])
    );
    cache.commit(&mut plan).unwrap();
    cache.check_invariants().unwrap();

    // Without tokens there is nothing to copy, and what earlier owners left is cleared for both.
    cache.release(b).unwrap();
    cache.truncate(a, 0).unwrap();
    let b = cache.fork(a).unwrap();
    cache.reserve(&[(a, 1), (b, 1)], &mut plan).unwrap();
    assert_eq!((plan.copies(), plan.clears()), (&[][..], &[1, 2].map(block_id)[..]));
    cache.commit(&mut plan).unwrap();
    let c = cache.create_sequence().unwrap();
    let error = PoolError::OutOfBlocks { needed: 1, free: 0, total: 3 };
    assert_eq!(cache.fork(c), Err(error.into()));
    cache.check_invariants().unwrap();
}
