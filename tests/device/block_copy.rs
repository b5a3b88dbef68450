//! Whole blocks on the device: copied before the first append, overwritten before a new owner can see what they held.

use crate::common::block_id;
use crate::common::engine::{TestEngine, config, cut_by_heads, narrow, small_engine, words};
use crate::common::{fill_pools, gpu, pool_words};
use wgpu_paged_attention::blocks::BlockId;
use wgpu_paged_attention::blocks::ManagerOptions;
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{ClearValue, DeviceProfile, KvCache};
use wgpu_paged_attention::plan::BlockCopy;
use wgpu_paged_attention::testkit::{Gpu, changed};
use wgpu_paged_attention::wgpu;

/// A word that tells where it stands, in every pool of the cache.
fn number_pools(gpu: &Gpu, cache: &KvCache) {
    let mut next = 0_u32;
    for layer in 0..cache.layout().num_layers() {
        for head_shard in cache.head_shards(layer).unwrap() {
            for pool in [&head_shard.k, &head_shard.v] {
                let words: Vec<u32> = (next..).take(pool.size() as usize / 4).collect();
                next += words.len() as u32;
                gpu.queue.write_buffer(pool, 0, bytemuck::cast_slice(&words));
            }
        }
    }
}

/// Changes the blocks of every pool in `words`, which are those of all pools.
fn edit(cache: &KvCache, words: &mut [u32], change: impl Fn(&mut [u32], usize)) {
    let mut start = 0;
    for layer in 0..cache.layout().num_layers() {
        for head_shard in cache.head_shards(layer).unwrap() {
            for pool in [&head_shard.k, &head_shard.v] {
                let len = pool.size() as usize / 4;
                change(&mut words[start..start + len], len / cache.layout().num_blocks() as usize);
                start += len;
            }
        }
    }
}

fn copies(pairs: &[(u32, u32)]) -> Vec<BlockCopy> {
    pairs.iter().map(|&(source, target)| BlockCopy { source: block_id(source), target: block_id(target) }).collect()
}

fn model_copies(cache: &KvCache, words: &[u32], pairs: &[(u32, u32)]) -> Vec<u32> {
    let mut words = words.to_vec();
    edit(cache, &mut words, |pool, block| {
        for &(source, target) in pairs {
            let (source, target) = (source as usize * block, target as usize * block);
            pool.copy_within(source..source + block, target);
        }
    });
    words
}

fn model_fill(cache: &KvCache, words: &[u32], blocks: &[BlockId], word: u32) -> Vec<u32> {
    let mut words = words.to_vec();
    edit(cache, &mut words, |pool, block| {
        blocks.iter().map(|at| at.get() as usize).for_each(|at| pool[at * block..(at + 1) * block].fill(word));
    });
    words
}

/// One head shard or three, and a grid that must be folded.
fn profiles(gpu: &Gpu, config: &CacheConfig) -> [DeviceProfile; 3] {
    let own = narrow(gpu);
    [own.clone(), cut_by_heads(gpu, config), changed(&own, |it| it.max_workgroups_per_dim = 3)]
}

#[test]
fn copies_and_fills_change_these_blocks_in_every_layer_and_segment_and_no_others() {
    let Some(gpu) = gpu() else { return };
    for format in [KvDtype::F32, KvDtype::Int8, KvDtype::Int4] {
        // Blocks of a size that no workgroup divides.
        let config = config(format, 9).with_block_size(3);
        for profile in profiles(&gpu, &config) {
            let cache = KvCache::with_profile(&gpu.device, &config.layout().unwrap(), profile).unwrap();
            cache.warm_up().unwrap();
            number_pools(&gpu, &cache);
            let before = pool_words(&gpu, &cache);
            let pairs = [(1, 5), (1, 8), (7, 0)];
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            cache.copy_blocks(&mut encoder, &copies(&pairs)).unwrap();
            gpu.submit(encoder);
            let copied = pool_words(&gpu, &cache);
            assert!(copied == model_copies(&cache, &before, &pairs), "{format}: a wrong copy");
            assert!(copied != model_copies(&cache, &before, &[(1, 5), (1, 8), (7, 2)]), "a wrong model passed");

            for (fill, word) in [(ClearValue::Poison, u32::MAX), (ClearValue::Zeros, 0)] {
                let blocks = [8, 2, 2].map(block_id);
                let mut encoder = gpu.device.create_command_encoder(&Default::default());
                cache.clear_blocks(&mut encoder, &blocks, fill).unwrap();
                gpu.submit(encoder);
                let filled = pool_words(&gpu, &cache);
                assert!(filled == model_fill(&cache, &copied, &blocks, word), "{format}: a wrong fill");
                assert!(filled != model_fill(&cache, &copied, &[block_id(8)], word), "a wrong model passed");
            }
        }
    }
}

#[test]
fn a_fork_that_is_written_gets_a_copy_and_both_go_on_as_if_they_had_been_alone() {
    // P01, Q07, W05
    let Some(gpu) = gpu() else { return };
    for format in [KvDtype::F16, KvDtype::Int8, KvDtype::Int4] {
        let config = config(format, 64);
        let mut engine = small_engine(&gpu, &cut_by_heads(&gpu, &config), &config, &ManagerOptions::default());
        assert_eq!(engine.cache.head_shards(0).unwrap().len(), 3);
        let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let a = engine.seq_of(&words(20));
        let b = engine.fork(a);
        assert_eq!(engine.used(), 2);
        engine.step(&[(b, &[1])]);
        assert_eq!((engine.used(), engine.plan.copies().len()), (3, 1));
        let copy = engine.plan.copies()[0];
        engine.step(&[(a, &[2])]);
        // The last owner writes in place.
        assert_eq!((engine.used(), engine.plan.copies().len()), (3, 0));
        assert!(pollster::block_on(scope.pop()).is_none());

        // Q07: the tokens that both have are the same bits.
        let row_of = |engine: &TestEngine, block: BlockId| -> Vec<u32> {
            let head_shard = &engine.cache.head_shards(1).unwrap()[2];
            let pool: Vec<u32> = gpu.read(&head_shard.k).unwrap();
            let block_words = pool.len() / 64;
            pool[block.get() as usize * block_words..][..4 * block_words / 16].to_vec()
        };
        assert_eq!(row_of(&engine, copy.source), row_of(&engine, copy.target), "{format}");

        let seen = [engine.look(a, 3), engine.look(b, 3)];
        assert_ne!(seen[0], seen[1]);
        engine.manager.release(a).unwrap();
        let again = engine.look(b, 4);
        for (last, bits) in [(2, &seen[0]), (1, &seen[1])] {
            let alone = engine.seq_of(&words(20));
            engine.step(&[(alone, &[last])]);
            assert_eq!(*bits, engine.look(alone, 3), "{format}: not as alone");
            if last == 1 {
                assert_eq!(again, engine.look(alone, 4), "{format}: a freed block was needed");
            }
            engine.manager.release(alone).unwrap();
        }
        engine.manager.release(b).unwrap();
        assert_eq!(engine.used(), 0);
        engine.manager.check_invariants().unwrap();
    }
}

#[test]
fn a_cut_into_a_shared_block_leaves_the_other_owner_alone() {
    // P11
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F16, 10);
    let mut engine = small_engine(&gpu, &narrow(&gpu), &config, &ManagerOptions::default());
    let a = engine.seq_of(&words(32));
    let b = engine.fork(a);
    engine.truncate(b, 20);
    engine.step(&[(b, &[7])]);
    assert_eq!((engine.used(), engine.plan.copies().len()), (3, 1));
    let (seen_a, seen_b) = (engine.look(a, 8), engine.look(b, 8));
    let alone = engine.seq_of(&words(32));
    assert_eq!(seen_a, engine.look(alone, 8));
    let alone = engine.seq_of(&words(20));
    engine.step(&[(alone, &[7])]);
    assert_eq!(seen_b, engine.look(alone, 8));
}

#[test]
fn steps_with_copies_may_share_a_submit() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F16, 12);
    let mut engine = small_engine(&gpu, &DeviceProfile::of(&gpu.device), &config, &ManagerOptions::default());
    let a = engine.seq_of(&words(20));
    let (b, c) = (engine.fork(a), engine.fork(a));
    let mut encoder = engine.encoder();
    engine.record_step(&mut encoder, &[(b, &[1]), (a, &[2])]);
    let d = engine.fork(b);
    engine.record_step(&mut encoder, &[(d, &[3]), (c, &[4])]);
    assert!(!engine.plan.copies().is_empty());
    gpu.submit(encoder);
    for (story, tail) in [(a, &[2][..]), (b, &[1]), (c, &[4]), (d, &[1, 3])] {
        let seen = engine.look(story, 9);
        let alone = engine.seq_of(&words(20));
        tail.iter().for_each(|&word| drop(engine.step(&[(alone, &[word])])));
        assert_eq!(seen, engine.look(alone, 9), "{tail:?}");
        engine.manager.release(alone).unwrap();
    }
}

#[test]
fn a_copy_that_did_not_happen_is_noticed() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F16, 8);
    let mut engine = small_engine(&gpu, &narrow(&gpu), &config, &ManagerOptions::default());
    let a = engine.seq_of(&words(20));
    let b = engine.fork(a);
    engine.step(&[(b, &[1])]);
    let target = engine.plan.copies()[0].target;
    let right = engine.look(b, 3);
    engine.clear(&[target], ClearValue::Zeros);
    engine.truncate(b, 21);
    assert_ne!(right, engine.look(b, 3));
}

#[test]
fn lists_that_make_no_sense_are_refused_and_nothing_is_recorded() {
    let Some(gpu) = gpu() else { return };
    let cache = KvCache::new(&gpu.device, &config(KvDtype::F16, 8).layout().unwrap()).unwrap();
    fill_pools(&gpu, &cache, 7);
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let mut refused = |pairs: &[(u32, u32)]| cache.copy_blocks(&mut encoder, &copies(pairs)).unwrap_err();
    // R01
    for block in [8, 1000, 1 << 26, (1 << 31) - 1] {
        for pairs in [[(0, 1), (block, 2)], [(0, 1), (2, block)]] {
            let error = refused(&pairs);
            let named =
                error.to_string().starts_with("copies[1] is block") && error.to_string().contains("there are 8");
            assert!(named && error.to_string().contains(&block.to_string()), "{error}");
        }
    }
    // chains, either way round, a block written twice, and one onto itself
    for pairs in [[(0, 1), (1, 2)], [(1, 2), (0, 1)], [(0, 3), (1, 3)], [(0, 1), (4, 4)]] {
        let error = refused(&pairs);
        assert!(error.to_string().contains("which another entry reads or writes"), "{pairs:?}: {error}");
    }
    let error =
        cache.clear_blocks(&mut encoder, &[block_id(1), block_id(2), block_id(8)], ClearValue::Zeros).unwrap_err();
    assert!(error.to_string().starts_with("blocks[2] is block 8"), "{error}");
    cache.copy_blocks(&mut encoder, &[]).unwrap();
    cache.clear_blocks(&mut encoder, &[], ClearValue::Poison).unwrap();
    gpu.submit(encoder);
    assert!(pool_words(&gpu, &cache).iter().all(|&word| word == 7));
}

#[test]
fn released_blocks_are_cleared_and_fresh_ones_are_clear_before_they_are_written() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F16, 64);
    let options = ManagerOptions::default().with_clear_freed(true);
    let mut engine = small_engine(&gpu, &cut_by_heads(&gpu, &config), &config, &options);
    let holds = |engine: &TestEngine, blocks: &[BlockId], word: u32| {
        let all = pool_words(&gpu, &engine.cache);
        all == model_fill(&engine.cache, &all, blocks, word)
    };

    // Released, reported once, cleared.
    let a = engine.seq_of(&words(32));
    let blocks = engine.manager.block_table(a).unwrap().to_vec();
    assert!(!holds(&engine, &blocks, 0));
    engine.manager.release(a).unwrap();
    let mut clears = Vec::new();
    engine.manager.take_clears(&mut clears);
    engine.clear(&clears, ClearValue::Zeros);
    assert!(blocks.iter().all(|block| clears.contains(block)));
    assert!(holds(&engine, &blocks, 0));

    // Released and handed out again before anyone cleared them: the step itself does it, here with poison.
    let mut all = Vec::new();
    while engine.manager.num_free_blocks() > 0 {
        all.push(engine.seq_of(&words(128)));
    }
    let a = all.swap_remove(3);
    engine.manager.release(a).unwrap();
    engine.cache.set_clear_value(ClearValue::Poison);
    let b = engine.seq_of(&words(1));
    let [block] = engine.manager.block_table(b).unwrap() else { panic!("one block") };
    assert_eq!(engine.plan.clears(), [*block]);
    let pool: Vec<u32> = gpu.read(&engine.cache.head_shards(1).unwrap()[1].k).unwrap();
    let pool_block = &pool[block.get() as usize * pool.len() / 64..][..pool.len() / 64];
    let row = pool_block.len() / 16;
    assert!(pool_block[..row].iter().all(|&word| word != u32::MAX), "the clear came after the append");
    assert!(pool_block[row..].iter().all(|&word| word == u32::MAX), "old data is left");
    // And what is poison reaches no output.
    assert!(engine.look(b, 5).iter().all(|&bits| f32::from_bits(bits).is_finite()));
}
