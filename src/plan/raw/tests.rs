use super::*;
use crate::config::CacheConfig;
use crate::error::PlanError;
use crate::plan::{MAX_ROWS, StepHeader, TableUpdate};

fn layout() -> KvLayout {
    CacheConfig::new(1, 1, 8).with_num_blocks(8).with_block_size(4).with_max_seq_len(100).layout().unwrap()
}

fn tables<'a>(block_table: &'a [u32], max_blocks: u32, seq_lens: &'a [u32]) -> RawTables<'a> {
    RawTables { block_table, max_blocks, seq_lens, cu_seqlens_q: None, slot_mapping: None }
}

fn plan(tables: &RawTables<'_>) -> Result<StepPlan, TableError> {
    let mut plan = StepPlan::new(4);
    plan.plan_tables(&layout(), tables)?;
    Ok(plan)
}

/// What `plan_tables` says, having checked that it left nothing behind.
fn refusal(tables: &RawTables<'_>) -> TableError {
    let mut plan = StepPlan::new(4);
    plan.plan_tables(&layout(), &self::tables(&[7], 1, &[3])).unwrap();
    let error = plan.plan_tables(&layout(), tables).unwrap_err();
    assert_eq!(plan.upload_bytes(), 32, "only a header of an empty plan");
    error
}

fn kv_lens(plan: &StepPlan) -> Vec<u32> {
    plan.rows().iter().map(|row| row.kv_len).collect()
}

#[test]
fn decoding_takes_one_query_per_sequence() {
    // The second column of the first sequence is not used.
    let plan = plan(&tables(&[5, 999, 2, 0], 2, &[4, 5])).unwrap();
    assert_eq!(kv_lens(&plan), [4, 5]);
    assert_eq!(plan.slots(), [5 * 4 + 3, 0]);
    assert_eq!(plan.inline_tables(), [5, 2, 0]);
    assert_eq!(plan.table_source(), TableSource::Inline);
    let splits: Vec<_> = plan.rows().iter().map(|row| (row.split_start, row.partial_start)).collect();
    assert_eq!(splits, [(0, 0), (1, 0)]);
    assert_eq!((plan.num_splits(), plan.num_partials(), plan.max_splits_per_row()), (3, 2, 2));
    assert!(plan.has_split_rows());
}

#[test]
fn queries_stand_at_the_end_of_their_keys() {
    for queries in [1, 3, 16, 17] {
        for past in [0, 1, 15, 16, 40] {
            let (blocks, lens) = (vec![1; 25], [queries + past]);
            let raw = RawTables { cu_seqlens_q: Some(&[0, queries]), ..tables(&blocks, 25, &lens) };
            let want: Vec<u32> = (0..queries).map(|query| past + query + 1).collect();
            assert_eq!(kv_lens(&plan(&raw).unwrap()), want);
        }
    }
}

#[test]
fn queries_without_keys_are_rows_all_the_same() {
    let raw = RawTables { cu_seqlens_q: Some(&[0, 4]), ..tables(&[3], 1, &[2]) };
    let plan = plan(&raw).unwrap();
    assert_eq!(kv_lens(&plan), [0, 0, 1, 2]);
    assert_eq!(plan.slots(), [SKIP_SLOT, SKIP_SLOT, 12, 13]);
    assert_eq!((plan.num_splits(), plan.num_partials()), (4, 0));
}

#[test]
fn empty_requests_in_the_middle_shift_nothing() {
    let block_table = [9, 9, 1, 9, 9, 9, 2, 3];
    let lens = [0, 3, 0, 5];
    let raw = RawTables { cu_seqlens_q: Some(&[0, 0, 1, 1, 2]), ..tables(&block_table, 2, &lens) };
    let plan_one = plan(&raw).unwrap();
    assert_eq!(kv_lens(&plan_one), [3, 5]);
    assert_eq!(plan_one.slots(), [4 + 2, 3 * 4]);
    let base = |plan: &StepPlan, row: usize| plan.rows()[row].table_base as usize;
    assert_eq!(base(&plan_one, 1) - base(&plan_one, 0), 1);

    let raw = RawTables { cu_seqlens_q: Some(&[0, 2, 2, 6]), ..tables(&[0, 1, 2], 1, &[3, 0, 4]) };
    assert_eq!(kv_lens(&plan(&raw).unwrap()), [2, 3, 1, 2, 3, 4]);

    let raw = RawTables { cu_seqlens_q: Some(&[0, 0, 0, 0]), ..tables(&[], 0, &[0, 0, 0]) };
    let empty = plan(&raw).unwrap();
    assert_eq!((empty.num_rows(), empty.num_splits(), empty.max_splits_per_row()), (0, 0, 0));
    assert_eq!(plan(&tables(&[], 5, &[])).unwrap().num_rows(), 0);
}

#[test]
fn a_padding_row_sees_and_writes_nothing() {
    let plan = plan(&tables(&[7, u32::MAX], 1, &[1, 0])).unwrap();
    assert_eq!(kv_lens(&plan), [1, 0]);
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
        RawTables { slot_mapping: Some(slots), ..tables(&[0, 1, 2, 3], 1, &[4, 4, 4, 4]) }
    }
    assert_eq!(plan(&map(&[3, -1, 7, -1])).unwrap().slots(), [3, SKIP_SLOT, 7, SKIP_SLOT]);
    assert_eq!(plan(&map(&[31, 0, 0, 0])).unwrap().slots()[0], 31);
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
    assert_eq!(length(RawTables { max_blocks: 2, ..good }), ("block_table", 4, 2));
    assert_eq!(length(RawTables { cu_seqlens_q: Some(&[0, 1]), ..good }), ("cu_seqlens_q", 3, 2));
    assert_eq!(length(RawTables { cu_seqlens_q: Some(&[]), ..good }), ("cu_seqlens_q", 3, 0));
    // Five slots for eight tokens, and the other way round.
    for (tokens, slots) in [(8, 5), (5, 8)] {
        let offsets = [0, 1, tokens];
        let raw = RawTables { cu_seqlens_q: Some(&offsets), slot_mapping: Some(&[0; 8][..slots]), ..good };
        assert_eq!(length(raw), ("slot_mapping", tokens.into(), slots as u64));
    }
}

#[test]
fn query_offsets_start_at_zero_and_never_decrease() {
    let offsets = |offsets| RawTables { cu_seqlens_q: Some(offsets), ..tables(&[0, 1], 1, &[3, 4]) };
    assert_eq!(refusal(&offsets(&[1, 2, 3])), TableError::QueryStart { value: 1 });
    assert_eq!(refusal(&offsets(&[0, 3, 2])), TableError::QueryOrder { index: 2, previous: 3, value: 2 });
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
    let mut plan = StepPlan::new(4);
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
    let mut words = vec![1; 1000];
    plan.encode(&mut words);
    assert_eq!(words.len() as u64 * 4, plan.upload_bytes());
    let header: StepHeader = bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words[..8]));
    assert_eq!(header, plan.header());
    assert_eq!((header.num_rows, header.num_slots, header.num_updates), (3, 3, 0));
    assert_eq!((header.rows_base, header.slots_base, header.updates_base), (8, 20, 23));
    assert_eq!((header.num_splits, header.split_tokens), (2 + 2 + 1, 4));
    // Second row: 7 keys, its table behind everything else.
    assert_eq!(words[12..16], [7, 23, 2, 2]);
    assert_eq!(words[20..23], [5 * 4 + 1, 5 * 4 + 2, 4 * 4 + 2]);
    assert_eq!(words[23..], [6, 5, 4]);

    plan.clear();
    plan.source = TableSource::Resident;
    plan.push_update(TableUpdate { index: 3, block: 2 });
    plan.encode(&mut words);
    assert_eq!(words, [0, 0, 1, 0, 4, 8, 8, 8, 3, 2]);
}

#[test]
fn splits_that_cannot_be_numbered_are_an_error() {
    let mut plan = StepPlan::new(0);
    assert_eq!(plan.split_tokens(), 1);
    plan.push_rows(0, u32::MAX, 1).unwrap();
    assert_eq!((plan.num_splits(), plan.num_partials()), (u32::MAX, u32::MAX));
    assert_eq!(
        plan.push_rows(0, 1, 1),
        Err(PlanError::TooLarge { what: "splits", value: 1 << 32, limit: u32::MAX.into() })
    );
}
