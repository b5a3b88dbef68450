//! What the host core costs: blocks, and the planning of a decode step.

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use wgpu_paged_attention::blocks::{BlockId, BlockPool, CacheManager, Domain, ManagerOptions, SeqId, sha256};
use wgpu_paged_attention::config::{CacheConfig, LayerKind};
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

/// Blocks of a hit: a prompt of 4,096 tokens.
const HIT: usize = 256;

/// Takes blocks out of the middle of the queue, as hits of the prefix cache do, and frees them again. A hit's blocks lie
/// anywhere; whose they are is not part of what is timed.
fn touch(pool: &mut BlockPool, iterations: u64) -> Duration {
    let (num_blocks, mut state) = (u64::from(pool.num_blocks()), 1_u64);
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        BlockId::new((((state >> 32) * num_blocks) >> 32) as u32).expect("below the number of blocks")
    };
    let (mut elapsed, mut left) = (Duration::ZERO, iterations);
    while left > 0 {
        let hit: Vec<BlockId> = (0..left.min(HIT as u64)).map(|_| random()).collect();
        let start = Instant::now();
        pool.touch(hit.iter().copied()).expect("blocks of this pool");
        for &block in &hit {
            pool.free(block).expect("it was touched above");
        }
        elapsed += start.elapsed();
        left -= hit.len() as u64;
    }
    elapsed
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
        group.bench_function(BenchmarkId::new("touch_free", num_blocks), |bencher| {
            bencher.iter_custom(|iterations| touch(&mut pool, iterations));
        });
    }
    group.finish();
}

/// A batch in the middle of decoding: every sequence has `context` tokens and room for `more`.
fn decoding(num_seqs: u32, context: u32, more: u32) -> (CacheManager, Vec<(SeqId, u32)>, StepPlan) {
    decoding_in(&CacheConfig::new(32, 8, 128), num_seqs, context, more)
}

/// The same in a cache of these layers, which may form groups.
fn decoding_in(
    config: &CacheConfig,
    num_seqs: u32,
    context: u32,
    more: u32,
) -> (CacheManager, Vec<(SeqId, u32)>, StepPlan) {
    let config = config.clone().with_max_seq_len(context + more).with_max_sequences(num_seqs).with_num_blocks(1);
    let groups = config.layout().expect("the configuration is valid").num_groups() as u32;
    let blocks = groups * num_seqs * (context + more).div_ceil(16);
    let layout = config.with_num_blocks(blocks).layout().expect("the configuration is valid");
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
    decode_in(&CacheConfig::new(32, 8, 128), iterations)
}

/// The same in a cache of these layers. The words of every group are encoded.
fn decode_in(config: &CacheConfig, iterations: u64) -> Duration {
    let mut words = Vec::new();
    let mut elapsed = Duration::ZERO;
    let mut left = iterations;
    while left > 0 {
        let (mut cache, batch, mut plan) = decoding_in(config, 256, 4096, STEPS as u32);
        let steps = left.min(STEPS);
        let start = Instant::now();
        for _ in 0..steps {
            step(&mut cache, &batch, &mut plan, &mut words);
        }
        elapsed += start.elapsed();
        left -= steps;
    }
    elapsed
}

fn step(cache: &mut CacheManager, batch: &[(SeqId, u32)], plan: &mut StepPlan, words: &mut Vec<u32>) {
    cache.reserve(batch, plan).expect("the pool is large enough");
    for group in 0..plan.groups().len() {
        plan.group_words(group, words);
        black_box(&words);
    }
    cache.commit(plan).expect("the step is open");
}

/// Two groups of 16 layers each, of which one looks back 1,024 tokens, against 32 layers of one kind: what a step of both costs
/// the host, in turns, so that whatever else the machine does slows both.
fn groups(criterion: &mut Criterion) {
    let full = LayerKind::new(8, 128);
    let layers: Vec<LayerKind> =
        (0..32).map(|layer| if layer % 2 == 0 { full.with_window(1024) } else { full }).collect();
    let configs = [CacheConfig::new(32, 8, 128), CacheConfig::of_layers(&layers)];
    let mut batches = configs.each_ref().map(|config| decoding_in(config, 256, 4096, STEPS as u32));
    let mut times = [(); 2].map(|()| Vec::new());
    let mut words = Vec::new();
    // 16 steps fill a block of every sequence.
    for _ in 0..STEPS / 16 {
        for ((cache, batch, plan), times) in batches.iter_mut().zip(&mut times) {
            let start = Instant::now();
            for _ in 0..16 {
                step(cache, batch, plan, &mut words);
            }
            times.push(start.elapsed());
        }
    }
    let [one, two] = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    });
    println!("decode step, 256 x 4096: two groups of layers take {:.2} of the time of one", two / one);
    let mut group = criterion.benchmark_group("decode_step_groups");
    for (groups, config) in (1..).zip(&configs) {
        group.bench_function(BenchmarkId::from_parameter(groups), |bencher| {
            bencher.iter_custom(|iterations| decode_in(config, iterations));
        });
    }
    group.finish();
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
            plan.words(&mut words);
            black_box(&words);
            cache.rollback(&mut plan).expect("the step is open");
        });
    });
    group.finish();
}

/// Tokens of the sequences below: 256 blocks.
const TEXT: u32 = 4096;

/// A manager with a prefix cache, a plan, and a text that is neither.
fn caching(num_blocks: u32, max_seq_len: u32) -> (CacheManager, StepPlan, Vec<u32>) {
    let layout = CacheConfig::new(32, 8, 128)
        .with_num_blocks(num_blocks)
        .with_max_seq_len(max_seq_len)
        .with_max_sequences(16)
        .layout()
        .expect("the configuration is valid");
    let options = ManagerOptions::default().with_prefix_cache(true);
    let cache = CacheManager::with_options(&layout, &options).expect("the tables fit into memory");
    // One token more than can be cached.
    let text = (0..=max_seq_len.min(TEXT)).map(|token| token.wrapping_mul(2_654_435_761) >> 12).collect();
    (cache, StepPlan::new(Schedule::default()), text)
}

/// A new sequence with a text.
fn create(cache: &mut CacheManager, plan: &mut StepPlan, text: &[u32]) -> SeqId {
    let (seq, cached) = cache.create_sequence_with_tokens(text, &Domain::default()).expect("there is a row for each");
    cache.reserve_tokens(&[(seq, &text[cached as usize..])], plan).expect("the pool is large enough");
    cache.commit(plan).expect("the step is open");
    seq
}

fn prefixes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("prefix_cache");
    let bytes = vec![1; 1 << 16];
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("sha256", |bencher| bencher.iter(|| sha256(black_box(&bytes))));
    group.throughput(Throughput::Elements(TEXT.into()));
    let (mut cache, mut plan, text) = caching(10_000, 2 * TEXT);
    let seq = create(&mut cache, &mut plan, &text);
    assert_eq!(cache.cached_tokens(&text, &Domain::default()), TEXT);
    group.bench_function("lookup/4096", |bencher| {
        bencher.iter(|| cache.cached_tokens(black_box(&text), &Domain::default()));
    });
    cache.release(seq).expect("it lives");
    group.bench_function("create_release/4096", |bencher| {
        bencher.iter(|| {
            let (seq, _) = cache.create_sequence_with_tokens(&text, &Domain::default()).expect("there is a row");
            cache.release(seq).expect("it lives");
        });
    });
    group.finish();
}

/// The time of `work`, which is undone without being timed.
fn timed<T>(iterations: u64, mut work: impl FnMut() -> T, mut undo: impl FnMut(T)) -> Duration {
    let mut elapsed = Duration::ZERO;
    for _ in 0..iterations {
        let start = Instant::now();
        let done = work();
        elapsed += start.elapsed();
        undo(done);
    }
    elapsed
}

fn sharing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sharing");
    let (cache, mut plan, text) = caching(10_000, 2 * TEXT);
    let cache = std::cell::RefCell::new(cache);
    let seq = create(&mut cache.borrow_mut(), &mut plan, &text);
    group.bench_function("fork/4096", |bencher| {
        bencher.iter_custom(|iterations| {
            let fork = || cache.borrow_mut().fork(seq).expect("there is a row");
            timed(iterations, fork, |fork| cache.borrow_mut().release(fork).expect("it lives"))
        });
    });
    group.bench_function("copy_on_write/reserve_rollback", |bencher| {
        let fork = cache.borrow_mut().fork(seq).expect("there is a row");
        bencher.iter(|| {
            cache.borrow_mut().reserve(&[(fork, 1)], &mut plan).expect("the pool is large enough");
            cache.borrow_mut().rollback(&mut plan).expect("the step is open");
        });
        cache.borrow_mut().release(fork).expect("it lives");
    });
    group.finish();
}

/// What an undone step costs for every block that it touched, and what it costs to take cached blocks.
fn stepping(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rollback");
    for blocks in [16, 256, 4096] {
        let (cache, plan, _) = caching(10_000, 1 << 16);
        let (cache, plan) = (std::cell::RefCell::new(cache), std::cell::RefCell::new(plan));
        let seq = cache.borrow_mut().create_sequence().expect("there is a row");
        let reserve = || cache.borrow_mut().reserve(&[(seq, 16 * blocks)], &mut plan.borrow_mut());
        group.throughput(Throughput::Elements(blocks.into()));
        group.bench_function(BenchmarkId::from_parameter(blocks), |bencher| {
            bencher.iter_custom(|iterations| {
                reserve().expect("the pool is large enough");
                let rollback = || cache.borrow_mut().rollback(&mut plan.borrow_mut()).expect("the step is open");
                let time = timed(iterations, rollback, |()| reserve().expect("the pool is large enough"));
                cache.borrow_mut().abandon();
                time
            });
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("evict");
    // Multiples of a text's blocks, so that all of them can be cached. The difference of the two is what evictions cost.
    for num_blocks in [1 << 20, 10 << 20] {
        let (mut cache, mut plan, mut text) = caching(num_blocks, 1 << 16);
        group.throughput(Throughput::Elements(EVICTED.into()));
        for (kind, cached) in [("plain", false), ("cached", true)] {
            group.bench_function(BenchmarkId::new(kind, num_blocks), |bencher| {
                bencher.iter_custom(|iterations| evict(&mut cache, &mut plan, &mut text, cached, iterations));
            });
        }
    }
    group.finish();
}

/// Blocks that are evicted by one step.
const EVICTED: u32 = 4096;

/// Steps that take `cached` blocks only, or none; whenever none is left, the pool is filled with them again.
fn evict(cache: &mut CacheManager, plan: &mut StepPlan, text: &mut [u32], cached: bool, iterations: u64) -> Duration {
    let mut elapsed = Duration::ZERO;
    for _ in 0..iterations {
        if cached && cache.stats().cached_blocks < EVICTED {
            // Texts that differ from the first token on.
            for first in 0..cache.num_blocks() / (TEXT / 16) {
                text[0] = first;
                let seq = create(cache, plan, &text[..TEXT as usize]);
                cache.release(seq).expect("it lives");
            }
        }
        let seq = cache.create_sequence().expect("there is a row");
        let evictions = cache.stats().evictions;
        let start = Instant::now();
        cache.reserve(&[(seq, 16 * EVICTED)], plan).expect("the pool is large enough");
        cache.commit(plan).expect("the step is open");
        elapsed += start.elapsed();
        assert_eq!(cache.stats().evictions - evictions, if cached { EVICTED.into() } else { 0 });
        cache.release(seq).expect("it lives");
    }
    elapsed
}

criterion_group!(benches, blocks, planning, groups, prefixes, sharing, stepping);
criterion_main!(benches);
