use super::*;

/// (members, items, partials) of the tiles of a class.
fn tiles(plan: &StepPlan, class: usize) -> Vec<(u32, u32, u32)> {
    plan.tiles(class).iter().map(|tile| (tile.num_members, tile.item_start, tile.first_partial)).collect()
}

#[test]
fn a_sequence_gets_the_narrowest_tiles_that_hold_its_queries() {
    for (queries, class, lens) in [
        (1, 0, &[1][..]),
        (2, 1, &[2]),
        (3, 2, &[3]),
        (4, 2, &[4]),
        (5, 3, &[5]),
        (8, 3, &[8]),
        (9, 4, &[9]),
        (16, 4, &[16]),
        (17, 4, &[16, 1]),
        (40, 4, &[16, 16, 8]),
    ] {
        let plan = plan(schedule(64), &[seq(&[], 50, queries)]);
        let want: Vec<_> = (0..).zip(lens).map(|(at, &len)| (len, at, NO_PARTIAL)).collect();
        assert_eq!(tiles(&plan, class), want, "{queries} queries");
        let all: usize = (0..TILE_CLASSES).map(|class| plan.tiles(class).len()).sum();
        assert_eq!(all, lens.len(), "{queries} queries");
        assert!(plan.members().iter().copied().eq(0..queries));
    }
    assert!(plan(schedule(64), &[]).tiles(TILE_CLASSES).is_empty());
}

#[test]
fn tiles_are_as_wide_as_the_schedule_allows_rounded_down_to_a_power_of_two() {
    let narrow = |tile_tokens| Schedule { tile_tokens, ..schedule(64) };
    for tile_tokens in [4, 5, 7] {
        assert_eq!(tiles(&plan(narrow(tile_tokens), &[seq(&[], 50, 5)]), 2), [(4, 0, NO_PARTIAL), (1, 1, NO_PARTIAL)]);
    }
    for tile_tokens in [0, 1] {
        assert_eq!(plan(narrow(tile_tokens), &[seq(&[], 50, 5)]).groups()[0].num_items(0), 5);
    }
    assert_eq!(plan(narrow(u32::MAX), &[seq(&[], 50, 16)]).groups()[0].num_items(4), 1);
}

#[test]
fn splits_of_a_tile_leave_one_record_for_each_member() {
    // 20 keys in splits of 8, for three queries; 5 keys in one; 9 keys in two.
    let plan = plan(schedule(8), &[seq(&[], 20, 3), seq(&[], 5, 3), seq(&[], 9, 4)]);
    assert_eq!(tiles(&plan, 2), [(3, 0, 0), (3, 3, NO_PARTIAL), (4, 4, 9)]);
    assert_eq!(
        (plan.groups()[0].num_items(2), plan.groups()[0].num_partials(), plan.groups()[0].max_splits_per_row()),
        (6, 3 * 3 + 2 * 4, 3)
    );
    let merge = |row, kv_len, own_partial, own_stride| Merge {
        query: row,
        kv_len,
        own_partial,
        own_stride,
        split_tokens: 8,
        ..Merge::default()
    };
    let own: Vec<Merge> = plan.merges().iter().map(|merge| Merge { shared_partial: 0, ..*merge }).collect();
    let first = [merge(0, 20, 0, 3), merge(1, 20, 1, 3), merge(2, 20, 2, 3)];
    let last = [merge(6, 9, 9, 4), merge(7, 9, 10, 4), merge(8, 9, 11, 4), merge(9, 9, 12, 4)];
    assert_eq!(own, [&first[..], &last].concat());
    assert_eq!(plan.groups()[0].max_item_keys(2), 8);
}

#[test]
fn a_sequence_of_several_tiles_is_split_in_each_of_them() {
    let schedule = Schedule { tile_tokens: 4, chunk_queries: u32::MAX, ..schedule(4) };
    let plan = plan(schedule, &[seq(&[], 10, 6)]);
    assert_eq!(tiles(&plan, 2), [(4, 0, 0), (2, 3, 12)]);
    let places: Vec<_> = plan.merges().iter().map(|merge| (merge.query, merge.own_partial, merge.own_stride)).collect();
    assert_eq!(places, [(0, 0, 4), (1, 1, 4), (2, 2, 4), (3, 3, 4), (4, 12, 2), (5, 13, 2)]);
    assert_eq!((plan.groups()[0].num_items(2), plan.groups()[0].num_partials()), (6, 18));
}

#[test]
fn many_queries_are_cut_into_longer_splits_than_few() {
    let split = plan(schedule(8), &[seq(&[], 100, 8)]);
    assert_eq!(
        (split.groups()[0].num_items(3), split.groups()[0].num_partials(), split.merges().len()),
        (13, 13 * 8, 8)
    );
    let whole = plan(schedule(8), &[seq(&[], 100, 9)]);
    assert_eq!((whole.groups()[0].num_items(4), whole.groups()[0].num_partials(), whole.merges().len()), (1, 0, 0));
    assert_eq!((whole.groups()[0].max_item_keys(4), whole.groups()[0].max_splits_per_row()), (100, 0));
    assert_eq!((whole.tiles(4)[0].split_tokens, whole.tiles(4)[0].first_partial), (16_384, NO_PARTIAL));
    let chunk = Schedule { chunk_split_tokens: 40, ..schedule(8) };
    let long = plan(chunk, &[seq(&[], 100, 9)]);
    assert_eq!((long.groups()[0].num_items(4), long.groups()[0].num_partials(), long.merges().len()), (3, 27, 9));
    assert!(long.merges().iter().all(|merge| merge.split_tokens == 40));
}

#[test]
fn chunks_have_tiles_of_their_own_where_the_schedule_says_so() {
    let schedule = Schedule { chunk_tokens: 64, chunk_split_tokens: 100, ..schedule(8) };
    let all = plan(schedule, &[seq(&[], 300, 150), seq(&[], 8, 8), seq(&[], 9, 9), seq(&[], 1, 1)]);
    assert_eq!(tiles(&all, CHUNK_CLASS), [(64, 0, 0), (64, 3, 192), (22, 6, 384), (9, 9, NO_PARTIAL)]);
    assert_eq!((tiles(&all, 3), tiles(&all, 0)), (vec![(8, 0, NO_PARTIAL)], vec![(1, 0, NO_PARTIAL)]));
    assert_eq!(
        (all.groups()[0].num_items(CHUNK_CLASS), all.merges().len(), all.groups()[0].max_splits_per_row()),
        (10, 150, 3)
    );
    // More than there is room for is no more.
    let wide = Schedule { chunk_tokens: u32::MAX, ..schedule };
    assert_eq!(plan(wide, &[seq(&[], 65, 65)]).tiles(CHUNK_CLASS).len(), 2);
    assert_eq!(plan(Schedule { chunk_tokens: 10, ..schedule }, &[seq(&[], 65, 65)]).tiles(CHUNK_CLASS).len(), 7);
    let needed = |max| (0..TILE_CLASSES).filter(|&class| schedule.needs(class, max)).collect::<Vec<_>>();
    assert_eq!((needed(1), needed(8), needed(9)), (vec![0], vec![0, 1, 2, 3], vec![0, 1, 2, 3, 4, CHUNK_CLASS]));
}

#[test]
fn a_sequence_without_keys_has_a_work_item_that_writes_its_zeros() {
    let plan = plan(schedule(8), &[seq(&[], 0, 1), seq(&[], 0, 0), seq(&[], 0, 2), seq(&[], 3, 1)]);
    assert_eq!(tiles(&plan, 0), [(1, 0, NO_PARTIAL), (1, 1, NO_PARTIAL)]);
    assert_eq!(tiles(&plan, 1), [(2, 0, NO_PARTIAL)]);
    assert_eq!(plan.positions(), [-1, -2, -1, 2]);
    assert_eq!(
        (plan.tiles(1)[0].key_end, plan.groups()[0].max_item_keys(1), plan.groups()[0].max_item_keys(0)),
        (0, 0, 3)
    );
}

#[test]
fn a_plan_that_is_filled_again_forgets_what_was_in_it() {
    let mut used = plan(schedule(4), &[seq(&[1, 2], 9, 2), seq(&[1, 2], 12, 1), seq(&[], 30, 20)]);
    used.clear();
    let layout = CacheConfig::new(1, 1, 8).with_num_blocks(1 << 12).with_block_size(BLOCK).layout().unwrap();
    let tables = Tables::Dense { block_table: &[7, 8], max_blocks: 2, seq_lens: &[6] };
    used.plan_tables(&layout, &RawTables::new(tables)).unwrap();
    let mut fresh = StepPlan::new(schedule(4));
    fresh.plan_tables(&layout, &RawTables::new(tables)).unwrap();
    let words = |plan: &StepPlan| {
        let mut words = Vec::new();
        plan.encode(0, &mut words);
        words
    };
    assert_eq!(words(&used), words(&fresh));
    let numbers = |plan: &StepPlan| {
        (plan.groups()[0].num_partials(), plan.groups()[0].max_splits_per_row(), plan.groups()[0].max_item_keys(0))
    };
    assert_eq!(numbers(&used), numbers(&fresh));
}
