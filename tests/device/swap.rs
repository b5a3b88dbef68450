//! Blocks out to host memory and back: bit for bit, in whatever head shards, and shared as they were.

use crate::common::block_id;
use crate::common::engine::{TestEngine, config, cut_by_heads, narrow, small_engine, words};
use crate::common::{gpu, pool_words};
use wgpu_paged_attention::blocks::BlockId;
use wgpu_paged_attention::blocks::{ManagerOptions, SeqId, SequenceRecord};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{ClearValue, DeviceError, GpuError, KvCache, SwapInError, SwapOut};
use wgpu_paged_attention::host::{HostBlocks, Side, distinct_blocks};
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;

fn swap_out(gpu: &Gpu, cache: &KvCache, blocks: &[BlockId]) -> HostBlocks {
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let out = cache.swap_out(&mut encoder, blocks).unwrap();
    gpu.submit(encoder);
    out.read().unwrap()
}

fn swap_in(gpu: &Gpu, cache: &KvCache, host: &HostBlocks, pairs: &[(BlockId, BlockId)]) {
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    cache.swap_in(&mut encoder, host, pairs).unwrap();
    gpu.submit(encoder);
}

fn records(engine: &TestEngine, seqs: &[SeqId]) -> Vec<SequenceRecord> {
    seqs.iter().map(|&seq| engine.manager.export_sequence(seq).unwrap()).collect()
}

#[test]
fn sequences_come_back_bit_for_bit_and_share_what_they_shared() {
    // P15, Q07
    let Some(gpu) = gpu() else { return };
    for format in [KvDtype::F16, KvDtype::Fp8, KvDtype::Int4] {
        let config = config(format, 64);
        let mut engine = small_engine(&gpu, &cut_by_heads(&gpu, &config), &config, &ManagerOptions::default());
        let a = engine.seq_of(&words(36));
        let b = engine.fork(a);
        engine.step(&[(b, &[1]), (a, &[2])]);
        let stays = engine.fork(a);
        let used = engine.used();
        let records = records(&engine, &[a, b]);
        let blocks = distinct_blocks(&records);
        assert_eq!(blocks.len(), 4);

        // Out; what overwrites the blocks is submitted later.
        let mut encoder = engine.encoder();
        let out = engine.cache.swap_out(&mut encoder, &blocks).unwrap();
        for seq in [a, b] {
            engine.manager.release(seq).unwrap();
        }
        gpu.submit(encoder);
        assert_eq!(engine.used(), 3, "the third sequence keeps its blocks");
        let free = blocks.iter().copied().filter(|&block| !engine.manager.block_table(stays).unwrap().contains(&block));
        engine.clear(&free.collect::<Vec<_>>(), ClearValue::Poison);
        let other = engine.seq_of(&words(100));
        let host = out.read().unwrap();
        assert_eq!(host.ids(), blocks);

        // And back, to other places.
        let mut encoder = engine.encoder();
        let seqs = engine.cache.swap_in_sequences(&mut encoder, &mut engine.manager, &records, &host).unwrap();
        gpu.submit(encoder);
        let [a, b] = seqs[..] else { panic!("two sequences") };
        let tables = [a, b].map(|seq| engine.manager.block_table(seq).unwrap().to_vec());
        assert_eq!(tables[0][..2], tables[1][..2], "{format}: nothing is shared any more");
        assert_ne!(tables[0][2], tables[1][2]);
        let back = swap_out(&gpu, &engine.cache, &distinct_blocks(&self::records(&engine, &[a, b])));
        for (record, table) in records.iter().zip(&tables) {
            for (old, new) in record.blocks.iter().zip(table) {
                assert!(host.block(old.unwrap()) == back.block(*new), "{format}: block {new} is not what it was");
            }
        }
        assert!(host.block(blocks[0]) != host.block(blocks[1]), "all blocks are alike");

        // They go on as if nothing had been.
        let seen = [a, b, stays].map(|seq| engine.look(seq, 5));
        for (tail, seen) in [2, 1, 2].into_iter().zip(&seen) {
            let alone = engine.seq_of(&words(36));
            engine.step(&[(alone, &[tail])]);
            assert_eq!(*seen, engine.look(alone, 5), "{format}");
            engine.manager.release(alone).unwrap();
        }
        [a, b, stays, other].into_iter().for_each(|seq| engine.manager.release(seq).unwrap());
        assert_eq!((engine.used(), used), (0, 4));
        engine.manager.check_invariants().unwrap();
    }
}

#[test]
fn the_host_sees_rows_where_the_written_layout_puts_them_whatever_the_segments() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::Int8, 64);
    let mut seen = Vec::new();
    for profile in [narrow(&gpu), cut_by_heads(&gpu, &config)] {
        let mut engine = small_engine(&gpu, &profile, &config, &ManagerOptions::default());
        let a = engine.seq_of(&words(40));
        // Named in any order, and twice.
        let mut blocks = engine.manager.block_table(a).unwrap().to_vec();
        blocks.reverse();
        blocks.push(blocks[0]);
        let host = swap_out(&gpu, &engine.cache, &blocks);
        let shape = *host.shape();
        let layout = engine.cache.layout();
        let head_shards = engine.cache.head_shards(1).unwrap();
        let head_shard = head_shards.iter().rfind(|head_shard| head_shard.first_head <= 1).unwrap();
        for (side, pool, row_bytes) in
            [(Side::K, &head_shard.k, layout.k_row_bytes()), (Side::V, &head_shard.v, layout.v_row_bytes())]
        {
            let pool: Vec<u8> = gpu.read(pool).unwrap();
            for token in [0_u32, 15] {
                let slot = blocks[1].get() * 16 + token;
                let row = layout.row_index(head_shard.num_heads, slot, 1 - head_shard.first_head) * row_bytes;
                let host_row = shape.head_offset(1, side, 1) + u64::from(token) * row_bytes;
                let block = host.block(blocks[1]).unwrap();
                let (row, host_row, len) = (row as usize, host_row as usize, row_bytes as usize);
                assert_eq!(block[host_row..host_row + len], pool[row..row + len], "{side:?} {token}");
            }
        }
        seen.push(host.bytes().to_vec());
    }
    assert!(seen[0] == seen[1]);
}

#[test]
fn blocks_move_between_caches_with_other_segments() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F32, 24);
    let layout = config.layout().unwrap();
    let mut one = small_engine(&gpu, &narrow(&gpu), &config, &ManagerOptions::default());
    let other = KvCache::with_profile(&gpu.device, &layout, cut_by_heads(&gpu, &config)).unwrap();
    one.seq_of(&words(100));
    let all: Vec<_> = (0..24).map(block_id).collect();
    let host = swap_out(&gpu, &one.cache, &all);
    let pairs: Vec<_> = all.iter().map(|&block| (block, block_id((block.get() * 7 + 3) % 24))).collect();
    swap_in(&gpu, &other, &host, &pairs);
    let moved = swap_out(&gpu, &other, &all);
    for &(old, new) in &pairs {
        assert!(host.block(old) == moved.block(new), "{old} is not {new}");
    }
    let wrong =
        pairs.iter().filter(|&&(old, new)| host.block(old) != moved.block(block_id((new.get() + 1) % 24))).count();
    assert!(wrong >= 6, "a wrong place would not be noticed");
}

#[test]
fn a_swap_says_when_it_is_there() {
    let Some(gpu) = gpu() else { return };
    let cache = KvCache::new(&gpu.device, &config(KvDtype::F16, 8).layout().unwrap()).unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let out: SwapOut = cache.swap_out(&mut encoder, &[block_id(3), block_id(1)]).unwrap();
    assert!(!out.is_ready());
    assert!(matches!(out.read(), Err(DeviceError::Pending)));
    gpu.submit(encoder);
    assert!(out.is_ready());
    assert_eq!((out.ids(), out.read().unwrap().ids()), (&[1, 3].map(block_id)[..], &[1, 3].map(block_id)[..]));

    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let dropped = cache.swap_out(&mut encoder, &[block_id(0)]).unwrap();
    drop(encoder);
    assert!(dropped.is_ready());
    assert!(matches!(dropped.read(), Err(DeviceError::NotSubmitted)));

    for at in 0..2 {
        // A copy past the end of its buffer, recorded before the swap or after it: wgpu refuses all that the encoder holds.
        let [short, long] = [4, 64].map(|words| gpu.storage("copied", &vec![0_u32; words]));
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let mut refused = None;
        for step in 0..2 {
            if step == at {
                encoder.copy_buffer_to_buffer(&long, 0, &short, 0, long.size());
            } else {
                refused = Some(cache.swap_out(&mut encoder, &[block_id(0)]).unwrap());
            }
        }
        let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
        gpu.queue.submit([encoder.finish()]);
        gpu.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        assert!(pollster::block_on(scope.pop()).is_some(), "the encoder is not refused");
        assert!(matches!(refused.unwrap().read(), Err(DeviceError::NotSubmitted)), "{at}");
    }

    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let none = cache.swap_out(&mut encoder, &[]).unwrap();
    assert!(none.read().unwrap().bytes().is_empty());
}

#[test]
fn swaps_that_cannot_be_are_refused_and_nothing_changes() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F16, 8);
    let mut engine = small_engine(&gpu, &narrow(&gpu), &config, &ManagerOptions::default());
    let a = engine.seq_of(&words(40));
    let records = records(&engine, &[a]);
    let host = swap_out(&gpu, &engine.cache, &distinct_blocks(&records));
    let before = pool_words(&gpu, &engine.cache);
    let (free, held) = (engine.manager.num_free_blocks(), host.ids()[0]);
    let cache = &engine.cache;
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let error = cache.swap_out(&mut encoder, &[1, 8].map(block_id)).unwrap_err();
    assert!(error.to_string().contains("[1] is block 8, but there are 8"), "{error}");
    let mut refused = |pairs: &[(u32, u32)]| {
        let pairs: Vec<_> = pairs.iter().map(|&(old, new)| (block_id(old), block_id(new))).collect();
        cache.swap_in(&mut encoder, &host, &pairs).unwrap_err()
    };
    let error = refused(&[(held.get(), 8)]);
    assert!(error.to_string().contains("[0] is block 8, but there are 8"), "{error}");
    let error = refused(&[(held.get(), 4), (77, 5)]);
    assert!(error.to_string().contains("[1] asks for what block 77 held"), "{error}");
    let error = refused(&[(held.get(), 4), (host.ids()[1].get(), 4)]);
    assert!(error.to_string().contains("[1] writes block 4"), "{error}");
    for (field, config) in [
        ("kv_dtype", config.clone().with_kv_dtype(KvDtype::Bf16)),
        ("v_head_dim", config.clone().with_v_head_dim(16)),
        ("block_size", config.clone().with_block_size(8)),
    ] {
        let other = KvCache::new(&gpu.device, &config.layout().unwrap()).unwrap();
        let error = other.swap_in(&mut encoder, &host, &[(held, block_id(0))]).unwrap_err();
        assert!(error.to_string().contains(&format!("blocks of {field} ")), "{error}");
    }

    // With a manager: too few blocks, a block that was not swapped out, a manager of another cache.
    let again = vec![
        records[0].clone(),
        SequenceRecord {
            blocks: vec![Some(block_id(50)), Some(block_id(51)), Some(block_id(52))],
            ..records[0].clone()
        },
    ];
    let error = cache.swap_in_sequences(&mut encoder, &mut engine.manager, &again, &host).unwrap_err();
    assert!(matches!(error, SwapInError::Manager(_)), "{error}");
    let error = cache.swap_in_sequences(&mut encoder, &mut engine.manager, &again[1..], &host).unwrap_err();
    assert!(matches!(error, SwapInError::Gpu(GpuError::Argument(_))), "{error}");
    let other = KvCache::new(&gpu.device, &config.with_num_blocks(3).layout().unwrap()).unwrap();
    let error = other.swap_in_sequences(&mut encoder, &mut engine.manager, &records, &host).unwrap_err();
    assert!(matches!(error, SwapInError::Gpu(GpuError::Argument(ref error)) if error.name == "manager"), "{error}");
    gpu.submit(encoder);
    assert_eq!((engine.manager.num_free_blocks(), engine.manager.num_sequences()), (free, 1));
    engine.manager.check_invariants().unwrap();
    assert!(before == pool_words(&gpu, &engine.cache));
}
