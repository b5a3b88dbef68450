use super::*;

/// (splits, rows) of the tiles that serve more than one sequence.
fn shared(plan: &StepPlan, seqs: &[Seq]) -> Vec<(u32, Vec<u32>)> {
    let owners: Vec<usize> = seqs.iter().enumerate().flat_map(|(at, seq)| (0..seq.queries).map(move |_| at)).collect();
    let tiles = (0..TILE_CLASSES).flat_map(|class| plan.tiles(class));
    let several = |tile: &&QueryTile| {
        let first = owners[members(plan, tile)[0] as usize];
        members(plan, tile).iter().any(|&row| owners[row as usize] != first)
    };
    tiles.filter(several).map(|tile| (tile.key_end / tile.split_tokens, members(plan, tile).to_vec())).collect()
}

#[test]
fn whole_splits_in_common_blocks_are_served_by_one_tile() {
    // Three blocks in common are 12 keys: three splits of 4. What is left is one split of 2 keys, and two.
    let seqs = [seq(&[1, 2, 3], 14, 1), seq(&[1, 2, 3], 20, 1)];
    let plan = plan(schedule(4), &seqs);
    let tile = QueryTile { num_members: 2, table_base: 40, key_end: 12, split_tokens: 4, ..QueryTile::default() };
    assert_eq!(plan.tiles(1), [tile]);
    assert_eq!(plan.members(), [0, 1, 0, 1]);
    let own = |first_member, table_base, key_end, item_start, first_partial| QueryTile {
        first_member,
        num_members: 1,
        table_base,
        key_begin: 12,
        key_end,
        split_tokens: 4,
        item_start,
        first_partial,
    };
    assert_eq!(plan.tiles(0), [own(2, 40, 14, 0, 6), own(3, 44, 20, 1, 7)]);
    let merge = |row, kv_len, own_partial| Merge {
        query: row,
        kv_len,
        shared_splits: 3,
        shared_partial: row,
        shared_stride: 2,
        own_partial,
        own_stride: 1,
        split_tokens: 4,
    };
    assert_eq!(plan.merges(), [merge(0, 14, 6), merge(1, 20, 7)]);
    assert_eq!(
        (plan.groups()[0].num_items(1), plan.groups()[0].num_items(0), plan.groups()[0].num_partials()),
        (3, 3, 9)
    );
    assert_eq!(plan.groups()[0].max_splits_per_row(), 5);
}

#[test]
fn a_split_that_is_common_in_part_only_is_not_shared() {
    // 12 common keys are one split of 8; 4 of them are none.
    let seqs = [seq(&[1, 2, 3], 20, 1), seq(&[1, 2, 3], 20, 1)];
    assert_eq!(shared(&plan(schedule(8), &seqs), &seqs), [(1, vec![0, 1])]);
    let seqs = [seq(&[1], 20, 1), seq(&[1], 20, 1)];
    assert_eq!(shared(&plan(schedule(8), &seqs), &seqs), []);
    // The last common block belongs to both, but one of them has only two tokens in it.
    let seqs = [seq(&[1, 2], 6, 1), seq(&[1, 2], 8, 1)];
    assert_eq!(shared(&plan(schedule(8), &seqs), &seqs), []);
    assert_eq!(shared(&plan(schedule(2), &seqs), &seqs), [(3, vec![0, 1])]);
    // The same blocks in another order are other keys.
    let seqs = [seq(&[1, 2], 20, 1), seq(&[2, 1], 20, 1)];
    assert_eq!(shared(&plan(schedule(4), &seqs), &seqs), []);
}

#[test]
fn a_run_is_as_long_as_it_pays() {
    let seqs = [seq(&[1, 2, 3], 20, 1), seq(&[1], 20, 1), seq(&[1, 2, 3], 20, 1), seq(&[1, 2, 9], 20, 1)];
    // Those with most in common come first. The one with a single split would cost the others more than it saves.
    assert_eq!(shared(&plan(schedule(4), &seqs), &seqs), [(2, vec![0, 2, 3])]);
    // Where they do not fit one tile, those with most in common are together.
    let narrow = Schedule { tile_tokens: 2, ..schedule(4) };
    assert_eq!(shared(&plan(narrow, &seqs), &seqs), [(3, vec![0, 2]), (1, vec![3, 1])]);
}

#[test]
fn families_that_lie_between_each_other_are_kept_apart() {
    let seqs = [seq(&[1, 2], 9, 1), seq(&[5, 6], 9, 1), seq(&[1, 2], 10, 1), seq(&[7], 9, 1), seq(&[5, 6], 11, 1)];
    assert_eq!(shared(&plan(schedule(4), &seqs), &seqs), [(2, vec![0, 2]), (2, vec![1, 4])]);
}

#[test]
fn more_rows_than_a_tile_holds_are_dealt_out_and_a_single_one_is_left_alone() {
    let family = |count| vec![seq(&[1, 2], 9, 1); count];
    let cases: [(usize, &[(u32, u32)]); 4] =
        [(16, &[(0, 16)]), (17, &[(0, 16)]), (20, &[(0, 16), (16, 20)]), (34, &[(0, 16), (16, 32), (32, 34)])];
    for (count, runs) in cases {
        let seqs = family(count);
        let plan = plan(schedule(4), &seqs);
        let mut found = shared(&plan, &seqs);
        found.sort_by_key(|(_, rows)| rows[0]);
        let want: Vec<_> = runs.iter().map(|&(first, end)| (2, (first..end).collect::<Vec<u32>>())).collect();
        assert_eq!(found, want, "{count} sequences");
    }
    let plan = plan(schedule(4), &family(17));
    let last = plan.merges().iter().find(|merge| merge.query == 16).unwrap();
    assert_eq!((last.shared_splits, plan.groups()[0].num_items(4)), (0, 2));
}

#[test]
fn sequences_of_several_queries_share_as_whole() {
    let seqs = [seq(&[1, 2], 11, 6), seq(&[1, 2], 12, 6), seq(&[1, 2], 13, 6), seq(&[1, 2], 14, 2)];
    let plan = plan(schedule(4), &seqs);
    // 12 rows; the third sequence does not fit, but begins the next tile.
    assert_eq!(shared(&plan, &seqs), [(2, (12..20).collect()), (2, (0..12).collect())]);
    let partial = |row: u32| plan.merges()[row as usize];
    assert_eq!((partial(0).shared_partial, partial(11).shared_partial, partial(6).shared_stride), (0, 11, 12));
    assert_eq!((partial(12).shared_partial, partial(19).shared_partial, partial(19).shared_stride), (24, 31, 8));
}

#[test]
fn a_sequence_may_have_nothing_of_its_own() {
    let seqs = [seq(&[1, 2], 8, 1), seq(&[1, 2], 8, 3)];
    let plan = plan(schedule(4), &seqs);
    assert_eq!(shared(&plan, &seqs), [(2, vec![0, 1, 2, 3])]);
    let tiles: usize = (0..TILE_CLASSES).map(|class| plan.tiles(class).len()).sum();
    assert_eq!((tiles, plan.groups()[0].num_items(2), plan.groups()[0].num_partials()), (1, 2, 8));
    assert!(plan.merges().iter().all(|merge| merge.shared_splits == 2 && merge.shared_stride == 4));
    // One split alone is merged as well: its partial is not the row's result.
    let seqs = [seq(&[1], 4, 1), seq(&[1], 4, 1)];
    let plan = super::plan(schedule(4), &seqs);
    assert_eq!((plan.merges().len(), plan.groups()[0].num_partials(), plan.groups()[0].num_items(1)), (2, 2, 1));
}

#[test]
fn what_is_not_split_or_served_alone_is_not_shared() {
    let seqs = [seq(&[1, 2], 20, 9), seq(&[1, 2], 20, 9), seq(&[1, 2], 20, 1)];
    assert_eq!(shared(&plan(schedule(4), &seqs), &seqs), []);
    let seqs = [seq(&[1, 2], 20, 1), seq(&[1, 2], 20, 1)];
    assert_eq!(shared(&plan(Schedule { tile_tokens: 1, ..schedule(4) }, &seqs), &seqs), []);
    // Shorter than a split, although the blocks are the same.
    assert_eq!(shared(&plan(schedule(21), &seqs), &seqs), []);
}
