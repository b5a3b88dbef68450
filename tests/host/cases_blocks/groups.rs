//! Layers of unlike kinds in one pool: every group has its own tables, and all live and die with their sequence.

use wgpu_paged_attention::blocks::{BlockId, CacheManager, Domain, ManagerOptions, RELEASED, SeqId, SequenceRecord};
use wgpu_paged_attention::config::{CacheConfig, LayerKind};
use wgpu_paged_attention::error::{ManagerError, ReserveError, TableError};
use wgpu_paged_attention::plan::{Append, RawTables, Schedule, StepPlan, Tables};

use crate::cases_blocks::engine::Engine;

/// Layers that see everything, and layers that see 16 tokens; blocks of 16 in both.
const ALIKE: [LayerKind; 2] = [LayerKind::new(1, 8), LayerKind::new(1, 8)];
/// The same with blocks of 32 tokens for the former.
const UNLIKE: [LayerKind; 2] = [LayerKind::new(1, 8), LayerKind::new(2, 8)];

const GONE: u32 = RELEASED.get();

fn engine(kinds: [LayerKind; 2], num_blocks: u32, options: &ManagerOptions) -> Engine {
    let [full, narrow] = kinds;
    let config = CacheConfig::of_layers(&[full, narrow.with_window(16)]).with_num_blocks(num_blocks);
    let layout = config.with_max_seq_len(320).with_max_sequences(8).layout().unwrap();
    assert_eq!(layout.num_groups(), 2);
    Engine { cache: CacheManager::with_options(&layout, options).unwrap(), plan: StepPlan::new(Schedule::default()) }
}

fn caching() -> ManagerOptions {
    ManagerOptions::default().with_prefix_cache(true).with_events(true)
}

fn tables(it: &Engine, seq: SeqId) -> [Vec<u32>; 2] {
    [0, 1].map(|group| it.cache.group_block_table(seq, group).unwrap().iter().map(|block| block.get()).collect())
}

fn text(len: u32) -> Vec<u32> {
    (100..100 + len).collect()
}

#[test]
fn a_windowed_group_gives_blocks_back_and_a_full_one_keeps_them() {
    let mut it = engine(ALIKE, 12, &ManagerOptions::default());
    let seq = it.sequence(80);
    assert_eq!(tables(&it, seq), [vec![0, 1, 2, 3, 4], vec![GONE, GONE, GONE, GONE, 9]]);
    assert_eq!((it.used(), it.cache.stats().filled_tokens), (6, 96));
    let error = it.cache.truncate(seq, 70).unwrap_err();
    assert_eq!(error, ManagerError::Released { seq, len: 70, shortest: 79 });
    let fork = it.cache.fork(seq).unwrap();
    it.grow(fork, 1);
    assert_eq!(tables(&it, fork), [vec![0, 1, 2, 3, 4, 10], vec![GONE, GONE, GONE, GONE, 9, 11]]);
    it.cache.release(seq).unwrap();
    it.cache.truncate(fork, 0).unwrap();
    assert_eq!(it.cache.num_free_blocks(), 12);
    it.cache.check_invariants().unwrap();
}

#[test]
fn blocks_of_all_groups_are_counted_before_any_is_taken() {
    let mut it = engine(ALIKE, 7, &ManagerOptions::default());
    let seq = it.cache.create_sequence().unwrap();
    let before = it.free();
    assert!(!it.cache.can_reserve(&[(seq, 64)], 0) && it.cache.can_reserve(&[(seq, 48)], 1));
    let error = it.cache.reserve(&[(seq, 64)], &mut it.plan).unwrap_err();
    assert_eq!(error, ReserveError::OutOfBlocks { needed: 8, free: 7, total: 7 });
    it.cache.reserve(&[(seq, 48)], &mut it.plan).unwrap();
    it.cache.rollback(&mut it.plan).unwrap();
    assert_eq!((it.free(), tables(&it, seq)), (before, [vec![], vec![]]));
    it.cache.check_invariants().unwrap();
}

#[test]
fn a_plan_has_slots_and_updates_of_every_group_and_rows_once() {
    let mut it = engine(UNLIKE, 20, &ManagerOptions::default());
    let seq = it.cache.create_sequence().unwrap();
    it.cache.reserve(&[(seq, 40)], &mut it.plan).unwrap();
    assert_eq!((it.plan.num_rows(), it.plan.last_rows()), (40, &[39][..]));
    let [full, narrow] = it.plan.groups() else { panic!("two groups") };
    assert_eq!((full.slots(), full.updates().len()), (it.plan.slots(), 2));
    assert_eq!((full.slots()[33], narrow.slots()[33]), (33, 4 * 16 + 1));
    assert_eq!(narrow.updates().iter().map(|update| update.block.get()).collect::<Vec<_>>(), [2, 3, 4]);
    it.commit();

    // Tables that an engine keeps itself give the same slots.
    let layout = it.cache.layout().clone();
    let blocks =
        tables(&it, seq).map(|table| table.iter().map(|&block| if block == GONE { 0 } else { block }).collect());
    let [full, narrow]: [Vec<u32>; 2] = blocks;
    it.cache.reserve(&[(seq, 1)], &mut it.plan).unwrap();
    let raw = |table: &'static [u32]| {
        RawTables::new(Tables::Dense { block_table: table, max_blocks: table.len() as u32, seq_lens: &[41] })
    };
    let raw = [raw(full.leak()), raw(narrow.leak())];
    let mut plan = StepPlan::new(Schedule::default());
    plan.plan_group_tables(&layout, &raw).unwrap();
    for (own, theirs) in it.plan.groups().iter().zip(plan.groups()) {
        assert_eq!(own.slots(), theirs.slots());
    }
    let error = plan.plan_tables(&layout, &raw[0]).unwrap_err();
    assert_eq!(error, TableError::Groups { given: 1, expected: 2 });
    let other = RawTables::new(Tables::Dense { block_table: &[0, 0, 0], max_blocks: 3, seq_lens: &[42] });
    let error = plan.plan_group_tables(&layout, &[raw[0], other]).unwrap_err();
    assert_eq!(error, TableError::UnlikeGroups { group: 1, what: "the length", row: 0, given: 42, expected: 41 });
    assert_eq!((plan.num_rows(), plan.groups().len()), (0, 1));
}

#[test]
fn a_block_that_two_groups_name_is_refused() {
    let layout = engine(ALIKE, 20, &ManagerOptions::default()).cache.layout().clone();
    let mut plan = StepPlan::new(Schedule::default());
    let of = |table: &'static [u32], append| RawTables {
        append,
        ..RawTables::new(Tables::Dense { block_table: table, max_blocks: 3, seq_lens: &[41] })
    };
    let append = Append::Slots(&[35]);
    let shared = |block, group, other| Err(TableError::SharedBlock { block, group, other });
    let mut plan_of = |first, second| plan.plan_group_tables(&layout, &[first, second]);
    // One table for both, a block that the other group still sees, and one that left its window.
    assert_eq!(plan_of(of(&[0, 1, 2], append), of(&[0, 1, 2], append)), shared(2, 1, 0));
    assert_eq!(plan_of(of(&[0, 1, 2], append), of(&[3, 2, 5], Append::Slots(&[82]))), shared(2, 0, 1));
    assert_eq!(plan_of(of(&[0, 1, 2], append), of(&[2, 4, 5], Append::Slots(&[82]))), Ok(()));
    // What is only read may be shared, for nothing is lost by it.
    let none = Append::Slots(&[-1]);
    assert_eq!(plan_of(of(&[0, 1, 2], none), of(&[0, 1, 2], none)), Ok(()));
    let unlike = TableError::UnlikeGroups { group: 1, what: "the padding", row: 0, given: 1, expected: 0 };
    assert_eq!(plan_of(of(&[0, 1, 2], append), of(&[3, 4, 5], none)), Err(unlike));
}

#[test]
fn the_start_of_a_text_is_given_back_last_in_all_groups() {
    let kind = LayerKind::new(1, 8);
    let config = CacheConfig::of_layers(&[kind, kind.with_window(300)]).with_num_blocks(9);
    let layout = config.with_max_seq_len(320).layout().unwrap();
    let mut it = Engine { cache: CacheManager::new(&layout).unwrap(), plan: StepPlan::new(Schedule::default()) };
    let seq = it.sequence(40);
    assert_eq!(tables(&it, seq), [vec![0, 1, 2], vec![3, 4, 5]]);
    it.cache.truncate(seq, 20).unwrap();
    it.cache.release(seq).unwrap();
    let free: Vec<u32> = it.cache.free_blocks().map(BlockId::get).collect();
    assert_eq!(free, [6, 7, 8, 5, 2, 4, 1, 3, 0]);
}

#[test]
fn a_hit_needs_all_of_a_full_group_and_the_last_window_of_another() {
    let mut it = engine(ALIKE, 20, &caching());
    let text = text(65);
    let (seq, _) = it.text(&text, &Domain::default());
    it.cache.release(seq).unwrap();
    assert_eq!([65, 64, 49, 17, 16].map(|len| it.cached(&text[..len])), [64, 48, 48, 16, 0]);
    // The blocks that left the window first are taken first: 10 that nobody had, columns 2, 1 and 0 of the windowed group, and
    // the last of the other.
    let other = it.sequence(112);
    assert_eq!([65, 64, 49, 17].map(|len| it.cached(&text[..len])), [64, 0, 0, 0]);
    let (again, cached) = it.cache.create_sequence_with_tokens(&text, &Domain::default()).unwrap();
    assert_eq!((cached, tables(&it, again)), (64, [vec![0, 1, 2, 3], vec![GONE, GONE, GONE, 8]]));
    it.cache.check_invariants().unwrap();
    it.cache.reserve_tokens(&[(again, &text[64..])], &mut it.plan).unwrap();
    assert_eq!(it.plan.groups()[1].updates().len(), 2);
    it.commit();
    // A block of the full group is gone: nothing behind it is found.
    it.cache.release(again).unwrap();
    it.cache.release(other).unwrap();
    it.sequence(144);
    assert_eq!(it.cached(&text), 0);
    it.cache.check_invariants().unwrap();
}

#[test]
fn blocks_of_unlike_sizes_are_found_together() {
    for kinds in [UNLIKE, [UNLIKE[1], UNLIKE[0]]] {
        let mut it = engine(kinds, 40, &caching());
        let text = text(100);
        let (seq, _) = it.text(&text, &Domain::default());
        it.cache.release(seq).unwrap();
        // Multiples of 32, the larger block.
        assert_eq!([100, 97, 96, 65, 64, 33, 32].map(|len| it.cached(&text[..len])), [96, 96, 64, 64, 32, 32, 0]);
        let (again, cached) = it.text(&text, &Domain::default());
        assert_eq!(cached, 96);
        assert_eq!(tables(&it, again).map(|table| table.iter().filter(|&&block| block != GONE).count() > 0), [true; 2]);
        // What is cut off is found no more in any group, and comes back with its tokens.
        it.cache.truncate(again, 96).unwrap();
        it.cache.reserve_tokens(&[(again, &text[96..])], &mut it.plan).unwrap();
        it.commit();
        it.cache.release(again).unwrap();
        assert_eq!(it.cached(&text), 96);
    }
}

#[test]
fn rejected_drafts_are_found_in_no_group() {
    let mut it = engine(UNLIKE, 40, &caching().with_window_slack(64));
    let text = text(65);
    let (seq, _) = it.text(&text, &Domain::default());
    assert_eq!(it.cached(&text), 64);
    it.cache.truncate(seq, 40).unwrap();
    it.cache.check_invariants().unwrap();
    assert_eq!(it.cached(&text), 32);
    let branch: Vec<u32> = text[..40].iter().copied().chain(0..30).collect();
    it.cache.reserve_tokens(&[(seq, &branch[40..])], &mut it.plan).unwrap();
    it.commit();
    assert_eq!((it.cached(&text), it.cached(&branch)), (32, 64));
}

/// Two branches part behind a block of the windowed group and inside one of the other.
#[test]
fn a_block_that_two_texts_share_is_found_by_the_first_of_them() {
    let mut it = engine(UNLIKE, 40, &caching().with_window_slack(64));
    let (seq, _) = it.text(&text(52), &Domain::default());
    let fork = it.cache.fork(seq).unwrap();
    for (seq, rest) in [(seq, [7; 20]), (fork, [8; 20])] {
        it.cache.reserve_tokens(&[(seq, &rest)], &mut it.plan).unwrap();
        it.commit();
    }
    let with = |rest| [text(52), vec![rest; 20]].concat();
    assert_eq!([it.cached(&with(7)), it.cached(&with(8))], [64, 32]);
    it.cache.release(seq).unwrap();
    it.cache.check_invariants().unwrap();
}

#[test]
fn ids_that_come_late_are_found_in_every_group() {
    let mut it = engine(ALIKE, 40, &caching().with_window_slack(32));
    let seq = it.sequence(50);
    let tokens = it.cache.take_late_tokens(seq).unwrap();
    it.cache.add_token_ids(tokens, &text(50)).unwrap();
    it.cache.check_invariants().unwrap();
    assert_eq!((it.cached(&text(50)), it.cached(&text(33))), (48, 32));
}

#[test]
fn records_hold_the_blocks_of_every_group() {
    let mut it = engine(ALIKE, 20, &caching());
    let (seq, _) = it.text(&text(65), &Domain::default());
    let fork = it.cache.fork(seq).unwrap();
    let records = [seq, fork].map(|seq| it.cache.export_sequence(seq).unwrap());
    let blocks = |table: &[Option<BlockId>]| table.iter().flatten().map(|block| block.get()).collect::<Vec<_>>();
    assert_eq!(records[0].tables().map(blocks).collect::<Vec<_>>(), [vec![0, 1, 2, 3, 4], vec![8, 9]]);
    it.cache.release(seq).unwrap();
    it.cache.release(fork).unwrap();
    let imported = it.cache.import_sequences(&records).unwrap();
    assert_eq!((imported.blocks.len(), it.used()), (7, 7));
    it.cache.check_invariants().unwrap();
    let [a, b] = imported.sequences[..] else { panic!("two sequences") };
    assert_eq!(tables(&it, a), tables(&it, b));
    assert_eq!(tables(&it, a)[1][..3], [GONE; 3]);

    let mut lacking = records[0].clone();
    lacking.other_groups.clear();
    let record = |what, value, expected| ManagerError::Record { record: 0, what, value, expected };
    assert_eq!(it.cache.import_sequences(&[lacking]), Err(record("the number of groups", 1, 2)));
    // A block of two groups.
    let mut twice = records[0].clone();
    twice.other_groups[0][4] = twice.blocks[4];
    let block = BlockId::new(4).unwrap();
    assert_eq!(it.cache.import_sequences(&[twice]), Err(ManagerError::SharedRecord { record: 0, other: 0, block }));
    // Records that do not speak of groups are read as those of one.
    let mut one = Engine::caching(8);
    let (seq, _) = one.text(&text(20), &Domain::default());
    let record = one.cache.export_sequence(seq).unwrap();
    let written = serde_json::to_string(&record).unwrap();
    let older = written.replace(r#""other_groups":[],"#, "");
    assert_ne!(older, written);
    assert_eq!(serde_json::from_str::<SequenceRecord>(&older).unwrap(), record);
}
