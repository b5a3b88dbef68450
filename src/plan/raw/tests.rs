use proptest::prelude::*;

use super::*;
use crate::blocks::CacheManager;
use crate::config::CacheConfig;
use crate::error::PlanError;
use crate::plan::{
    BlockCopy, MAX_ROWS, Merge, NO_PARTIAL, QueryTile, STEP_WORDS_VERSION, Schedule, StepHeader, TILE_CLASSES,
    TableUpdate, TileClass,
};

fn layout() -> KvLayout {
    CacheConfig::new(1, 1, 8).with_num_blocks(8).with_block_size(4).with_max_seq_len(100).layout().unwrap()
}

fn tables<'a>(block_table: &'a [u32], max_blocks: u32, seq_lens: &'a [u32]) -> RawTables<'a> {
    RawTables::new(Tables::Dense { block_table, max_blocks, seq_lens })
}

fn schedule() -> Schedule {
    Schedule { split_tokens: 4, ..Schedule::default() }
}

fn plan(tables: &RawTables<'_>) -> Result<StepPlan, TableError> {
    let mut plan = StepPlan::new(schedule());
    plan.plan_tables(&layout(), tables)?;
    Ok(plan)
}

/// What `plan_tables` says, having checked that it left nothing behind.
fn refusal(tables: &RawTables<'_>) -> TableError {
    let mut plan = StepPlan::new(schedule());
    plan.plan_tables(&layout(), &self::tables(&[7], 1, &[3])).unwrap();
    let error = plan.plan_tables(&layout(), tables).unwrap_err();
    assert_eq!(plan.upload_bytes(), 148, "only a header of an empty plan");
    error
}

/// How many keys each query sees that sees none behind its own.
fn keys_seen(plan: &StepPlan) -> Vec<i32> {
    plan.positions().iter().map(|position| (position + 1).max(0)).collect()
}

/// Work items of all classes.
fn items(plan: &StepPlan) -> u32 {
    (0..TILE_CLASSES).map(|class| plan.groups()[0].num_items(class)).sum()
}

#[test]
fn decoding_takes_one_query_per_sequence() {
    // The second column of the first sequence is not used.
    let plan = plan(&tables(&[5, 999, 2, 0], 2, &[4, 5])).unwrap();
    assert_eq!(keys_seen(&plan), [4, 5]);
    assert_eq!(plan.slots(), [5 * 4 + 3, 0]);
    assert_eq!(plan.inline_tables(), [5, 2, 0]);
    assert_eq!(plan.table_source(), TableSource::Inline);
    let splits: Vec<_> = plan.tiles(0).iter().map(|tile| (tile.item_start, tile.first_partial)).collect();
    assert_eq!(splits, [(0, NO_PARTIAL), (1, 0)]);
    assert_eq!((items(&plan), plan.groups()[0].num_partials(), plan.groups()[0].max_splits_per_row()), (3, 2, 2));
    assert_eq!(plan.merges().iter().map(|merge| merge.query).collect::<Vec<_>>(), [1]);
    assert_eq!(plan.members(), [0, 1]);
}

#[test]
fn queries_stand_at_the_end_of_their_keys() {
    for queries in [1, 3, 16, 17] {
        for past in [0, 1, 15, 16, 40] {
            let (blocks, lens) = (vec![1; 25], [queries + past]);
            let skip = vec![-1; queries as usize];
            let (cu_seqlens_q, append) = (Some(&[0, queries][..]), Append::Slots(&skip));
            let raw = RawTables { cu_seqlens_q, append, ..tables(&blocks, 25, &lens) };
            let want: Vec<i32> = (0..queries).map(|query| (past + query + 1) as i32).collect();
            assert_eq!(keys_seen(&plan(&raw).unwrap()), want);
        }
    }
}

#[test]
fn queries_without_keys_are_rows_all_the_same() {
    let raw = RawTables { cu_seqlens_q: Some(&[0, 4]), ..tables(&[3], 1, &[2]) };
    let plan = plan(&raw).unwrap();
    assert_eq!(plan.positions(), [-2, -1, 0, 1]);
    assert_eq!(plan.slots(), [SKIP_SLOT, SKIP_SLOT, 12, 13]);
    // One tile serves all four.
    assert_eq!(plan.members(), [0, 1, 2, 3]);
    assert_eq!((items(&plan), plan.groups()[0].num_items(2), plan.groups()[0].num_partials()), (1, 1, 0));
}

#[test]
fn empty_requests_in_the_middle_shift_nothing() {
    let block_table = [9, 9, 1, 9, 9, 9, 2, 3];
    let lens = [0, 3, 0, 5];
    let raw = RawTables { cu_seqlens_q: Some(&[0, 0, 1, 1, 2]), ..tables(&block_table, 2, &lens) };
    let plan_one = plan(&raw).unwrap();
    assert_eq!(keys_seen(&plan_one), [3, 5]);
    assert_eq!(plan_one.slots(), [4 + 2, 3 * 4]);
    let base = |plan: &StepPlan, row: usize| plan.tiles(0)[row].table_base as usize;
    assert_eq!(base(&plan_one, 1) - base(&plan_one, 0), 1);

    let raw = RawTables { cu_seqlens_q: Some(&[0, 2, 2, 6]), ..tables(&[0, 1, 2], 1, &[3, 0, 4]) };
    assert_eq!(keys_seen(&plan(&raw).unwrap()), [2, 3, 1, 2, 3, 4]);

    let raw = RawTables { cu_seqlens_q: Some(&[0, 0, 0, 0]), ..tables(&[], 0, &[0, 0, 0]) };
    let empty = plan(&raw).unwrap();
    assert_eq!((empty.num_rows(), items(&empty), empty.groups()[0].max_splits_per_row()), (0, 0, 0));
    assert_eq!(plan(&tables(&[], 5, &[])).unwrap().num_rows(), 0);
}

#[test]
fn a_padding_row_sees_and_writes_nothing() {
    let plan = plan(&tables(&[7, u32::MAX], 1, &[1, 0])).unwrap();
    assert_eq!(keys_seen(&plan), [1, 0]);
    assert_eq!(plan.slots(), [28, SKIP_SLOT]);
    assert_eq!(plan.inline_tables(), [7]);
}

#[test]
fn a_block_outside_the_pool_counts_where_it_is_used_only() {
    for id in [8, 1000, 1 << 26, 1 << 31, u32::MAX] {
        let used = [0, 1, 2, id];
        assert_eq!(refusal(&tables(&used, 2, &[8, 5])), TableError::InvalidBlock { row: 1, col: 1, id, num_blocks: 8 });
        let plan = plan(&tables(&used, 2, &[8, 4])).unwrap();
        assert_eq!(plan.inline_tables(), [0, 1, 2]);
    }
    assert_eq!(
        refusal(&tables(&[8], 1, &[1])).to_string(),
        "block_table[0, 0] is block 8, but the pool has 8; correct the table"
    );
}

#[test]
fn padding_slots_are_skipped_and_wild_ones_refused() {
    fn map(slots: &[i64]) -> RawTables<'_> {
        RawTables { append: Append::Slots(slots), ..tables(&[0, 1, 2, 3], 1, &[4, 4, 4, 4]) }
    }
    assert_eq!(plan(&map(&[3, -1, 7, -1])).unwrap().slots(), [3, SKIP_SLOT, 7, SKIP_SLOT]);
    assert_eq!(plan(&map(&[31, 0, 1, -1])).unwrap().slots()[0], 31);
    for slot in [32, -2, i64::MIN, i64::MAX, u32::MAX.into(), 1 << 32] {
        assert_eq!(refusal(&map(&[0, 0, slot, 0])), TableError::InvalidSlot { index: 2, slot, num_slots: 32 });
    }
}

#[test]
fn arrays_that_disagree_are_named() {
    let good = tables(&[0, 1], 1, &[3, 4]);
    let length = |raw: RawTables<'_>| match refusal(&raw) {
        TableError::Length { name, expected, actual } => (name, expected, actual),
        other => panic!("{other:?}"),
    };
    assert_eq!(length(tables(&[0, 1], 2, &[3, 4])), ("block_table", 4, 2));
    assert_eq!(length(RawTables { cu_seqlens_q: Some(&[0, 1]), ..good }), ("cu_seqlens_q", 3, 2));
    assert_eq!(length(RawTables { cu_seqlens_q: Some(&[]), ..good }), ("cu_seqlens_q", 3, 0));
    // Five slots for eight tokens, and the other way round.
    for (tokens, slots) in [(8, 5), (5, 8)] {
        let offsets = [0, 1, tokens];
        let raw = RawTables { cu_seqlens_q: Some(&offsets), append: Append::Slots(&[0; 8][..slots]), ..good };
        assert_eq!(length(raw), ("slot_mapping", tokens.into(), slots as u64));
    }
}

#[test]
fn query_offsets_start_at_zero_and_never_decrease() {
    let name = "cu_seqlens_q";
    let offsets = |offsets| RawTables { cu_seqlens_q: Some(offsets), ..tables(&[0, 1], 1, &[3, 4]) };
    assert_eq!(refusal(&offsets(&[1, 2, 3])), TableError::OffsetStart { name, value: 1 });
    assert_eq!(refusal(&offsets(&[0, 3, 2])), TableError::OffsetOrder { name, index: 2, previous: 3, value: 2 });
}

fn csr<'a>(indptr: &'a [u32], indices: &'a [u32], last_page_len: &'a [u32]) -> RawTables<'a> {
    RawTables::new(Tables::Csr { indptr, indices, last_page_len })
}

#[test]
fn lists_of_blocks_give_the_lengths_that_they_hold() {
    // Full blocks and a last one; what stands behind the list or for a sequence without blocks does not matter.
    let (indptr, indices) = ([0, 2, 2, 3, 6], [5, 1, 7, 2, 3, 4, 999]);
    for unread in [0, 4, 77, u32::MAX] {
        let plan = plan(&csr(&indptr, &indices, &[1, unread, 4, 2])).unwrap();
        assert_eq!(keys_seen(&plan), [5, 0, 4, 10]);
        assert_eq!(plan.slots(), [4, SKIP_SLOT, 7 * 4 + 3, 4 * 4 + 1]);
        assert_eq!(plan.inline_tables(), &indices[..6]);
    }
    let empty = plan(&csr(&[0], &[], &[])).unwrap();
    assert_eq!((empty.num_rows(), empty.num_tokens()), (0, 0));
}

#[test]
fn lists_of_blocks_that_contradict_themselves_are_refused() {
    let (indices, last) = ([0, 1, 2], [1, 4]);
    let name = "indptr";
    assert_eq!(refusal(&csr(&[1, 2, 3], &indices, &last)), TableError::OffsetStart { name, value: 1 });
    let error = TableError::OffsetOrder { name, index: 2, previous: 2, value: 1 };
    assert_eq!(refusal(&csr(&[0, 2, 1], &indices, &last)), error);
    for offset in [4, u32::MAX] {
        let error = TableError::IndicesTooShort { index: 2, offset, given: 3 };
        assert_eq!(refusal(&csr(&[0, 1, offset], &indices, &last)), error);
    }
    for indptr in [&[0, 3][..], &[], &[0, 1, 2, 3]] {
        let error = TableError::Length { name, expected: 3, actual: indptr.len() as u64 };
        assert_eq!(refusal(&csr(indptr, &indices, &last)), error);
    }
    for len in [0, 5, u32::MAX] {
        let error = TableError::LastPageLen { row: 1, len, block_size: 4 };
        assert_eq!(refusal(&csr(&[0, 1, 3], &indices, &[4, len])), error);
    }
    for id in [8, u32::MAX] {
        let error = TableError::InvalidIndex { index: 1, id, num_blocks: 8 };
        assert_eq!(refusal(&csr(&[0, 1, 3], &[7, id, 0], &last)), error);
    }
    // 25 blocks of 4 are the 100 tokens of the longest sequence.
    let long = [0; 26];
    assert_eq!(keys_seen(&plan(&csr(&[0, 25], &long, &[4])).unwrap()), [100]);
    let error = refusal(&csr(&[0, 26], &long, &[1]));
    assert_eq!(error, TableError::TooManyPages { row: 0, seq_len: 101, limit: 100 });
    assert_eq!(error.to_string(), "sequence 0 of indptr has 101 tokens, more than 100; raise max_seq_len");
}

#[test]
fn positions_find_their_slots_by_way_of_the_tables() {
    fn append<'a>(batch_indices: &'a [i32], positions: &'a [u32]) -> RawTables<'a> {
        RawTables { append: Append::Positions { batch_indices, positions }, ..two() }
    }
    // Any order and any sequence; padding is not looked at.
    let raw = append(&[1, -1, 0, 1], &[4, u32::MAX, 2, 0]);
    assert_eq!(plan(&raw).unwrap().slots(), [2 * 4, SKIP_SLOT, 6 * 4 + 2, 3 * 4]);

    for batch in [2, -2, i32::MIN, i32::MAX] {
        let error = TableError::InvalidBatch { index: 3, batch, num_seqs: 2 };
        assert_eq!(refusal(&append(&[0, 0, 0, batch], &[0, 1, 2, 0])), error);
    }
    for (seq, seq_len, position) in [(0, 3, 3), (1, 5, 5), (1, 5, u32::MAX)] {
        let error = TableError::InvalidPosition { index: 0, position, seq, seq_len };
        assert_eq!(refusal(&append(&[seq as i32, 0, 0, 0], &[position, 0, 1, 2])), error);
    }
    let error = |name, actual| TableError::Length { name, expected: 4, actual };
    assert_eq!(refusal(&append(&[0; 3], &[0; 4])), error("batch_indices", 3));
    assert_eq!(refusal(&append(&[0; 4], &[0; 5])), error("positions", 5));
}

/// A sequence of 3 tokens in block 6 and one of 5 in blocks 3 and 2, with two queries each.
fn two() -> RawTables<'static> {
    RawTables { cu_seqlens_q: Some(&[0, 2, 4]), ..csr(&[0, 1, 3], &[6, 3, 2], &[3, 1]) }
}

proptest! {
    #[test]
    fn every_form_of_the_same_batch_gives_the_same_words(
        seqs in prop::collection::vec((0u32..=40, 0u32..=5, prop::collection::vec(0u32..8, 10)), 0..6),
        spare in prop::collection::vec(any::<u32>(), 0..3),
    ) {
        let (mut block_table, mut seq_lens, mut cu_seqlens_q) = (Vec::new(), Vec::new(), vec![0]);
        let (mut indptr, mut indices, mut last_page_len) = (vec![0], Vec::new(), Vec::new());
        let (mut batch_indices, mut positions) = (Vec::new(), Vec::new());
        for (seq, (seq_len, queries, ids)) in seqs.iter().enumerate() {
            let used = &ids[..seq_len.div_ceil(4) as usize];
            block_table.extend(used);
            block_table.resize(10 * (seq + 1), u32::MAX);
            indices.extend(used);
            indptr.push(indices.len() as u32);
            last_page_len.push(if used.is_empty() { 0 } else { (seq_len - 1) % 4 + 1 });
            seq_lens.push(*seq_len);
            cu_seqlens_q.push(cu_seqlens_q[seq] + queries);
            for query in 0..*queries {
                let position = (seq_len + query).checked_sub(*queries);
                batch_indices.push(if position.is_some() { seq as i32 } else { -1 });
                positions.push(position.unwrap_or(0));
            }
        }
        indices.extend(&spare);
        let dense = RawTables {
            cu_seqlens_q: Some(&cu_seqlens_q),
            ..tables(&block_table, 10, &seq_lens)
        };
        let csr = RawTables { cu_seqlens_q: Some(&cu_seqlens_q), ..csr(&indptr, &indices, &last_page_len) };
        let dense_plan = match plan(&dense) {
            Ok(plan) => plan,
            Err(error) => {
                let shared = matches!(error, TableError::SharedSlot { .. });
                prop_assert!(shared);
                prop_assert_eq!(plan(&csr).unwrap_err(), error);
                return Ok(());
            }
        };
        let slots: Vec<i64> =
            dense_plan.slots().iter().map(|&slot| if slot == SKIP_SLOT { -1 } else { slot.into() }).collect();
        let appends = [
            Append::FromTables,
            Append::Slots(&slots),
            Append::Positions { batch_indices: &batch_indices, positions: &positions },
        ];
        let words = |raw: &RawTables<'_>| {
            let mut words = Vec::new();
            plan(raw).unwrap().encode(0, &mut words);
            words
        };
        let want = words(&dense);
        for append in appends {
            prop_assert_eq!(&words(&RawTables { append, ..dense }), &want);
            prop_assert_eq!(&words(&RawTables { append, ..csr }), &want);
        }
    }
}

#[test]
fn a_sequence_fits_its_columns_and_the_cache() {
    assert_eq!(refusal(&tables(&[0, 0], 2, &[9])), TableError::SeqTooLong { row: 0, seq_len: 9, limit: 8 });
    let wide = [0; 50];
    assert!(plan(&tables(&wide, 50, &[100])).is_ok());
    for seq_len in [101, u32::MAX] {
        assert_eq!(refusal(&tables(&wide, 50, &[seq_len])), TableError::SeqTooLong { row: 0, seq_len, limit: 100 });
    }
}

#[test]
fn a_wild_number_of_rows_is_refused_before_memory_is_asked_for() {
    for rows in [MAX_ROWS + 1, u32::MAX] {
        let offsets = [0, rows];
        let raw = RawTables { cu_seqlens_q: Some(&offsets), ..tables(&[0], 1, &[1]) };
        let error = PlanError::TooLarge { what: "rows", value: rows.into(), limit: MAX_ROWS.into() };
        assert_eq!(refusal(&raw), TableError::Plan(error));
    }
}

#[test]
fn a_plan_of_an_open_step_is_not_overwritten() {
    let layout = layout();
    let mut cache = crate::blocks::CacheManager::new(&layout).unwrap();
    let seq = cache.create_sequence().unwrap();
    let mut plan = StepPlan::new(schedule());
    cache.reserve(&[(seq, 3)], &mut plan).unwrap();
    let raw = tables(&[7], 1, &[1]);
    assert_eq!(plan.plan_tables(&layout, &raw), Err(TableError::StepOpen));
    assert_eq!(plan.num_rows(), 3);
    cache.commit(&mut plan).unwrap();
    plan.plan_tables(&layout, &raw).unwrap();
    assert_eq!(plan.num_rows(), 1);
}

#[test]
fn encoded_words_can_be_followed_by_their_offsets() {
    let raw = RawTables { cu_seqlens_q: Some(&[0, 2, 3]), ..tables(&[6, 5, 4, 9], 2, &[7, 3]) };
    let mut plan = plan(&raw).unwrap();
    let mut words = Vec::new();
    plan.encode(0, &mut words);
    assert_eq!(words.len() as u64 * 4, plan.upload_bytes());
    let header: StepHeader = bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words[..18]));
    assert_eq!(header, plan.header(0));
    let engine = [STEP_WORDS_VERSION, 3, 3, 2, 2, 36, 39, 80, 83];
    assert_eq!(words[..9], engine, "what engines read");
    assert_eq!((header.num_queries, header.num_slots, header.num_updates, header.num_merges), (3, 3, 0, 2));
    assert_eq!((header.positions_base, header.slots_base, header.updates_base), (36, 39, 42));
    assert_eq!((header.merges_base, header.members_base), (61, 77));
    let classes: [TileClass; TILE_CLASSES] = bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words[18..36]));
    assert_eq!(classes, plan.classes(0));
    let none = TileClass { tiles_base: 61, num_tiles: 0, num_items: 0 };
    let (one, two) = (
        TileClass { tiles_base: 45, num_tiles: 1, num_items: 1 },
        TileClass { tiles_base: 53, num_tiles: 1, num_items: 2 },
    );
    assert_eq!(classes, [one, two, none, none, none, none]);
    // Positions 5 and 6 of the first sequence, 2 of the second.
    assert_eq!(words[36..39], [5, 6, 2]);
    assert_eq!(words[39..42], [5 * 4 + 1, 5 * 4 + 2, 4 * 4 + 2]);
    assert_eq!(words[42..45], [6, 5, 4]);
    // The tile of the second sequence, then that of the first, whose 7 keys are two splits; their tables lie above.
    assert_eq!(words[45..53], [2, 1, 44, 0, 3, 4, 0, NO_PARTIAL]);
    assert_eq!(words[53..61], [0, 2, 42, 0, 7, 4, 0, 0]);
    // Two rows of two partials each, split after split; of shared partials there are none to read.
    assert_eq!(words[61..69], [0, 7, 0, 0, 0, 0, 2, 4]);
    assert_eq!(words[69..77], [1, 7, 0, 1, 0, 1, 2, 4]);
    assert_eq!(words[77..], [0, 1, 2, 0, 2, 3, 1, 2]);
    let tile: QueryTile = bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words[53..61]));
    assert_eq!((tile.num_members, tile.key_end, plan.tiles(1)), (2, 7, &[tile][..]));
    let merge: Merge = bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words[69..77]));
    assert_eq!((merge.query, merge.own_partial, plan.merges()[1]), (1, 1, merge));

    plan.clear();
    plan.source = TableSource::Resident;
    plan.groups_mut()[0].updates.push(TableUpdate { index: 3, block: BlockId::of_pool(2) });
    plan.copies.push(BlockCopy { source: BlockId::of_pool(5), target: BlockId::of_pool(6) });
    plan.copies.push(BlockCopy { source: BlockId::of_pool(5), target: BlockId::of_pool(1) });
    plan.clears.push(BlockId::of_pool(7));
    words.clear();
    plan.encode(0, &mut words);
    assert_eq!(words.len() as u64 * 4, plan.upload_bytes());
    assert_eq!(words[..18], [1, 0, 0, 0, 0, 36, 36, 43, 44, 1, 0, 43, 43, 36, 2, 38, 1, 42]);
    let rest = [[43, 0, 0]; TILE_CLASSES].as_flattened().iter().copied().chain([3, 2, 5, 6, 5, 1, 7, 0]);
    assert_eq!(words[18..], rest.collect::<Vec<_>>());
    plan.clear();
    assert_eq!((plan.copies(), plan.clears()), (&[][..], &[][..]));
}

#[test]
fn splits_that_cannot_be_numbered_are_an_error() {
    let mut plan = StepPlan::new(Schedule { split_tokens: 0, tile_tokens: 1, ..Schedule::default() });
    assert_eq!(plan.schedule().split_tokens, 1);
    for _ in 0..3 {
        plan.push_rows([(0, 0)].into_iter(), 1 << 30, 1).unwrap();
    }
    let limit = u64::from(u32::MAX) - 1;
    assert_eq!(
        plan.push_rows([(0, 0)].into_iter(), 1 << 30, 1),
        Err(PlanError::TooLarge { what: "splits", value: 1 << 32, limit })
    );
    // Without wide tiles nothing is shared, and no table is looked at.
    plan.finish(0, 4, &[], 0);
    assert_eq!(
        (plan.groups()[0].num_items(0), plan.groups()[0].num_partials(), plan.groups()[0].max_splits_per_row()),
        (3 << 30, 3 << 30, 1 << 30)
    );
}

#[test]
fn rows_follow_the_requests_of_either_door() {
    let layout = layout();
    let check = |plan: &StepPlan| {
        assert_eq!(plan.cu_seqlens_q(), [0, 3, 3, 4, 6]);
        let rows: Vec<_> = (0..6).map(|request| plan.rows_of(request)).collect();
        assert_eq!(rows, [0..3, 3..3, 3..4, 4..6, 0..0, 0..0]);
        assert_eq!(plan.last_rows(), [2, 3, 5]);
        assert_eq!(plan.positions(), [1, 2, 3, 0, 4, 5]);
        for (request, positions) in [(0, &[1, 2, 3][..]), (2, &[0]), (3, &[4, 5])] {
            assert_eq!(plan.positions()[plan.rows_of(request)], *positions);
        }
    };
    let mut plan = StepPlan::new(Schedule::default());
    assert_eq!((plan.cu_seqlens_q(), plan.rows_of(0), plan.last_rows().len()), (&[0][..], 0..0, 0));
    let table = [0, 1, 2, 3, 4, 5, 6, 7];
    let tables = Tables::Dense { block_table: &table, max_blocks: 2, seq_lens: &[4, 1, 1, 6] };
    let raw = RawTables { cu_seqlens_q: Some(&[0, 3, 3, 4, 6]), ..RawTables::new(tables) };
    plan.plan_tables(&layout, &raw).unwrap();
    check(&plan);

    let mut manager = CacheManager::new(&layout).unwrap();
    let seqs: Vec<_> = (0..4).map(|_| manager.create_sequence().unwrap()).collect();
    manager.reserve(&[(seqs[2], 1), (seqs[0], 4)], &mut plan).unwrap();
    manager.commit(&mut plan).unwrap();
    manager.reserve(&[(seqs[1], 3), (seqs[0], 0)], &mut plan).unwrap();
    assert_eq!(plan.cu_seqlens_q(), [0, 3, 3]);
    manager.rollback(&mut plan).unwrap();
    assert_eq!(plan.cu_seqlens_q(), [0]);
    // Out of the order in which they were created.
    manager.reserve(&[(seqs[1], 1)], &mut plan).unwrap();
    manager.commit(&mut plan).unwrap();
    manager.reserve(&[(seqs[1], 3), (seqs[2], 0), (seqs[3], 1), (seqs[0], 2)], &mut plan).unwrap();
    check(&plan);
}
