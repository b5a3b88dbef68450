//! What the host core costs: blocks, and the planning of a decode step.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use wgpu_paged_attention::blocks::{BlockId, BlockPool, CacheManager, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::plan::{Schedule, StepPlan};

/// Blocks that are handed out before the first of them is freed, as a full batch would.
const HELD: usize = 4096;

/// Allocates every block and frees all of them in an order without a pattern.
///
/// The free list then jumps about in memory like that of a server that has run for days.
fn shuffle(pool: &mut BlockPool) {
    let mut blocks: Vec<BlockId> = std::iter::from_fn(|| pool.allocate().ok()).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..blocks.len()).rev() {
        // xorshift: any order will do, as long as the hardware cannot foresee it.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        blocks.swap(last, (state % (last as u64 + 1)) as usize);
    }
    for block in blocks {
        pool.free(block).expect("it was allocated above");
    }
}

/// `HELD` allocations, then as many frees: one iteration is one of each.
fn cycle(pool: &mut BlockPool, held: &mut [BlockId], iterations: u64) -> Duration {
    let start = Instant::now();
    let mut left = iterations;
    while left > 0 {
        let batch = &mut held[..left.min(HELD as u64) as usize];
        for place in batch.iter_mut() {
            *place = pool.allocate().expect("the pool is larger than a batch");
        }
        for &block in batch.iter() {
            black_box(pool.free(block).expect("it was allocated above"));
        }
        left -= batch.len() as u64;
    }
    start.elapsed()
}

fn blocks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocate_free");
    for num_blocks in [1_000_000, 10_000_000] {
        let mut pool = BlockPool::new(num_blocks).expect("the pool fits into memory");
        let mut held = vec![BlockId::MAX; HELD];
        for order in ["sequential", "shuffled"] {
            if order == "shuffled" {
                shuffle(&mut pool);
            }
            group.bench_function(BenchmarkId::new(order, num_blocks), |bencher| {
                bencher.iter_custom(|iterations| cycle(&mut pool, &mut held, iterations));
            });
        }
    }
    group.finish();
}

/// A batch in the middle of decoding: every sequence has `context` tokens and room for `more`.
fn decoding(num_seqs: u32, context: u32, more: u32) -> (CacheManager, Vec<(SeqId, u32)>, StepPlan) {
    let layout = CacheConfig::new(32, 8, 128)
        .with_max_seq_len(context + more)
        .with_max_sequences(num_seqs)
        .with_num_blocks(num_seqs * (context + more).div_ceil(16))
        .layout()
        .expect("the configuration is valid");
    let mut cache = CacheManager::new(&layout).expect("the tables fit into memory");
    let mut plan = StepPlan::new(Schedule::default());
    let batch: Vec<(SeqId, u32)> =
        (0..num_seqs).map(|_| (cache.create_sequence().expect("there is a row for each"), 1)).collect();
    for &(seq, _) in &batch {
        cache.reserve(&[(seq, context)], &mut plan).expect("the pool is large enough");
        cache.commit(&mut plan).expect("the step is open");
    }
    (cache, batch, plan)
}

/// Steps between two batches that start anew.
const STEPS: u64 = 1024;

/// Decoding from 4,096 tokens on: every 16th step needs a block for each sequence.
fn decode(iterations: u64) -> Duration {
    let mut words = Vec::new();
    let mut elapsed = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let (mut cache, batch, mut plan) = decoding(256, 4096, STEPS as u32);
        let steps = left.min(STEPS);
        let start = Instant::now();
        for _ in 0..steps {
            cache.reserve(&batch, &mut plan).expect("the pool is large enough");
            plan.encode(&mut words);
            black_box(&words);
            cache.commit(&mut plan).expect("the step is open");
        }
        elapsed += start.elapsed();
        left -= steps;
    }
    elapsed
}

fn planning(criterion: &mut Criterion) {
    for context in [1024, 4096, 32_768] {
        let upload = |context| {
            let (mut cache, batch, mut plan) = decoding(256, context, 1);
            cache.reserve(&batch, &mut plan).expect("the pool is large enough");
            plan.upload_bytes()
        };
        println!(
            "upload of a decode step, 256 x {context}: {} bytes, {} where all begin a block",
            upload(context + 1),
            upload(context)
        );
    }
    let mut group = criterion.benchmark_group("decode_step");
    group.bench_function("reserve_encode_commit/256x4096", |bencher| {
        bencher.iter_custom(decode);
    });
    // Rolling back puts the same step before every iteration: the one that takes a block for each sequence.
    let (mut cache, batch, mut plan) = decoding(256, 4096, 1);
    let mut words = Vec::new();
    group.bench_function("reserve_encode_rollback/256x4096_new_blocks", |bencher| {
        bencher.iter(|| {
            cache.reserve(&batch, &mut plan).expect("the pool is large enough");
            plan.encode(&mut words);
            black_box(&words);
            cache.rollback(&mut plan).expect("the step is open");
        });
    });
    group.finish();
}

criterion_group!(benches, blocks, planning);
criterion_main!(benches);
