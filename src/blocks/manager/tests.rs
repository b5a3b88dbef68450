use super::*;
use crate::blocks::SeqId;
use crate::config::CacheConfig;
use crate::error::{PoolError, ReserveError};
use crate::layout::SKIP_SLOT;
use crate::plan::{Append, NO_PARTIAL, QueryTile, RawTables, Schedule, StepPlan, TILE_CLASSES, TableUpdate, Tables};

fn layout(num_blocks: u32) -> KvLayout {
    CacheConfig::new(1, 1, 8).with_num_blocks(num_blocks).with_max_seq_len(160).with_max_sequences(4).layout().unwrap()
}

fn new_plan() -> StepPlan {
    StepPlan::new(Schedule { split_tokens: 64, ..Schedule::default() })
}

/// A cache, a plan, and shorthands that expect success.
struct Fixture {
    cache: CacheManager,
    plan: StepPlan,
}

impl Fixture {
    fn new(num_blocks: u32) -> Self {
        Self { cache: CacheManager::new(&layout(num_blocks)).unwrap(), plan: new_plan() }
    }

    fn create(&mut self) -> SeqId {
        self.cache.create_sequence().unwrap()
    }

    fn grow(&mut self, seq: SeqId, tokens: u32) {
        self.reserve(&[(seq, tokens)]).unwrap();
        self.cache.commit(&mut self.plan).unwrap();
    }

    fn reserve(&mut self, requests: &[(SeqId, u32)]) -> Result<(), ReserveError> {
        self.cache.reserve(requests, &mut self.plan)
    }

    fn free(&self) -> Vec<u32> {
        self.cache.free_blocks().map(BlockId::get).collect()
    }

    fn table(&self, seq: SeqId) -> Vec<u32> {
        self.cache.block_table(seq).unwrap().iter().map(|block| block.get()).collect()
    }
}

#[test]
fn a_failed_step_leaks_nothing_in_a_thousand_rounds() {
    let mut it = Fixture::new(4);
    for _ in 0..1000 {
        let a = it.create();
        it.grow(a, 20);
        let b = it.create();
        let before = (it.free(), it.table(a));
        let error = it.reserve(&[(b, 48)]).unwrap_err();
        assert_eq!(error, ReserveError::OutOfBlocks { needed: 3, free: 2, total: 4 });
        assert_eq!((it.free(), it.table(a)), before);
        assert_eq!(it.cache.seq_len(b), Ok(0));
        assert!(it.table(b).is_empty());
        it.grow(a, 13);
        assert_eq!(it.table(a)[..2], before.1[..]);
        assert_eq!(it.cache.num_free_blocks(), 1);
        it.cache.release(a).unwrap();
        it.grow(b, 32);
        it.cache.release(b).unwrap();
        assert_eq!(it.cache.num_free_blocks(), 4);
    }
    let all = it.create();
    it.grow(all, 64);
    assert_eq!(it.cache.num_free_blocks(), 0);
}

#[test]
fn a_step_is_refused_as_a_whole_when_its_last_request_fails() {
    let mut it = Fixture::new(4);
    let (a, b) = (it.create(), it.create());
    it.grow(a, 16);
    let before = it.free();
    let error = it.reserve(&[(a, 17), (b, 32)]).unwrap_err();
    assert_eq!(error, ReserveError::OutOfBlocks { needed: 4, free: 3, total: 4 });
    assert_eq!(it.free(), before);
    assert_eq!((it.plan.num_rows(), it.plan.slots().len(), it.plan.updates().len()), (0, 0, 0));
    assert!(!it.cache.can_reserve(&[(a, 17), (b, 32)], 0));
    assert!(it.cache.can_reserve(&[(a, 16), (b, 32)], 0));
}

#[test]
fn block_boundaries_take_exactly_the_blocks_they_need() {
    let mut it = Fixture::new(10);
    let seq = it.create();
    for len in 1..=33_u32 {
        it.reserve(&[(seq, 1)]).unwrap();
        // At 16 and 32 the last block is full; the next one is not there yet.
        assert_eq!(it.table(seq).len() as u32, len.div_ceil(16));
        assert_eq!(it.plan.positions(), [len as i32 - 1]);
        let tile = QueryTile {
            num_members: 1,
            key_end: len,
            split_tokens: 64,
            first_partial: NO_PARTIAL,
            ..QueryTile::default()
        };
        assert_eq!((it.plan.tiles(0), it.plan.members()), (&[tile][..], &[0][..]));
        let last = it.table(seq)[(len as usize - 1) / 16];
        assert_eq!(it.plan.slots(), [last * 16 + (len - 1) % 16]);
        it.cache.commit(&mut it.plan).unwrap();
    }
}

#[test]
fn no_tokens_take_no_block_at_any_length() {
    let mut it = Fixture::new(10);
    for len in [0, 16, 17] {
        let seq = it.create();
        it.grow(seq, len);
        let before = it.free();
        it.reserve(&[(seq, 0)]).unwrap();
        assert_eq!(it.free(), before);
        assert_eq!((it.plan.num_rows(), it.plan.num_tokens(), it.plan.members()), (0, 0, &[][..]));
        it.cache.commit(&mut it.plan).unwrap();
        assert_eq!(it.cache.seq_len(seq), Ok(len));
        it.cache.release(seq).unwrap();
    }
    it.reserve(&[]).unwrap();
    it.cache.commit(&mut it.plan).unwrap();
}

#[test]
fn a_stale_handle_is_refused_everywhere_and_its_successor_is_untouched() {
    let mut it = Fixture::new(4);
    let old = it.create();
    it.grow(old, 5);
    it.cache.release(old).unwrap();
    let new = it.create();
    it.grow(new, 7);
    assert_eq!(new.index(), old.index());

    let stale = ManagerError::StaleSequence { seq: old };
    assert_eq!(it.cache.release(old), Err(stale));
    assert_eq!(it.cache.seq_len(old), Err(stale));
    assert_eq!(it.cache.block_table(old), Err(stale));
    assert_eq!(it.reserve(&[(new, 1), (old, 1)]), Err(ReserveError::StaleSequence { request: 1, seq: old }));
    assert!(!it.cache.contains(old) && !it.cache.can_reserve(&[(old, 0)], 0));
    assert_eq!(
        stale.to_string(),
        "sequence 0.0 is stale: it was released, or belongs to another manager; create a new sequence"
    );
    assert_eq!((it.cache.seq_len(new), it.table(new).len()), (Ok(7), 1));

    let nowhere = SeqId::new(4, 0, it.cache.id);
    assert_eq!(it.cache.release(nowhere), Err(ManagerError::StaleSequence { seq: nowhere }));

    // The same numbers in another manager.
    let mut other = Fixture::new(4);
    let theirs = other.create();
    assert_eq!((theirs.index(), theirs.generation()), (0, 0));
    let ours = Fixture::new(4).create();
    assert_eq!(other.reserve(&[(ours, 1)]), Err(ReserveError::StaleSequence { request: 0, seq: ours }));
    assert_eq!(other.cache.release(ours), Err(ManagerError::StaleSequence { seq: ours }));
    assert!(other.cache.contains(theirs) && !other.cache.contains(ours));
}

#[test]
fn a_row_whose_generations_are_used_up_is_retired() {
    let mut it = Fixture::new(4);
    it.cache.sequences[0].generation = u32::MAX;
    let last = it.create();
    assert_eq!((last.index(), last.generation()), (0, u32::MAX));
    it.cache.release(last).unwrap();
    assert!(!it.cache.contains(last));
    for _ in 0..3 {
        assert_ne!(it.create().index(), 0);
    }
    assert_eq!(it.cache.create_sequence(), Err(ManagerError::TooManySequences { limit: 4 }));
    assert_eq!(it.cache.num_sequences(), 3);
}

#[test]
fn the_tail_of_a_released_sequence_is_reused_before_its_head() {
    let mut it = Fixture::new(4);
    let seq = it.create();
    it.grow(seq, 48);
    assert_eq!(it.table(seq), [0, 1, 2]);
    it.cache.release(seq).unwrap();
    assert_eq!(it.free(), [3, 2, 1, 0]);
}

#[test]
fn rolling_back_restores_counts_and_order() {
    let mut it = Fixture::new(10);
    let (a, b) = (it.create(), it.create());
    it.grow(a, 30);
    it.grow(b, 10);
    it.cache.release(a).unwrap();
    let a = it.create();
    it.grow(a, 5);
    let before = (it.free(), it.table(a), it.table(b));
    for _ in 0..3 {
        it.reserve(&[(b, 40), (a, 60)]).unwrap();
        assert_eq!(it.cache.num_free_blocks(), 1);
        assert_eq!(it.cache.seq_len(b), Ok(10));
        assert!(it.cache.is_step_open());
        it.cache.rollback(&mut it.plan).unwrap();
        assert_eq!((it.free(), it.table(a), it.table(b)), before);
        assert_eq!(it.plan.num_rows(), 0);
    }
    it.reserve(&[(b, 40), (a, 60)]).unwrap();
    assert!(it.cache.abandon());
    assert!(!it.cache.abandon());
    assert_eq!((it.free(), it.table(a), it.table(b)), before);
}

#[test]
fn one_step_is_open_at_a_time_and_only_its_plan_closes_it() {
    let mut it = Fixture::new(10);
    let (a, b) = (it.create(), it.create());
    assert_eq!(it.cache.commit(&mut it.plan), Err(ManagerError::NoOpenStep));
    assert_eq!(it.cache.rollback(&mut it.plan), Err(ManagerError::NoOpenStep));

    // A step of another manager, and an earlier step of this one, with the same numbers in it.
    let mut other = Fixture::new(10);
    let theirs = other.create();
    other.reserve(&[(theirs, 3)]).unwrap();
    it.reserve(&[(a, 3)]).unwrap();
    let mut earlier = it.plan.clone();
    it.cache.rollback(&mut it.plan).unwrap();
    it.reserve(&[(a, 3)]).unwrap();
    let rows = it.plan.num_rows();
    for plan in [&mut other.plan, &mut earlier, &mut new_plan()] {
        assert_eq!(it.cache.commit(plan), Err(ManagerError::WrongPlan));
        assert_eq!(it.cache.rollback(plan), Err(ManagerError::WrongPlan));
    }

    assert_eq!(it.reserve(&[(b, 1)]), Err(ReserveError::StepOpen));
    assert_eq!(it.plan.num_rows(), rows);
    assert_eq!(it.cache.reserve(&[(b, 1)], &mut earlier), Err(ReserveError::StepOpen));
    assert_eq!(earlier.num_rows(), 0);
    assert!(!it.cache.can_reserve(&[(b, 1)], 0));

    it.cache.commit(&mut it.plan).unwrap();
    assert_eq!(it.cache.commit(&mut it.plan), Err(ManagerError::NoOpenStep));
    assert_eq!(it.cache.seq_len(a), Ok(3));
}

#[test]
fn sequences_of_an_open_step_cannot_be_released_and_others_can() {
    let mut it = Fixture::new(10);
    let (a, b, idle) = (it.create(), it.create(), it.create());
    it.grow(b, 16);
    it.reserve(&[(a, 3), (idle, 0)]).unwrap();
    for seq in [a, idle] {
        assert_eq!(it.cache.release(seq), Err(ManagerError::SequenceInStep { seq }));
    }
    it.cache.release(b).unwrap();
    it.cache.rollback(&mut it.plan).unwrap();
    // The released block stays at the end; the step's block returns to the front.
    assert_eq!(it.free(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]);
    it.cache.release(a).unwrap();
}

#[test]
fn a_failed_step_does_not_hold_on_to_its_sequences() {
    let mut it = Fixture::new(2);
    let (a, b) = (it.create(), it.create());
    assert_eq!(it.reserve(&[(a, 3), (a, 1)]), Err(ReserveError::DuplicateSequence { request: 1, seq: a }));
    assert_eq!(it.reserve(&[(a, 0), (a, 0)]), Err(ReserveError::DuplicateSequence { request: 1, seq: a }));
    it.reserve(&[(b, 1)]).unwrap();
    it.cache.release(a).unwrap();
    it.cache.commit(&mut it.plan).unwrap();
}

#[test]
fn sequences_end_at_their_limit() {
    let mut it = Fixture::new(100);
    let seq = it.create();
    for new_tokens in [161, u32::MAX] {
        assert_eq!(
            it.reserve(&[(seq, new_tokens)]),
            Err(ReserveError::TooLong { request: 0, len: 0, new_tokens, max_seq_len: 160 })
        );
    }
    it.grow(seq, 160);
    assert_eq!(it.table(seq).len(), 10);
    let error = it.reserve(&[(seq, 1)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "request 0: 160 tokens and 1 new ones exceed max_seq_len 160; stop the sequence or raise the limit"
    );
}

#[test]
fn the_device_hears_of_new_columns_once_and_of_all_columns_in_a_reused_row() {
    let mut it = Fixture::new(20);
    let updates = |it: &Fixture| -> Vec<(u32, u32)> {
        it.plan.updates().iter().map(|update| (update.index, update.block.get())).collect()
    };
    let (a, c) = (it.create(), it.create());
    it.reserve(&[(a, 20)]).unwrap();
    assert_eq!(updates(&it), [(0, 0), (1, 1)]);
    // The device may or may not have seen a step that is rolled back, so it is told again.
    it.cache.rollback(&mut it.plan).unwrap();
    it.reserve(&[(a, 20)]).unwrap();
    assert_eq!(updates(&it), [(0, 0), (1, 1)]);
    it.cache.commit(&mut it.plan).unwrap();
    it.reserve(&[(a, 12), (c, 1)]).unwrap();
    assert_eq!(updates(&it), [(10, 2)]);
    it.cache.commit(&mut it.plan).unwrap();
    it.grow(a, 50);

    // Row 0 goes from A (6 blocks) to B (2 blocks) while C takes over A's blocks.
    it.cache.release(a).unwrap();
    it.grow(c, 150);
    let b = it.create();
    assert_eq!(b.index(), a.index());
    it.reserve(&[(b, 17)]).unwrap();
    let table = it.table(b);
    assert_eq!(updates(&it), [(0, table[0]), (1, table[1])]);
    assert!(it.plan.slots().iter().all(|slot| table.contains(&(slot / 16))));
    assert!(it.table(c).iter().all(|block| !table.contains(block)));
}

#[test]
fn a_contiguous_sequence_owns_its_region_from_the_start() {
    let layout =
        CacheConfig::new(1, 1, 8).with_num_blocks(20).with_paged(false).with_max_seq_len(160).layout().unwrap();
    let mut cache = CacheManager::new(&layout).unwrap();
    let mut plan = new_plan();
    let (a, b) = (cache.create_sequence().unwrap(), cache.create_sequence().unwrap());
    assert_eq!(
        (cache.block_table(a), cache.block_table(b)),
        (Ok(&[BlockId::of_pool(0)][..]), Ok(&[BlockId::of_pool(1)][..]))
    );
    assert_eq!(
        cache.create_sequence(),
        Err(ManagerError::Pool(PoolError::OutOfBlocks { needed: 1, free: 0, total: 2 }))
    );
    assert_eq!(cache.num_sequences(), 2);

    cache.reserve(&[(b, 3)], &mut plan).unwrap();
    assert_eq!(plan.slots(), [160, 161, 162]);
    assert_eq!(plan.updates(), [TableUpdate { index: 1, block: BlockId::of_pool(1) }]);
    cache.rollback(&mut plan).unwrap();
    assert_eq!(cache.block_table(b), Ok(&[BlockId::of_pool(1)][..]));
    cache.reserve(&[(b, 160)], &mut plan).unwrap();
    cache.commit(&mut plan).unwrap();
    cache.release(b).unwrap();
    assert_eq!(cache.num_free_blocks(), 1);
}

#[test]
fn the_manager_and_the_raw_door_describe_the_same_step() {
    let mut it = Fixture::new(30);
    let seqs = [it.create(), it.create(), it.create()];
    // Blocks out of order: grow in turns.
    for len in [10, 30, 7, 40] {
        for seq in seqs {
            it.grow(seq, len - u32::from(seq == seqs[1]));
        }
    }
    it.reserve(&[(seqs[2], 1), (seqs[0], 20), (seqs[1], 3)]).unwrap();
    let order = [seqs[2], seqs[0], seqs[1]];
    let lens = [88, 107, 86];
    let mut block_table = vec![u32::MAX; 30];
    for (row, seq) in order.into_iter().enumerate() {
        let table = it.table(seq);
        block_table[row * 10..row * 10 + table.len()].copy_from_slice(&table);
    }
    let mut raw = new_plan();
    raw.plan_tables(
        it.cache.layout(),
        &RawTables {
            tables: Tables::Dense { block_table: &block_table, max_blocks: 10, seq_lens: &lens },
            cu_seqlens_q: Some(&[0, 1, 21, 24]),
            append: Append::FromTables,
        },
    )
    .unwrap();
    assert_eq!(raw.slots(), it.plan.slots());
    assert!(!raw.slots().contains(&SKIP_SLOT));
    assert_eq!(raw.positions(), it.plan.positions());
    assert_eq!((raw.members(), raw.merges()), (it.plan.members(), it.plan.merges()));
    fn tiles(plan: &StepPlan) -> impl Iterator<Item = &QueryTile> {
        (0..TILE_CLASSES).flat_map(|class| plan.tiles(class))
    }
    let elsewhere = |tile: &QueryTile| QueryTile { table_base: 0, ..*tile };
    assert!(tiles(&raw).map(elsewhere).eq(tiles(&it.plan).map(elsewhere)));
    // One query in the first class, three in the third, twenty in two tiles of the last.
    assert!(tiles(&it.plan).map(|tile| tile.table_base).eq([20, 10, 0, 0]));
}
