//! Blocks that leave the window.

use wgpu_paged_attention::blocks::{ManagerOptions, RELEASED};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::ManagerError;
use wgpu_paged_attention::plan::{Schedule, StepPlan};
use wgpu_paged_attention::testkit::changed;

use crate::cases_blocks::engine::Engine;

#[test]
fn p05_a_fork_behind_a_window_gives_every_block_back_once() {
    for order in [[0, 1, 2], [2, 1, 0]] {
        let mut it = Engine::windowed(8, 32, &ManagerOptions::default());
        let a = it.sequence(80);
        // The next query, at position 80, sees keys from 49 on.
        assert_eq!(it.table(a), [RELEASED.get(), RELEASED.get(), RELEASED.get(), 3, 4]);
        assert_eq!(it.used(), 2);
        let seqs = [a, it.cache.fork(a).unwrap(), it.cache.fork(a).unwrap()];
        for seq in seqs {
            it.grow(seq, 20);
        }
        for seq in order.map(|at: usize| seqs[at]) {
            it.cache.release(seq).unwrap();
            assert_eq!(it.cache.release(seq), Err(ManagerError::StaleSequence { seq }));
        }
        assert_eq!(it.cache.num_free_blocks(), 8);
        it.cache.check_invariants().unwrap();
    }
}

#[test]
fn a_window_of_no_key_is_refused() {
    let error = CacheConfig::new(1, 1, 8).with_num_blocks(1).with_window(0).layout().unwrap_err();
    assert_eq!(error.to_string(), "window is 0, outside 1..=4294967295; choose a value in that range");
}

#[test]
fn a_window_keeps_exactly_what_the_next_query_sees() {
    let mut it = Engine::windowed(8, 17, &ManagerOptions::default());
    let seq = it.sequence(31);
    // Position 31 sees keys 15 to 31, position 32 does not see the first block.
    assert_eq!(it.table(seq), [0, 1]);
    it.grow(seq, 1);
    assert_eq!(it.table(seq), [RELEASED.get(), 1]);
    let error = it.cache.truncate(seq, 31).unwrap_err();
    assert_eq!(error, ManagerError::Released { seq, len: 31, shortest: 32 });
    it.cache.truncate(seq, 0).unwrap();
    assert_eq!((it.table(seq), it.used()), (vec![], 0));

    let mut it = Engine::windowed(8, 17, &ManagerOptions::default().with_window_slack(4));
    let seq = it.sequence(35);
    assert_eq!(it.table(seq), [0, 1, 2]);
    it.cache.truncate(seq, 31).unwrap();
    it.grow(seq, 5);
    assert_eq!(it.table(seq), [RELEASED.get(), 1, 3]);
    it.cache.truncate(seq, 32).unwrap();
    it.cache.check_invariants().unwrap();
}

#[test]
fn released_blocks_are_not_taken_for_shared_ones() {
    let mut it = Engine::windowed(40, 16, &ManagerOptions::default());
    it.plan = StepPlan::new(changed(&Schedule::default(), |it| it.split_tokens = 32));
    let a = it.sequence(160);
    let b = it.cache.fork(a).unwrap();
    it.cache.reserve(&[(a, 1), (b, 1)], &mut it.plan).unwrap();
    assert_eq!((0..5).map(|class| it.plan.tiles(class).len()).collect::<Vec<_>>(), [2, 0, 0, 0, 0]);
    it.commit();
    // Without a window they are.
    let mut it = Engine::plain(40);
    it.plan = StepPlan::new(changed(&Schedule::default(), |it| it.split_tokens = 32));
    let a = it.sequence(160);
    let b = it.cache.fork(a).unwrap();
    it.cache.reserve(&[(a, 1), (b, 1)], &mut it.plan).unwrap();
    assert_eq!(it.plan.tiles(1).len(), 1);
}
