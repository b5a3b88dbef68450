//! A decode step in the middle of a conversation costs neither heap memory nor an upload that grows with the context.

use crate::allocations::calls_during;
use wgpu_paged_attention::blocks::{CacheManager, Domain, ManagerOptions, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::plan::{RawTables, Schedule, StepPlan, Tables};

/// `num_seqs` sequences of `context` tokens, and the request for one more token each.
fn decoding(num_seqs: u32, context: u32) -> (CacheManager, Vec<(SeqId, u32)>) {
    let layout = CacheConfig::new(32, 8, 128)
        .with_max_seq_len(context + 64)
        .with_max_sequences(num_seqs)
        .with_num_blocks(num_seqs * (context / 16 + 4))
        .layout()
        .unwrap();
    let mut cache = CacheManager::new(&layout).unwrap();
    let mut plan = StepPlan::new(Schedule::default());
    let batch: Vec<_> = (0..num_seqs).map(|_| (cache.create_sequence().unwrap(), 1)).collect();
    for &(seq, _) in &batch {
        cache.reserve(&[(seq, context)], &mut plan).unwrap();
        cache.commit(&mut plan).unwrap();
    }
    (cache, batch)
}

#[test]
fn a_warm_decode_step_asks_for_no_memory() {
    let (mut cache, batch) = decoding(256, 4096);
    let mut plan = StepPlan::new(Schedule::default());
    let mut words = Vec::new();
    let mut step = || {
        cache.reserve(&batch, &mut plan).unwrap();
        plan.words(&mut words);
        cache.commit(&mut plan).unwrap();
        plan.updates().len()
    };
    // The first step begins a new block everywhere, so it is the largest.
    assert_eq!(step(), 256);
    // The 17th begins a block again.
    let calls = calls_during(|| assert_eq!((0..16).map(|_| step()).sum::<usize>(), 256));
    assert_eq!(calls, 0);
}

#[test]
fn a_warm_decode_step_that_fills_cached_blocks_asks_for_none_either() {
    let layout = CacheConfig::new(32, 8, 128)
        .with_max_seq_len(1024)
        .with_max_sequences(256)
        .with_num_blocks(256 * 8)
        .with_window(40)
        .layout()
        .unwrap();
    let options = ManagerOptions::default().with_prefix_cache(true).with_clear_freed(true);
    let mut cache = CacheManager::with_options(&layout, &options).unwrap();
    let mut plan = StepPlan::new(Schedule::default());
    let mut words = Vec::new();
    let tokens: Vec<u32> = (0..256).collect();
    let text = |seq: usize, len: usize| [tokens[seq]].into_iter().chain(tokens.iter().copied()).take(len).collect();
    let mut batch = Vec::new();
    for seq in 0..256 {
        let prompt: Vec<u32> = text(seq, 50);
        let (seq, cached) = cache.create_sequence_with_tokens(&prompt, &Domain::default()).unwrap();
        cache.reserve_tokens(&[(seq, &prompt[cached as usize..])], &mut plan).unwrap();
        cache.commit(&mut plan).unwrap();
        batch.push((seq, &tokens[..1]));
    }
    let mut steps = |count: usize| {
        for _ in 0..count {
            cache.reserve_tokens(&batch, &mut plan).unwrap();
            plan.words(&mut words);
            cache.commit(&mut plan).unwrap();
        }
        cache.stats().evictions
    };
    // Long enough for blocks to be filled, to leave the window and to be evicted.
    let before = steps(100);
    let mut after = 0;
    assert_eq!(calls_during(|| after = steps(64)), 0);
    assert!(0 < before && before < after);
}

#[test]
fn forks_ask_for_no_memory() {
    let (mut cache, batch) = decoding(16, 1024);
    let (seq, last) = (batch[0].0, batch[15].0);
    cache.release(last).unwrap();
    let calls = calls_during(|| {
        for _ in 0..10 {
            let fork = cache.fork(seq).unwrap();
            cache.release(fork).unwrap();
        }
    });
    assert_eq!(calls, 0);
}

#[test]
fn refused_and_undone_steps_ask_for_no_memory_either() {
    let (mut cache, batch) = decoding(16, 1024);
    let mut plan = StepPlan::new(Schedule::default());
    let too_long = [(batch[0].0, 10_000)];
    let mut step = || {
        cache.reserve(&batch, &mut plan).unwrap();
        cache.rollback(&mut plan).unwrap();
        cache.reserve(&too_long, &mut plan).unwrap_err();
    };
    step();
    assert_eq!(calls_during(step), 0);
}

#[test]
fn sequences_come_and_go_without_memory() {
    let (mut cache, batch) = decoding(16, 1024);
    let mut plan = StepPlan::new(Schedule::default());
    plan_prompt(&mut cache, batch[0].0, &mut plan);
    let calls = calls_during(|| {
        for &(seq, _) in &batch {
            cache.release(seq).unwrap();
            let seq = cache.create_sequence().unwrap();
            plan_prompt(&mut cache, seq, &mut plan);
        }
    });
    assert_eq!(calls, 0);
}

fn plan_prompt(cache: &mut CacheManager, seq: SeqId, plan: &mut StepPlan) {
    cache.reserve(&[(seq, 60)], plan).unwrap();
    cache.commit(plan).unwrap();
}

#[test]
fn warm_raw_tables_ask_for_no_memory() {
    let layout = CacheConfig::new(1, 1, 64).with_num_blocks(1000).layout().unwrap();
    let block_table: Vec<u32> = (0..16 * 50).collect();
    let seq_lens = [800; 16];
    let tables = RawTables::new(Tables::Dense { block_table: &block_table, max_blocks: 50, seq_lens: &seq_lens });
    let mut plan = StepPlan::new(Schedule::default());
    plan.plan_tables(&layout, &tables).unwrap();
    assert_eq!(calls_during(|| plan.plan_tables(&layout, &tables).unwrap()), 0);
}

/// Block table and lengths of 256 sequences of a little more than 1,024 tokens, with blocks of their `own` only or not.
fn raw_batch(own: bool) -> (Vec<u32>, Vec<u32>) {
    let mut block_table: Vec<u32> = (0..256 * 65).collect();
    if !own {
        // Families of 40, so that some fill several tiles, with 48 of 65 blocks in common.
        for seq in 0..256 {
            let first = 65 * (seq / 40 * 40);
            block_table.copy_within(first..first + 48, 65 * seq);
        }
    }
    (block_table, (0..256).map(|seq| 1025 + seq % 7).collect())
}

#[test]
fn a_warm_step_asks_for_no_memory_whether_its_sequences_share_blocks_or_not() {
    let layout = CacheConfig::new(1, 1, 64).with_num_blocks(256 * 65).layout().unwrap();
    for own in [true, false] {
        let (block_table, mut seq_lens) = raw_batch(own);
        let mut plan = StepPlan::new(Schedule::default());
        let mut words = Vec::new();
        let mut step = |seq_lens: &[u32]| {
            let tables = RawTables::new(Tables::Dense { block_table: &block_table, max_blocks: 65, seq_lens });
            plan.plan_tables(&layout, &tables).unwrap();
            plan.words(&mut words);
            plan.merges().iter().filter(|merge| merge.shared_splits == 3).count()
        };
        // Six families of 40, in tiles of 16, 16 and 8, and one of 16.
        let shared = if own { 0 } else { 256 };
        assert_eq!(step(&seq_lens), shared);
        for _ in 0..8 {
            seq_lens.iter_mut().for_each(|len| *len += 1);
            assert_eq!(calls_during(|| assert_eq!(step(&seq_lens), shared)), 0, "own blocks: {own}");
        }
    }
}

#[test]
fn the_upload_does_not_grow_with_the_context() {
    let bytes = [1024, 32_768].map(|context| {
        let (mut cache, batch) = decoding(64, context + 1);
        let mut plan = StepPlan::new(Schedule::default());
        cache.reserve(&batch, &mut plan).unwrap();
        assert!(plan.updates().is_empty(), "the last block has room");
        plan.upload_bytes()
    });
    // A header of 144 bytes and the end of the last row; then 4 for the position, 4 for the slot, 32 for the query tile, 4 for
    // its member, 32 for the merge, and 8 for the first and the last row of every sequence.
    assert_eq!(bytes, [148 + 64 * 84; 2]);

    let (mut cache, batch) = decoding(64, 32_768);
    let mut plan = StepPlan::new(Schedule::default());
    cache.reserve(&batch, &mut plan).unwrap();
    // A new block for each: an index and a block id more.
    assert_eq!(plan.upload_bytes(), 148 + 64 * (84 + 8));
}
