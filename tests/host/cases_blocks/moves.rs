//! Sequences that go out and come back, statistics, and old data.

use crate::block_id;
use wgpu_paged_attention::blocks::{CacheStats, Domain, ManagerOptions, PreemptMethod, Rank, SeqId, SequenceRecord};
use wgpu_paged_attention::error::{ManagerError, PoolError, PreemptError};

use crate::cases_blocks::engine::Engine;

#[test]
fn p15_shared_blocks_stay_shared_when_sequences_go_out_and_come_back() {
    let mut it = Engine::caching(12);
    let text: Vec<u32> = (0..40).collect();
    let (a, _) = it.text(&text, &Domain::default());
    let (b, cached) = it.text(&[&text[..16], &[7; 20]].concat(), &Domain::default());
    assert_eq!(cached, 16);
    it.cache.set_rank(a, Rank { priority: 3, arrival: 1 }).unwrap();
    let c = it.cache.fork(a).unwrap();
    let records = [a, c].map(|seq| it.cache.export_sequence(seq).unwrap());
    assert_eq!((records[0].tokens.as_deref(), records[0].rank.priority), (Some(&text[..]), 3));
    let json = serde_json::to_string(&records).unwrap();
    let records: [_; 2] = serde_json::from_str(&json).unwrap();
    for seq in [a, c] {
        it.cache.preempt(seq).unwrap();
    }
    // B is untouched, and its first block with it.
    assert_eq!((it.used(), it.table(b)), (3, vec![0, 3, 4]));
    let imported = it.cache.import_sequences(&records).unwrap();
    it.cache.check_invariants().unwrap();
    assert_eq!((imported.blocks.len(), it.used(), it.cache.stats().shared_blocks), (3, 6, 3));
    let [a, c] = imported.sequences[..] else { panic!() };
    assert_eq!(it.table(a), imported.blocks.iter().map(|&(_, new)| new.get()).collect::<Vec<_>>());
    assert_eq!((it.table(c), it.cache.rank(a).unwrap().priority), (it.table(a), 3));
    // Its next commit makes it findable.
    it.cache.reserve_tokens(&[(a, &[40])], &mut it.plan).unwrap();
    assert_eq!(it.plan.copies().len(), 1);
    it.commit();
    for seq in [a, b, c] {
        it.cache.release(seq).unwrap();
    }
    assert_eq!((it.used(), it.cached(&text)), (0, 32));
}

#[test]
fn records_that_make_no_sense_change_nothing() {
    let mut it = Engine::caching(8);
    let (seq, _) = it.text(&(0..20).collect::<Vec<_>>(), &Domain::default());
    let good = it.cache.export_sequence(seq).unwrap();
    let before = it.free();
    let refused = |it: &mut Engine, change: &dyn Fn(&mut SequenceRecord)| {
        let mut record = good.clone();
        change(&mut record);
        let error = it.cache.import_sequences(&[good.clone(), record]).unwrap_err();
        it.cache.check_invariants().unwrap();
        error
    };
    let record = |what, value, expected| ManagerError::Record { record: 1, what, value, expected };
    assert_eq!(refused(&mut it, &|r| r.len = 1000), record("len", 1000, 320));
    assert_eq!(refused(&mut it, &|r| r.len = 40), record("the number of blocks", 2, 3));
    assert_eq!(refused(&mut it, &|r| r.tokens = Some(vec![])), record("the number of tokens", 0, 20));
    assert_eq!(refused(&mut it, &|r| r.blocks[0] = None), record("the number of released blocks", 1, 0));
    assert_eq!(refused(&mut it, &|r| r.blocks[1] = None), record("the column of a missing block", 1, 0));
    let shared = |block| ManagerError::SharedRecord { record: 1, other: 0, block };
    assert_eq!(refused(&mut it, &|r| r.blocks.swap(0, 1)), shared(block_id(1)));
    assert_eq!(refused(&mut it, &|r| r.tokens.as_mut().unwrap()[3] = 77), shared(block_id(0)));
    assert_eq!(refused(&mut it, &|r| r.domain = Some(Domain::default().with_salt(b"x"))), shared(block_id(0)));
    let many: Vec<_> = (0..4)
        .map(|at| {
            let blocks = good.blocks.iter().map(|block| block.map(|block| block_id(block.get() + 10 * at))).collect();
            SequenceRecord { blocks, ..good.clone() }
        })
        .collect();
    let error = it.cache.import_sequences(&many).unwrap_err();
    assert_eq!(error, PoolError::OutOfBlocks { needed: 8, free: 6, total: 8 }.into());
    assert_eq!((it.free(), it.cache.num_sequences()), (before, 1));
}

#[test]
fn the_last_to_come_gives_way_and_nobody_in_vain() {
    let mut it = Engine::new(10, &ManagerOptions::default().with_swap_from_tokens(Some(40)));
    let old = it.sequence(16);
    let long = it.sequence(48);
    let branch = it.cache.fork(long).unwrap();
    let late = it.sequence(20);
    let seqs = |it: &Engine, missing, whom| {
        it.cache.victims(missing, whom).map(|victims| victims.iter().map(|victim| victim.seq).collect::<Vec<_>>())
    };
    assert_eq!(seqs(&it, 2, None), Ok(vec![late]));
    assert_eq!(seqs(&it, 0, None), Ok(vec![]));
    // A branch frees nothing without the other one; whoever does not help is spared.
    assert_eq!(seqs(&it, 3, None), Ok(vec![branch, long]));
    let victims = it.cache.victims(4, None).unwrap();
    assert_eq!(victims.iter().map(|victim| victim.blocks).collect::<Vec<_>>(), [2, 0, 3]);
    assert_eq!(
        victims.iter().map(|victim| victim.method).collect::<Vec<_>>(),
        [PreemptMethod::Recompute, PreemptMethod::Swap, PreemptMethod::Swap,]
    );
    // Only those of lower rank.
    assert_eq!(seqs(&it, 3, Some(branch)), Err(PreemptError::NotEnough { missing: 3, reclaimable: 2 }));
    assert_eq!(seqs(&it, 1, Some(late)), Err(PreemptError::NotEnough { missing: 1, reclaimable: 0 }));
    it.cache.set_rank(old, Rank { priority: -1, ..it.cache.rank(old).unwrap() }).unwrap();
    assert_eq!(seqs(&it, 1, Some(late)), Ok(vec![old]));
    let rank = it.cache.preempt(late).unwrap();
    assert_eq!(it.cache.stats().preemptions, 1);
    // It comes back with its old rank, behind those that were there before it.
    let late = it.sequence(20);
    it.cache.set_rank(late, rank).unwrap();
    assert!(it.cache.rank(late).unwrap() < it.cache.rank(branch).unwrap());
}

#[test]
fn preemption_makes_progress_where_nothing_fits_twice() {
    // Each of four sequences needs three of four blocks in the end.
    let mut it = Engine::plain(4);
    let mut waiting: Vec<(Rank, u32)> = (0..4).map(|arrival| (Rank { priority: 0, arrival }, 48)).collect();
    let mut running: Vec<(SeqId, u32)> = Vec::new();
    let (mut finished, mut steps) = (Vec::new(), 0);
    while finished.len() < 4 {
        steps += 1;
        assert!(steps < 1000, "thrashing");
        waiting.sort_unstable_by_key(|&(rank, _)| std::cmp::Reverse(rank));
        while !waiting.is_empty() && it.cache.num_free_blocks() > 0 && running.len() < 4 {
            let (rank, target) = waiting.remove(0);
            let seq = it.cache.create_sequence().unwrap();
            it.cache.set_rank(seq, rank).unwrap();
            running.push((seq, target));
        }
        running.sort_unstable_by_key(|&(seq, _)| std::cmp::Reverse(it.cache.rank(seq).unwrap()));
        let (first, _) = running[0];
        let mut batch: Vec<(SeqId, u32)> = running.iter().map(|&(seq, _)| (seq, 8)).collect();
        while let Err(error) = it.cache.reserve(&batch, &mut it.plan) {
            let Ok(victims) = it.cache.victims(error.missing_blocks().unwrap(), Some(first)) else {
                // All of them together ask for too much: the lowest rank sits this step out.
                batch.pop();
                continue;
            };
            for victim in victims {
                let rank = it.cache.preempt(victim.seq).unwrap();
                running.retain(|&(seq, _)| seq != victim.seq);
                batch.retain(|&(seq, _)| seq != victim.seq);
                waiting.push((rank, 48));
            }
        }
        it.commit();
        let done: Vec<SeqId> =
            running.iter().filter(|&&(seq, target)| it.cache.seq_len(seq) == Ok(target)).map(|&(seq, _)| seq).collect();
        for seq in done {
            finished.push(it.cache.rank(seq).unwrap().arrival);
            it.cache.release(seq).unwrap();
            running.retain(|&(other, _)| other != seq);
        }
    }
    assert_eq!(finished, [0, 1, 2, 3]);
}

#[test]
fn statistics_are_one_record() {
    let mut it = Engine::caching(16);
    let text: Vec<u32> = (0..40).collect();
    let (a, _) = it.text(&text, &Domain::default());
    let (b, _) = it.text(&text, &Domain::default());
    let c = it.cache.fork(b).unwrap();
    let stats = it.cache.stats();
    assert_eq!((stats.num_blocks, stats.used_blocks, stats.free_blocks, stats.shared_blocks), (16, 4, 12, 3));
    // Two full blocks, and 8 tokens in each of two blocks.
    assert_eq!((stats.reserved_tokens, stats.filled_tokens, stats.wasted_tokens), (64, 48, 16));
    assert_eq!((stats.utilisation, stats.wasted_bytes), (0.75, 16 * it.cache.layout().bytes_per_token()));
    assert_eq!((stats.prefix_queries, stats.prefix_hits, stats.cached_blocks), (80, 32, 0));
    for seq in [a, b, c] {
        it.cache.release(seq).unwrap();
    }
    let stats = it.cache.stats();
    assert_eq!((stats.used_blocks, stats.cached_blocks, stats.peak_used_blocks, stats.utilisation), (0, 2, 4, 1.0));
    let json = serde_json::to_value(stats).unwrap();
    assert_eq!((json["cached_blocks"].as_u64(), json["utilisation"].as_f64()), (Some(2), Some(1.0)));
    assert_eq!(serde_json::from_value::<CacheStats>(json).unwrap(), stats);
    let event = serde_json::to_value(it.cache.take_events()[0]).unwrap();
    assert_eq!((event["event"].as_str(), event["key"].as_str().map(str::len)), (Some("stored"), Some(64)));
}

#[test]
fn old_data_is_listed_until_it_is_cleared() {
    let mut it = Engine::new(6, &ManagerOptions::default().with_prefix_cache(true).with_clear_freed(true));
    let text: Vec<u32> = (0..40).collect();
    let (a, cached) = it.cache.create_sequence_with_tokens(&text, &Domain::default()).unwrap();
    assert_eq!(cached, 0);
    it.cache.reserve_tokens(&[(a, &text)], &mut it.plan).unwrap();
    // Nobody has cleared the pool yet.
    assert_eq!(it.plan.clears(), [0, 1, 2]);
    assert_eq!(it.plan.clears().len(), 3);
    it.commit();
    it.cache.release(a).unwrap();
    let mut clears = Vec::new();
    it.cache.take_clears(&mut clears);
    assert_eq!(clears, [2], "the others are cached");
    it.cache.take_clears(&mut clears);
    assert_eq!(clears, [2], "nothing new");
    let b = it.cache.create_sequence().unwrap();
    it.cache.reserve(&[(b, 6 * 16)], &mut it.plan).unwrap();
    assert_eq!((it.plan.clears(), it.free()), (&[3, 4, 5, 1, 0].map(block_id)[..], vec![]));
    it.cache.rollback(&mut it.plan).unwrap();
    it.cache.take_clears(&mut clears);
    assert_eq!(clears[1..], [2, 5, 4, 3], "the device may have written to them");
}
