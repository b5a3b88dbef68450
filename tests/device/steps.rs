//! Manager and device together: steps in every rhythm, several at a time, and what they cost.

use std::collections::BTreeMap;

use crate::common::engine::{Request, TestEngine, words};
use crate::common::{bits, gpu, pool_words, profiles};
use wgpu_paged_attention::blocks::{ManagerOptions, SeqId};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::error::{ManagerError, ReserveError};
use wgpu_paged_attention::gpu::AttentionSpec;
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;

fn config() -> CacheConfig {
    CacheConfig::new(2, 2, 16).with_block_size(4).with_num_blocks(24).with_max_seq_len(64).with_max_sequences(6)
}

// I18: however a prompt is cut, the cache ends up the same, and so does the output.
#[test]
fn a_prompt_in_one_piece_and_in_chunks_fills_the_same_pools_and_gives_the_same_output() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for kv_dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Int8] {
            let config = CacheConfig::new(1, 2, 24).with_kv_dtype(kv_dtype).with_num_blocks(5).with_max_seq_len(48);
            let mut engine =
                TestEngine::new(&gpu, &profile, &config, &ManagerOptions::default(), AttentionSpec::new(4));
            let (text, mut first) = (words(37), None);
            for chunks in [&[37][..], &[16, 16, 5], &[16, 1, 20], &[1; 37]] {
                engine.reset();
                let seq = engine.seq();
                let (mut out, mut rest) = (Vec::new(), &text[..]);
                for &chunk in chunks {
                    let tokens;
                    (tokens, rest) = rest.split_at(chunk);
                    out.extend(engine.step(&[(seq, tokens)]));
                }
                let rows: Vec<_> = (0..37).map(|position| (seq, position)).collect();
                engine.assert_right(&out, &rows);
                let end = (pool_words(&gpu, &engine.cache), bits(&out));
                let (pool, whole) = first.get_or_insert_with(|| end.clone());
                let at = || format!("{} {kv_dtype} {chunks:?}", profile.lane_comm);
                assert!(*pool == end.0, "{}", at());
                // What comes in few pieces or alone has other bits where chunks have a kernel of their own.
                let (schedule, width) = (engine.cache.schedule(), whole.len() / 37);
                let mut begin = 0;
                for &chunk in chunks {
                    let rows = begin * width..(begin + chunk) * width;
                    let is_chunk = chunk as u32 >= schedule.chunk_queries;
                    assert!(!is_chunk && schedule.chunk_tokens > 0 || whole[rows.clone()] == end.1[rows], "{}", at());
                    begin += chunk;
                }
            }
        }
    }
}

#[test]
fn a_batch_that_decodes_and_prefills_at_once_is_right_at_every_token() {
    let Some(gpu) = gpu() else { return };
    for paged in [true, false] {
        let config = config().with_paged(paged).with_num_blocks(96);
        let mut engine = TestEngine::plain(&gpu, &config, 4);
        let seqs: Vec<SeqId> = (0..3).map(|_| engine.seq()).collect();
        let text = words(17);
        for counts in [[9, 0, 0], [1, 4, 0], [1, 1, 17], [1, 0, 3], [0, 7, 1], [1, 1, 1]] {
            let requests: Vec<Request<'_>> =
                seqs.iter().zip(counts).map(|(&seq, count)| (seq, &text[..count])).collect();
            engine.step_right(&requests);
        }
    }
}

// W07: queue writes take effect before a whole submit, so steps of one submit must not share a buffer.
#[test]
fn two_steps_of_one_submit_do_not_disturb_each_other() {
    let Some(gpu) = gpu() else { return };
    let mut engine = TestEngine::plain(&gpu, &config(), 4);
    let (a, b) = (engine.seq(), engine.seq());
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let mut outputs = Vec::new();
    let text = words(6);
    let steps: [&[Request<'_>]; 3] = [&[(a, &text[..5])], &[(a, &[1]), (b, &text)], &[(b, &[2])]];
    for requests in steps {
        let io = engine.io(requests);
        engine.reserve(requests);
        // The step goes at once: the encoder keeps what it needs.
        let step = engine.begin(&mut encoder);
        engine.record(&mut encoder, &step, &io);
        drop(step);
        engine.commit(requests);
        outputs.push(io.into_iter().map(|io| io.out).collect::<Vec<_>>());
    }
    gpu.submit(encoder);
    let rows: [Vec<(SeqId, u32)>; 3] = [
        (0..5).map(|at| (a, at)).collect(),
        [(a, 5)].into_iter().chain((0..6).map(|at| (b, at))).collect(),
        vec![(b, 6)],
    ];
    for (out, rows) in outputs.iter().zip(&rows) {
        engine.assert_right(&engine.read(out), rows);
    }
}

#[test]
fn a_step_whose_encoder_is_dropped_leaves_the_next_one_alone() {
    let Some(gpu) = gpu() else { return };
    let mut engine = TestEngine::plain(&gpu, &config(), 4);
    let a = engine.seq();
    for round in 0..4 {
        let io = engine.io(&[(a, &[1, 2, 3])]);
        engine.reserve(&[(a, &[1, 2, 3])]);
        let before = pool_words(&gpu, &engine.cache);
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = engine.begin(&mut encoder);
        engine.record(&mut encoder, &step, &io);
        drop((step, encoder));
        engine.manager.rollback(&mut engine.plan).unwrap();
        assert_eq!(pool_words(&gpu, &engine.cache), before, "round {round}");

        engine.step_right(&[(a, &[4, 5])]);
    }
}

/// Sequences come, grow and go, blocks change hands at once; returns all outputs.
fn churn(gpu: &Gpu, wait: bool) -> Vec<Vec<u32>> {
    let config = config().with_num_blocks(9).with_max_sequences(3);
    let mut engine = TestEngine::plain(gpu, &config, 4);
    let mut seqs: Vec<SeqId> = (0..2).map(|_| engine.seq()).collect();
    let mut outputs = Vec::new();
    for round in 0..50 {
        // The older of two sequences leaves, and a new one takes its blocks while the device may still read them.
        let old = seqs.remove(0);
        engine.manager.release(old).unwrap();
        seqs.push(engine.seq());
        let text: Vec<u32> = (0..9 + round % 4).map(|at| 100 * round + at).collect();
        let out = engine.submit(&[(seqs[0], &[round]), (seqs[1], &text)]);
        if wait {
            engine.read(&out);
        }
        outputs.push(out);
    }
    outputs.iter().map(|out| bits(&engine.read(out))).collect()
}

// P16: blocks are given away while work on them is still in flight; one queue keeps the order.
#[test]
fn blocks_that_change_hands_in_flight_give_what_waiting_gives() {
    let Some(gpu) = gpu() else { return };
    let (waiting, flying) = (churn(&gpu, true), churn(&gpu, false));
    assert_eq!(waiting.len(), 50);
    assert!(waiting == flying);
}

// P13: a row of the table is used again by a shorter sequence; what stands behind its end is stale.
#[test]
fn a_new_owner_of_a_table_row_does_not_touch_the_blocks_of_the_one_before() {
    let Some(gpu) = gpu() else { return };
    let config = config().with_num_blocks(20);
    let mut engine = TestEngine::plain(&gpu, &config, 4);
    let a = engine.seq();
    engine.step(&[(a, &words(24))]);
    let old = engine.manager.block_table(a).unwrap().to_vec();
    engine.manager.release(a).unwrap();
    let (b, c) = (engine.seq(), engine.seq());
    assert_eq!(b.index(), a.index());
    // C takes most of what is left, some of A's blocks among it.
    engine.step(&[(c, &words(64))]);
    engine.step(&[(b, &words(8))]);
    let owned = engine.manager.block_table(c).unwrap();
    assert!(old.iter().any(|block| owned.contains(block)), "no block changed hands");
    engine.step_right(&[(b, &[1])]);
    // C's blocks are unchanged where no other sequence wrote.
    let mut fresh = TestEngine::plain(&gpu, &config, 4);
    let (_, d) = (fresh.seq(), fresh.seq());
    fresh.step(&[(d, &words(64))]);
    let held = |engine: &TestEngine, seq: SeqId| -> BTreeMap<usize, Vec<u32>> {
        let pool = pool_words(&gpu, &engine.cache);
        let block = pool.len() / 4 / 20;
        let table = engine.manager.block_table(seq).unwrap();
        let places = (0..4).flat_map(|part| table.iter().map(move |&id| (part, id.get() as usize)));
        places.enumerate().map(|(at, (part, id))| (at, pool[(part * 20 + id) * block..][..block].to_vec())).collect()
    };
    assert!(held(&engine, c) == held(&fresh, d), "the neighbour's cache changed");
}

// P08, on the device: a refused step takes nothing, changes nothing, and nothing drifts.
#[test]
fn a_step_that_does_not_fit_changes_nothing_however_often_it_is_tried() {
    let Some(gpu) = gpu() else { return };
    let config = CacheConfig::new(1, 1, 8).with_num_blocks(4).with_max_seq_len(64).with_max_sequences(2);
    let mut engine = TestEngine::plain(&gpu, &config, 1);
    for round in 0..1000 {
        let (a, b) = (engine.seq(), engine.seq());
        let both = [(a, 20)];
        engine.manager.reserve(&both, &mut engine.plan).unwrap();
        engine.manager.commit(&mut engine.plan).unwrap();
        let refused = engine.manager.reserve(&[(b, 48)], &mut engine.plan);
        assert_eq!(refused, Err(ReserveError::OutOfBlocks { needed: 3, free: 2, total: 4 }));
        assert_eq!(engine.manager.num_free_blocks(), 2);
        engine.manager.reserve(&[(a, 13)], &mut engine.plan).unwrap();
        engine.manager.commit(&mut engine.plan).unwrap();
        assert_eq!((engine.manager.seq_len(a), engine.manager.seq_len(b)), (Ok(33), Ok(0)));
        engine.manager.release(a).unwrap();
        if round % 250 == 0 {
            engine.step_right(&[(b, &words(32))]);
        }
        engine.manager.release(b).unwrap();
        assert_eq!(engine.manager.num_free_blocks(), 4);
    }
}

// R07, R09: nothing to append takes nothing; an old handle is no handle.
#[test]
fn empty_requests_take_no_block_and_stale_handles_are_refused() {
    let Some(gpu) = gpu() else { return };
    let mut engine = TestEngine::plain(&gpu, &config(), 4);
    let a = engine.seq();
    for len in [0, 4, 5] {
        let have = engine.manager.seq_len(a).unwrap();
        if len > have {
            engine.step(&[(a, &words(len - have))]);
        }
        let (free, before) = (engine.manager.num_free_blocks(), pool_words(&gpu, &engine.cache));
        engine.reserve(&[(a, &[])]);
        assert_eq!((engine.plan.num_rows(), engine.plan.num_tokens(), engine.plan.updates().len()), (0, 0, 0));
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = engine.cache.begin_step(&mut encoder, &engine.plan).unwrap();
        assert_eq!((step.num_rows(), step.num_tokens()), (0, 0));
        gpu.submit(encoder);
        engine.manager.commit(&mut engine.plan).unwrap();
        assert_eq!((engine.manager.num_free_blocks(), engine.manager.seq_len(a)), (free, Ok(len)));
        assert_eq!(pool_words(&gpu, &engine.cache), before);
    }
    engine.manager.release(a).unwrap();
    let b = engine.seq();
    assert_eq!(b.index(), a.index());
    engine.step(&[(b, &words(3))]);
    let stale = ReserveError::StaleSequence { request: 0, seq: a };
    assert_eq!(engine.manager.reserve(&[(a, 1)], &mut engine.plan), Err(stale));
    assert_eq!(engine.manager.release(a), Err(ManagerError::StaleSequence { seq: a }));
    assert_eq!(engine.manager.block_table(a), Err(ManagerError::StaleSequence { seq: a }));
    engine.step_right(&[(b, &[1])]);
}

/// Live allocations of the device, by the name of their buffer, where the back end keeps a list.
fn allocations(device: &wgpu::Device) -> Option<BTreeMap<String, usize>> {
    let mut names = BTreeMap::new();
    for allocation in device.generate_allocator_report()?.allocations {
        *names.entry(allocation.name).or_default() += 1;
    }
    Some(names)
}

// F06, F08: a long conversation makes nothing new on the device, and sends no more at its end than at its start.
#[test]
fn a_long_conversation_needs_no_new_buffer_and_no_longer_upload() {
    let Some(gpu) = gpu() else { return };
    let config = CacheConfig::new(1, 1, 8).with_num_blocks(600).with_max_seq_len(9000).with_max_sequences(2);
    let mut engine = TestEngine::plain(&gpu, &config, 1);
    let seq = engine.seq();
    let (mut sent, mut seen) = (Vec::new(), None);
    for jump in [4000, 1000, 3900] {
        engine.append(&[(seq, &words(jump))]);
        for _ in 0..20 {
            engine.step_right(&[(seq, &[1])]);
            sent.push(engine.plan.upload_bytes());
        }
        gpu.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let now = allocations(&gpu.device);
        match &seen {
            None => seen = Some(now),
            Some(before) => assert_eq!(*before, now, "after {jump} more tokens"),
        }
    }
    // A header, and a position, a slot, a query tile, its member, a merge, the first row and the last; two words more where a
    // block begins.
    let step = 148 + 4 + 4 + 32 + 4 + 32 + 8;
    assert!(sent.iter().all(|bytes| [step, step + 8].contains(bytes)), "{sent:?}");
}
