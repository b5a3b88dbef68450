//! Pools that start small, grow and shrink: what they hold stays, to the bit, and takes one layer's memory more at the most.

use wgpu_paged_attention::blocks::{ManagerOptions, SeqId};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::error::{ManagerError, PoolError};
use wgpu_paged_attention::gpu::{AttentionSpec, ClearValue, DeviceProfile, KvCache};
use wgpu_paged_attention::host::distinct_blocks;
use wgpu_paged_attention::testkit::{Gpu, changed};
use wgpu_paged_attention::wgpu;

use crate::common::engine::{TestEngine, narrow, words};
use crate::common::{bits, block_id, gpu, pool_words};

const SIZES: [u32; 4] = [1000, 4000, 20_000, 100_000];

/// Two layers of three narrow heads, in blocks of 4.
pub fn config(num_blocks: u32, max_num_blocks: u32) -> CacheConfig {
    CacheConfig::new(2, 3, 8)
        .with_v_head_dim(6)
        .with_kv_dtype(KvDtype::F16)
        .with_block_size(4)
        .with_num_blocks(num_blocks)
        .with_max_num_blocks(max_num_blocks)
        .with_max_seq_len(1200)
        .with_max_sequences(8)
}

/// A profile whose bindings hold two heads of the largest pool: then shards have two heads and one.
fn two_shards(gpu: &Gpu, max_num_blocks: u32) -> DeviceProfile {
    let largest = config(max_num_blocks, max_num_blocks).layout().unwrap();
    changed(&narrow(gpu), |it| it.max_binding_bytes = 2 * largest.k_shard_bytes(1))
}

pub fn engine(gpu: &Gpu, num_blocks: u32, max_num_blocks: u32) -> TestEngine {
    let options = ManagerOptions::default().with_clear_freed(true);
    let profile = two_shards(gpu, max_num_blocks);
    let engine = TestEngine::new(gpu, &profile, &config(num_blocks, max_num_blocks), &options, AttentionSpec::new(6));
    assert_eq!(engine.cache.head_shards(1).unwrap().len(), 2);
    engine
}

/// Gives all layers another size, each in a submit of its own.
fn resize_cache(engine: &mut TestEngine, num_blocks: u32) {
    for layer in 0..engine.cache.layout().num_layers() {
        let mut encoder = engine.encoder();
        engine.cache.resize_layer(&mut encoder, layer, num_blocks).unwrap();
        engine.gpu.submit(encoder);
    }
    assert_eq!(engine.cache.layout().num_blocks(), num_blocks);
}

/// An engine whose pool grows beside one whose pool is large from the start.
struct Pair {
    engines: [TestEngine; 2],
    seqs: [Vec<SeqId>; 2],
    same: bool,
}

impl Pair {
    /// The same tokens for the sequences at these places, and whether the outputs are the same.
    fn step(&mut self, requests: &[(usize, &[u32])]) {
        let [small, large] = [0, 1].map(|at| {
            let named: Vec<_> = requests.iter().map(|&(seq, tokens)| (self.seqs[at][seq], tokens)).collect();
            bits(&self.engines[at].step(&named))
        });
        self.same &= small == large;
    }

    fn decode(&mut self, token: u32) {
        let tokens = [token];
        let all: Vec<(usize, &[u32])> = (0..self.seqs[0].len()).map(|seq| (seq, &tokens[..])).collect();
        self.step(&all);
    }

    /// A new sequence, a fork of the first one and some steps.
    fn work(&mut self, stage: u32) {
        for (engine, seqs) in self.engines.iter_mut().zip(&mut self.seqs) {
            seqs.push(engine.seq());
            if stage > 0 {
                seqs.push(engine.fork(seqs[0]));
            }
        }
        let new = self.seqs[0].len() - if stage > 0 { 2 } else { 1 };
        self.step(&[(new, &words(601 + 100 * stage))]);
        (0..3).for_each(|at| self.decode(10 * stage + at));
        for (engine, seqs) in self.engines.iter_mut().zip(&mut self.seqs) {
            engine.truncate(seqs[new], 590);
            if stage > 0 {
                engine.manager.release(seqs.pop().unwrap()).unwrap();
            }
        }
        self.decode(stage);
    }

    /// The highest block of the growing engine's sequences.
    fn highest(&self) -> u32 {
        let tables = self.seqs[0].iter().flat_map(|&seq| self.engines[0].manager.block_table(seq).unwrap());
        tables.map(|block| block.get()).max().unwrap()
    }
}

/// Grows in steps and shrinks again, beside a pool that was made large; whether all outputs were equal to the bit. A block
/// that is in use is `lost` on the way, if so wanted.
fn grows_as_large(lost: bool) -> Option<bool> {
    let gpu = gpu()?;
    let largest = SIZES[SIZES.len() - 1];
    let engines = [engine(&gpu, SIZES[0], largest), engine(&gpu, largest, largest)];
    let mut pair = Pair { engines, seqs: Default::default(), same: true };
    for (stage, &num_blocks) in (0..).zip(&SIZES) {
        let before = pair.engines[0].manager.num_blocks();
        resize_cache(&mut pair.engines[0], num_blocks);
        if lost && stage == 2 {
            pair.engines[0].clear(&[block_id(pair.highest())], ClearValue::Zeros);
        }
        pair.engines[0].manager.resize(num_blocks).unwrap();
        pair.work(stage);
        pair.engines[0].manager.check_invariants().unwrap();
        assert!(num_blocks == before || pair.highest() >= before, "no new block is in use");
    }
    shrink(&mut pair);
    Some(pair.same)
}

/// Swaps the sequences out, whose new tokens lie in the new blocks, shrinks and takes them back; then resizes around
/// them.
fn shrink(pair: &mut Pair) {
    let engine = &mut pair.engines[0];
    let (last, num_blocks) = (pair.seqs[0].split_off(0), 1200);
    let records: Vec<_> = last.iter().map(|&seq| engine.manager.export_sequence(seq).unwrap()).collect();
    let mut encoder = engine.encoder();
    let out = engine.cache.swap_out(&mut encoder, &distinct_blocks(&records)).unwrap();
    engine.gpu.submit(encoder);
    let host = out.read().unwrap();
    let block = block_id(pair.engines[0].manager.min_num_blocks() - 1);
    let engine = &mut pair.engines[0];
    let error = PoolError::TailInUse { num_blocks, block, least: block.get() + 1 };
    assert_eq!(engine.manager.resize(num_blocks), Err(error.into()));
    for seq in last {
        engine.manager.release(seq).unwrap();
    }
    assert_eq!(engine.manager.min_num_blocks(), 1);
    engine.manager.resize(num_blocks).unwrap();
    resize_cache(engine, num_blocks);
    let mut encoder = engine.encoder();
    let back = engine.cache.swap_in_sequences(&mut encoder, &mut engine.manager, &records, &host).unwrap();
    engine.gpu.submit(encoder);
    pair.seqs[0].extend(back);
    (0..3).for_each(|at| pair.decode(90 + at));
    for num_blocks in [1300, 1200, 1201] {
        let engine = &mut pair.engines[0];
        resize_cache(engine, num_blocks.max(engine.manager.num_blocks()));
        engine.manager.resize(num_blocks).unwrap();
        resize_cache(engine, num_blocks);
        assert!(engine.manager.min_num_blocks() > 600);
        if num_blocks < 1300 {
            pair.decode(num_blocks);
        }
    }
}

#[test]
fn a_pool_that_grew_in_steps_gives_the_bits_of_one_that_was_made_large() {
    let Some(same) = grows_as_large(false) else { return };
    assert!(same);
}

#[test]
fn a_block_that_is_lost_on_the_way_is_noticed() {
    let Some(same) = grows_as_large(true) else { return };
    assert!(!same);
}

#[test]
fn a_size_that_is_refused_leaves_the_cache_as_it_was() {
    let Some(gpu) = gpu() else { return };
    let mut engine = engine(&gpu, 300, 500);
    let seq = engine.seq_of(&words(30));
    let before = pool_words(&gpu, &engine.cache);
    let mut encoder = engine.encoder();
    for (layer, num_blocks, error) in [
        (2, 400, "layer 2 does not exist; the cache has 2"),
        (0, 501, "num_blocks is 501, outside 1..=500; make the cache with a larger max_num_blocks"),
        (0, 0, "num_blocks is 0, outside 1..=500; make the cache with a larger max_num_blocks"),
    ] {
        assert_eq!(engine.cache.resize_layer(&mut encoder, layer, num_blocks).unwrap_err().to_string(), error);
    }
    let error = ManagerError::Pool(PoolError::PoolSize { num_blocks: 501, limit: 500 });
    assert_eq!(engine.manager.resize(501), Err(error));
    assert_eq!(
        error.to_string(),
        "a pool of 501 blocks is outside 1..=500; make the cache with a larger max_num_blocks"
    );
    gpu.submit(encoder);
    assert_eq!((engine.cache.layout().num_blocks(), engine.manager.num_blocks()), (300, 300));
    assert_eq!(pool_words(&gpu, &engine.cache), before);

    // A layer that has grown alone serves as before, and the manager must not go ahead.
    let mut encoder = engine.encoder();
    engine.cache.resize_layer(&mut encoder, 1, 400).unwrap();
    gpu.submit(encoder);
    assert_eq!(engine.cache.layout().num_blocks(), 300);
    engine.step_right(&[(seq, &[1])]);
    engine.manager.resize(400).unwrap();
    engine.reserve(&[(seq, &[2])]);
    let mut encoder = engine.encoder();
    let error = engine.cache.begin_step(&mut encoder, &engine.plan).unwrap_err().to_string();
    assert!(error.contains("num_blocks is 400, while that of this one is 300"), "{error}");
    engine.manager.rollback(&mut engine.plan).unwrap();
    engine.cache.resize_layer(&mut encoder, 0, 400).unwrap();
    gpu.submit(encoder);
    engine.step_right(&[(seq, &[2])]);
}

/// Bytes of all pools that the device holds, where the back end keeps a list.
fn pool_bytes(device: &wgpu::Device) -> Option<u64> {
    let allocations = device.generate_allocator_report()?.allocations;
    let pools = allocations.iter().filter(|it| it.name.starts_with("paged.k[") || it.name.starts_with("paged.v["));
    Some(pools.map(|it| it.size).sum())
}

#[test]
fn growth_takes_one_layer_more_at_the_most() {
    let Some(gpu) = gpu() else { return };
    let layout = config(1000, 8000).with_num_layers(5).layout().unwrap();
    let mut cache = KvCache::new(&gpu.device, &layout).unwrap();
    let Some(before) = pool_bytes(&gpu.device) else { return };
    let (old, new) = (before / 5, 8 * before / 5);
    for layer in 0..5 {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        cache.resize_layer(&mut encoder, layer, 8000).unwrap();
        let now = pool_bytes(&gpu.device).unwrap();
        let most = u64::from(layer + 1) * new + u64::from(5 - layer) * old;
        assert!(now <= most + most / 50, "{now} bytes in layer {layer}, {most} were allowed");
        gpu.submit(encoder);
    }
    gpu.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
    let now = pool_bytes(&gpu.device).unwrap();
    assert!(now <= 5 * new + new / 50, "{now} bytes in the end, {} were allowed", 5 * new);
}
