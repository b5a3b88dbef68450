use super::*;
use crate::blocks::{Domain, ManagerOptions, SeqId};
use crate::config::{CacheConfig, LayerKind};
use crate::plan::{Schedule, StepPlan};

/// A manager with two texts that share their first block, a fork, something cached, and an open step with a copy.
fn busy() -> (CacheManager, StepPlan, SeqId) {
    let layout =
        CacheConfig::new(1, 1, 8).with_num_blocks(16).with_max_seq_len(160).with_max_sequences(8).layout().unwrap();
    let options = ManagerOptions::default().with_prefix_cache(true).with_clear_freed(true);
    let mut cache = CacheManager::with_options(&layout, &options).unwrap();
    let mut plan = StepPlan::new(Schedule::default());
    let text: Vec<u32> = (0..40).collect();
    let mut create = |tokens: &[u32]| {
        let (seq, cached) = cache.create_sequence_with_tokens(tokens, &Domain::default()).unwrap();
        cache.reserve_tokens(&[(seq, &tokens[cached as usize..])], &mut plan).unwrap();
        cache.commit(&mut plan).unwrap();
        seq
    };
    let seqs = [create(&text), create(&text[..20]), create(&[7; 33])];
    cache.release(seqs[2]).unwrap();
    let fork = cache.fork(seqs[0]).unwrap();
    cache.reserve(&[(fork, 20)], &mut plan).unwrap();
    (cache, plan, fork)
}

fn after(corrupt: impl FnOnce(&mut CacheManager, usize)) -> Result<(), InvariantError> {
    let (mut cache, _, fork) = busy();
    corrupt(&mut cache, fork.index() as usize);
    cache.check_invariants()
}

#[test]
fn an_untouched_manager_passes() {
    assert_eq!(after(|_, _| {}), Ok(()));
    let (mut cache, mut plan, _) = busy();
    cache.commit(&mut plan).unwrap();
    assert_eq!(cache.check_invariants(), Ok(()));
}

#[test]
fn a_lost_or_doubled_owner_is_found() {
    let found = after(|cache, _| cache.store.retain_all(&[BlockId::of_pool(0)]));
    assert_eq!(found, Err(InvariantError::Owners { block: BlockId::of_pool(0), stored: 4, counted: 3 }));
    let found = after(|cache, _| cache.store.give_back(BlockId::of_pool(0)));
    assert_eq!(found, Err(InvariantError::Owners { block: BlockId::of_pool(0), stored: 2, counted: 3 }));
    // The copy's source, of which the fork is about to let go.
    let found = after(|cache, _| cache.store.stay(BlockId::of_pool(2)));
    assert_eq!(found, Err(InvariantError::Owners { block: BlockId::of_pool(2), stored: 0, counted: 1 }));
}

#[test]
fn a_wrong_table_is_found() {
    let found = after(|cache, row| cache.groups[0].tables.row_mut(row as u32)[1] = BlockId::of_pool(15));
    assert_eq!(found, Err(InvariantError::Owners { block: BlockId::of_pool(1), stored: 2, counted: 1 }));
    let found = after(|cache, row| cache.groups[0].tables.row_mut(row as u32)[1] = BlockId::of_pool(16));
    assert!(matches!(found, Err(InvariantError::FreeList { block, .. }) if block == 16));
    let found = after(|cache, row| cache.groups[0].tables.row_mut(row as u32)[1] = RELEASED);
    assert!(matches!(found, Err(InvariantError::Sequence { what: "the number of released entries", .. })));
}

#[test]
fn wrong_counts_are_found() {
    let name = |found| match found {
        Err(InvariantError::Counter { name, .. } | InvariantError::Sequence { what: name, .. }) => name,
        other => panic!("{other:?}"),
    };
    assert_eq!(name(after(|cache, row| cache.sequences[row].len = 20)), "the number of its blocks");
    assert_eq!(name(after(|cache, row| cache.sequences[row].len = 161)), "its length");
    assert_eq!(name(after(|cache, row| cache.groups[0].states[row].num_blocks -= 1)), "the number of its blocks");
    assert_eq!(name(after(|cache, row| cache.groups[0].states[row].released = 1)), "the number of released blocks");
    assert_eq!(name(after(|cache, row| cache.groups[0].states[row].uploaded = 9)), "the number of uploaded entries");
    assert_eq!(name(after(|cache, row| cache.sequences[row].known = 41)), "the number of known tokens");
    assert_eq!(name(after(|cache, row| cache.sequences[row].registered = 3)), "the number of cached blocks");
    assert_eq!(name(after(|cache, row| cache.domains[row] = None)), "its domain");
    assert_eq!(name(after(|cache, _| cache.num_sequences += 1)), "living sequences");
    assert_eq!(name(after(|cache, _| *cache.store.parts().1 += 1)), "cached blocks");
    assert_eq!(name(after(|cache, _| cache.store.parts().2.push(BlockId::of_pool(1)))), "registered blocks");
}

#[test]
fn a_broken_prefix_index_is_found() {
    let what = |found| match found {
        Err(InvariantError::Prefix { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let prefix = |cache: &mut CacheManager| cache.store.parts().0.take().unwrap();
    let with = |change: fn(&mut PrefixIndex)| {
        after(|cache, _| {
            let mut index = prefix(cache);
            change(&mut index);
            *cache.store.parts().0 = Some(index);
        })
    };
    // The last bits of a key do not decide about its bucket.
    assert_eq!(what(with(|index| index.corrupt_key(BlockId::of_pool(0)))), "its key is not that of its tokens");
    assert_eq!(what(with(|index| index.tokens_mut(BlockId::of_pool(1))[3] = 99)), "its key is not that of its tokens");
    assert_eq!(what(with(|index| index.forget(BlockId::of_pool(1)))), "it is in a chain, but not registered");
    let unlinked = with(|index| {
        index.unlink(BlockId::of_pool(1));
        index.forget(BlockId::of_pool(1));
    });
    assert_eq!(what(unlinked), "its sequence takes it for registered");
}

/// The same with a group of layers that see 16 tokens beside those that see everything.
fn after_in_groups(corrupt: impl FnOnce(&mut CacheManager, usize)) -> Result<(), InvariantError> {
    let kind = LayerKind::new(1, 8);
    let config = CacheConfig::of_layers(&[kind, kind.with_window(16)]).with_num_blocks(16);
    let layout = config.with_max_seq_len(160).with_max_sequences(8).layout().unwrap();
    let mut cache = CacheManager::with_options(&layout, &ManagerOptions::default().with_prefix_cache(true)).unwrap();
    let mut plan = StepPlan::new(Schedule::default());
    let (seq, text) = (cache.create_sequence().unwrap(), (0..50).collect::<Vec<u32>>());
    cache.reserve_tokens(&[(seq, &text)], &mut plan).unwrap();
    cache.commit(&mut plan).unwrap();
    assert_eq!(cache.check_invariants(), Ok(()));
    corrupt(&mut cache, seq.index() as usize);
    cache.check_invariants()
}

#[test]
fn what_is_wrong_in_one_group_of_several_is_found() {
    // Full: blocks 0 to 3; windowed: 4 to 7, of which 4 and 5 left the window.
    let found = after_in_groups(|cache, row| {
        let block = cache.groups[0].tables.row(row as u32)[0];
        cache.groups[1].tables.row_mut(row as u32)[2] = block;
        cache.store.retain_all(&[block]);
        cache.store.give_back(BlockId::of_pool(6));
    });
    assert_eq!(found, Err(InvariantError::Groups { block: BlockId::of_pool(0), first: 0, second: 1 }));
    let found = after_in_groups(|cache, _| cache.store.give_back(BlockId::of_pool(7)));
    assert_eq!(found, Err(InvariantError::Owners { block: BlockId::of_pool(7), stored: 0, counted: 1 }));
    let name = |found| match found {
        Err(InvariantError::Sequence { what, .. } | InvariantError::Prefix { what, .. }) => what,
        other => panic!("{other:?}"),
    };
    let found = after_in_groups(|cache, row| cache.groups[1].states[row].num_blocks -= 1);
    assert_eq!(name(found), "the number of its blocks");
    let found = after_in_groups(|cache, row| cache.groups[1].states[row].released = 1);
    assert_eq!(name(found), "the number of released entries");
    // A block that is found by the tokens of another column.
    let found = after_in_groups(|cache, _| {
        let prefix = cache.store.parts().0.as_mut().unwrap();
        let (block, other) = (BlockId::of_pool(6), BlockId::of_pool(0));
        let seat = prefix.seat(block).unwrap();
        prefix.unlink(block);
        prefix.forget(block);
        prefix.attach(block, other, seat);
    });
    assert_eq!(name(found), "it is attached to something else than its sequence holds");
}
