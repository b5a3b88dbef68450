//! Manager and device together: steps in every rhythm, several at a time, and what they cost.

use std::collections::BTreeMap;

use crate::common::rig::{Rig, Talk};
use crate::common::{bits, gpu, pool_words, profiles};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::error::{ManagerError, ReserveError};
use wgpu_paged_attention::gpu::DeviceProfile;
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;

fn config() -> CacheConfig {
    CacheConfig::new(2, 2, 16).with_block_size(4).with_num_blocks(24).with_max_seq_len(64).with_max_sequences(6)
}

fn rig(gpu: &Gpu) -> Rig {
    Rig::new(gpu, &DeviceProfile::of(&gpu.device), &config(), 4)
}

// I18: however a prompt is cut, the cache ends up the same, and so does the output.
#[test]
fn a_prompt_in_one_piece_and_in_chunks_fills_the_same_pools_and_gives_the_same_output() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for kv_dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Int8] {
            let config = CacheConfig::new(1, 2, 24).with_kv_dtype(kv_dtype).with_num_blocks(5).with_max_seq_len(48);
            let mut rig = Rig::new(&gpu, &profile, &config, 4);
            let mut first = None;
            for chunks in [&[37][..], &[16, 16, 5], &[16, 1, 20], &[1; 37]] {
                rig.reset();
                let talk = rig.talk(1);
                let mut out = Vec::new();
                for &chunk in chunks {
                    out.extend(rig.step(&[(talk, chunk)]));
                }
                let rows: Vec<_> = (0..37).map(|position| (talk, position)).collect();
                rig.assert_right(&out, &rows);
                let end = (pool_words(&gpu, &rig.cache), bits(&out));
                match &first {
                    None => first = Some(end),
                    Some(first) => assert!(*first == end, "{} {kv_dtype} {chunks:?}", profile.lane_comm),
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
        let mut rig = Rig::new(&gpu, &DeviceProfile::of(&gpu.device), &config, 4);
        let talks: Vec<Talk> = (0..3).map(|tag| rig.talk(tag)).collect();
        let mut lens = [0; 3];
        for counts in [[9, 0, 0], [1, 4, 0], [1, 1, 17], [1, 0, 3], [0, 7, 1], [1, 1, 1]] {
            let requests: Vec<_> = talks.iter().copied().zip(counts).collect();
            let out = rig.step(&requests);
            let mut rows = Vec::new();
            for (at, count) in counts.into_iter().enumerate() {
                rows.extend((lens[at]..lens[at] + count).map(|position| (talks[at], position)));
                lens[at] += count;
            }
            rig.assert_right(&out, &rows);
        }
    }
}

// W07: queue writes take effect before a whole submit, so steps of one submit must not share a buffer.
#[test]
fn two_steps_of_one_submit_do_not_disturb_each_other() {
    let Some(gpu) = gpu() else { return };
    let mut rig = rig(&gpu);
    let (a, b) = (rig.talk(1), rig.talk(2));
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let mut outputs = Vec::new();
    let steps: [&[(Talk, u32)]; 3] = [&[(a, 5)], &[(a, 1), (b, 6)], &[(b, 1)]];
    for requests in steps {
        let io = rig.io(requests);
        rig.reserve(requests);
        // The step goes at once: the encoder keeps what it needs.
        drop(rig.record(&mut encoder, &io));
        rig.manager.commit(&mut rig.plan).unwrap();
        outputs.push(io.out);
    }
    gpu.submit(encoder);
    let rows: [Vec<(Talk, u32)>; 3] = [
        (0..5).map(|at| (a, at)).collect(),
        [(a, 5)].into_iter().chain((0..6).map(|at| (b, at))).collect(),
        vec![(b, 6)],
    ];
    for (out, rows) in outputs.iter().zip(&rows) {
        rig.assert_right(&gpu.read(out).unwrap(), rows);
    }
}

#[test]
fn a_step_whose_encoder_is_dropped_leaves_the_next_one_alone() {
    let Some(gpu) = gpu() else { return };
    let mut rig = rig(&gpu);
    let a = rig.talk(1);
    for round in 0..4 {
        let io = rig.io(&[(a, 3)]);
        rig.reserve(&[(a, 3)]);
        let before = pool_words(&gpu, &rig.cache);
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        drop(rig.record(&mut encoder, &io));
        drop(encoder);
        rig.manager.rollback(&mut rig.plan).unwrap();
        assert_eq!(pool_words(&gpu, &rig.cache), before, "round {round}");

        let out = rig.step(&[(a, 2)]);
        rig.assert_right(&out, &[(a, 2 * round), (a, 2 * round + 1)]);
    }
}

/// Sequences come, grow and go, blocks change hands at once; returns all outputs.
fn churn(gpu: &Gpu, wait: bool) -> Vec<Vec<u32>> {
    let config = config().with_num_blocks(9).with_max_sequences(3);
    let mut rig = Rig::new(gpu, &DeviceProfile::of(&gpu.device), &config, 4);
    let mut talks: Vec<Talk> = (0..2).map(|tag| rig.talk(tag)).collect();
    let mut outputs = Vec::new();
    for round in 0..50 {
        // The older of two sequences leaves, and a new one takes its blocks while the device may still read them.
        let old = talks.remove(0);
        rig.manager.release(old.seq).unwrap();
        talks.push(rig.talk(10 + round));
        let requests = [(talks[0], 1), (talks[1], 9 + (round % 4) as u32)];
        let out = rig.submit(&requests);
        if wait {
            gpu.read::<f32>(&out).unwrap();
        }
        outputs.push(out);
    }
    outputs.iter().map(|out| bits(&gpu.read(out).unwrap())).collect()
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
    let mut rig = Rig::new(&gpu, &DeviceProfile::of(&gpu.device), &config, 4);
    let a = rig.talk(1);
    rig.step(&[(a, 24)]);
    let old: Vec<u32> = rig.manager.block_table(a.seq).unwrap().to_vec();
    rig.manager.release(a.seq).unwrap();
    let (b, c) = (rig.talk(2), rig.talk(3));
    assert_eq!(b.seq.index(), a.seq.index());
    // C takes most of what is left, some of A's blocks among it.
    rig.step(&[(c, 64)]);
    rig.step(&[(b, 8)]);
    let owned = rig.manager.block_table(c.seq).unwrap();
    assert!(old.iter().any(|block| owned.contains(block)), "no block changed hands");
    let out = rig.step(&[(b, 1)]);
    rig.assert_right(&out, &[(b, 8)]);
    // C's blocks are what they are where nobody else wrote.
    let mut fresh = Rig::new(&gpu, rig.cache.profile(), &config, 4);
    let (_, d) = (fresh.talk(2), fresh.talk(3));
    fresh.step(&[(d, 64)]);
    let words = |rig: &Rig, talk: Talk| -> BTreeMap<usize, Vec<u32>> {
        let pool = pool_words(&gpu, &rig.cache);
        let block = pool.len() / 4 / 20;
        let table = rig.manager.block_table(talk.seq).unwrap();
        let places = (0..4).flat_map(|part| table.iter().map(move |&id| (part, id as usize)));
        places.enumerate().map(|(at, (part, id))| (at, pool[(part * 20 + id) * block..][..block].to_vec())).collect()
    };
    assert!(words(&rig, c) == words(&fresh, d), "the neighbour's cache changed");
}

// P08, on the device: a refused step takes nothing, changes nothing, and nothing drifts.
#[test]
fn a_step_that_does_not_fit_changes_nothing_however_often_it_is_tried() {
    let Some(gpu) = gpu() else { return };
    let config = CacheConfig::new(1, 1, 8).with_num_blocks(4).with_max_seq_len(64).with_max_sequences(2);
    let mut rig = Rig::new(&gpu, &DeviceProfile::of(&gpu.device), &config, 1);
    for round in 0..1000 {
        let (a, b) = (rig.talk(1), rig.talk(2));
        let both = [(a.seq, 20)];
        rig.manager.reserve(&both, &mut rig.plan).unwrap();
        rig.manager.commit(&mut rig.plan).unwrap();
        let refused = rig.manager.reserve(&[(b.seq, 48)], &mut rig.plan);
        assert_eq!(refused, Err(ReserveError::OutOfBlocks { needed: 3, free: 2, total: 4 }));
        assert_eq!(rig.manager.num_free_blocks(), 2);
        rig.manager.reserve(&[(a.seq, 13)], &mut rig.plan).unwrap();
        rig.manager.commit(&mut rig.plan).unwrap();
        assert_eq!((rig.manager.seq_len(a.seq), rig.manager.seq_len(b.seq)), (Ok(33), Ok(0)));
        rig.manager.release(a.seq).unwrap();
        if round % 250 == 0 {
            let rows: Vec<_> = (0..32).map(|position| (b, position)).collect();
            let out = rig.step(&[(b, 32)]);
            rig.assert_right(&out, &rows);
        }
        rig.manager.release(b.seq).unwrap();
        assert_eq!(rig.manager.num_free_blocks(), 4);
    }
}

// R07, R09: nothing to append takes nothing; an old handle is no handle.
#[test]
fn empty_requests_take_no_block_and_stale_handles_are_refused() {
    let Some(gpu) = gpu() else { return };
    let mut rig = rig(&gpu);
    let a = rig.talk(1);
    for len in [0, 4, 5] {
        let have = rig.manager.seq_len(a.seq).unwrap();
        if len > have {
            rig.step(&[(a, len - have)]);
        }
        let (free, before) = (rig.manager.num_free_blocks(), pool_words(&gpu, &rig.cache));
        rig.reserve(&[(a, 0)]);
        assert_eq!((rig.plan.num_rows(), rig.plan.num_tokens(), rig.plan.updates().len()), (0, 0, 0));
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = rig.cache.begin_step(&mut encoder, &rig.plan).unwrap();
        assert_eq!((step.num_rows(), step.num_tokens()), (0, 0));
        gpu.submit(encoder);
        rig.manager.commit(&mut rig.plan).unwrap();
        assert_eq!((rig.manager.num_free_blocks(), rig.manager.seq_len(a.seq)), (free, Ok(len)));
        assert_eq!(pool_words(&gpu, &rig.cache), before);
    }
    rig.manager.release(a.seq).unwrap();
    let b = rig.talk(2);
    assert_eq!(b.seq.index(), a.seq.index());
    rig.step(&[(b, 3)]);
    let stale = ReserveError::StaleSequence { request: 0, seq: a.seq };
    assert_eq!(rig.manager.reserve(&[(a.seq, 1)], &mut rig.plan), Err(stale));
    assert_eq!(rig.manager.release(a.seq), Err(ManagerError::StaleSequence { seq: a.seq }));
    assert_eq!(rig.manager.block_table(a.seq), Err(ManagerError::StaleSequence { seq: a.seq }));
    let out = rig.step(&[(b, 1)]);
    rig.assert_right(&out, &[(b, 3)]);
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
    let mut rig = Rig::new(&gpu, &DeviceProfile::of(&gpu.device), &config, 1);
    let talk = rig.talk(1);
    let (mut sent, mut seen) = (Vec::new(), None);
    for jump in [4000, 1000, 3900] {
        rig.fill(&[(talk, jump)]);
        for _ in 0..20 {
            let position = rig.manager.seq_len(talk.seq).unwrap();
            let out = rig.step(&[(talk, 1)]);
            rig.assert_right(&out, &[(talk, position)]);
            sent.push(rig.plan.upload_bytes());
        }
        gpu.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        let now = allocations(&gpu.device);
        match &seen {
            None => seen = Some(now),
            Some(before) => assert_eq!(*before, now, "after {jump} more tokens"),
        }
    }
    // A header, and a position, a slot, a query tile, its member and a merge; two words more where a block begins.
    let step = 112 + 4 + 4 + 32 + 4 + 32;
    assert!(sent.iter().all(|bytes| [step, step + 8].contains(bytes)), "{sent:?}");
}
