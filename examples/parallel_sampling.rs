//! One prompt, several answers: branches share the prompt's blocks until they part, and each answer is, bit for bit, what a
//! sequence of its own would have given.
//!
//! The model is made up: two layers whose projections are pseudo-random numbers, multiplied on the CPU. Its attention is
//! the real one, through the cache's kernels.

mod common;

use std::error::Error;

use common::{Buffers, open_device};
use wgpu_paged_attention::blocks::{CacheManager, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::gpu::{AppendSpec, Appender, Attention, AttentionSpec, KvCache};
use wgpu_paged_attention::plan::StepPlan;
use wgpu_paged_attention::wgpu;

const LAYERS: u32 = 2;
const WIDTH: usize = 64;
const Q_HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 32;
const WORDS: usize = 50;
const BLOCK_SIZE: u32 = 16;
const PROMPT: u32 = 40;
const BRANCHES: usize = 4;
const ANSWER: usize = 12;

fn main() -> Result<(), Box<dyn Error>> {
    let (device, queue) = open_device()?;
    let mut engine = Engine::new(device, queue)?;
    let prompt: Vec<usize> = (0..PROMPT as usize).map(|at| at * 7 % WORDS).collect();

    // The prompt is computed once; every branch begins with its blocks, the half-filled last one included.
    let first = engine.manager.create_sequence()?;
    let logits = engine.step(&[(first, &prompt)])?;
    let mut branches = vec![first];
    for _ in 1..BRANCHES {
        branches.push(engine.manager.fork(first)?);
    }
    let prompt_blocks = engine.used_blocks();
    println!("prompt of {PROMPT} tokens: {prompt_blocks} blocks, for 1 sequence and for {BRANCHES} branches alike");
    assert_eq!(prompt_blocks, PROMPT.div_ceil(BLOCK_SIZE));

    // Every branch draws its own words, and the first of them parts it from the others.
    let mut answers: Vec<Vec<usize>> =
        (0..BRANCHES).map(|branch| vec![draw(&logits[PROMPT as usize - 1], branch, 0)]).collect();
    let mut scores: Vec<Vec<Vec<f32>>> = vec![Vec::new(); BRANCHES];
    for at in 0..ANSWER {
        let requests: Vec<(SeqId, &[usize])> =
            branches.iter().zip(&answers).map(|(&seq, words)| (seq, &words[at..])).collect();
        let logits = engine.step(&requests)?;
        let copies = engine.plan.copies().len();
        println!("step {at:2}: {:2} blocks, {copies} copied", engine.used_blocks());
        // All but the last owner get a copy of the half-filled block before they write; nothing else is ever copied.
        assert_eq!(copies, if at == 0 { BRANCHES - 1 } else { 0 });
        for (branch, logits) in logits.into_iter().enumerate() {
            answers[branch].push(draw(&logits, branch, at + 1));
            scores[branch].push(logits);
        }
    }
    let shared = PROMPT / BLOCK_SIZE;
    let own = (PROMPT + ANSWER as u32).div_ceil(BLOCK_SIZE) - shared;
    println!(
        "in the end: {} blocks, where {BRANCHES} sequences that share nothing would take {}",
        engine.used_blocks(),
        BRANCHES as u32 * (shared + own)
    );
    assert_eq!(engine.used_blocks(), shared + BRANCHES as u32 * own);

    // The same answers again, each by a sequence that shares nothing.
    for (branch, words) in answers.iter().enumerate() {
        let alone = engine.manager.create_sequence()?;
        engine.step(&[(alone, &prompt)])?;
        for (at, expected) in scores[branch].iter().enumerate() {
            let logits = engine.step(&[(alone, &words[at..=at])])?;
            let same = logits[0].iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "branch {branch} differs from a sequence of its own at word {at}");
        }
        engine.manager.release(alone)?;
        println!("branch {branch}: {words:2?}, as a sequence of its own");
    }
    assert!((1..BRANCHES).all(|branch| answers[branch] != answers[0]), "all branches say the same");
    for seq in branches {
        engine.manager.release(seq)?;
    }
    assert_eq!(engine.used_blocks(), 0);
    Ok(())
}

/// The device, the cache and the model.
struct Engine {
    device: wgpu::Device,
    queue: wgpu::Queue,
    cache: KvCache,
    appender: Appender,
    attention: Attention,
    manager: CacheManager,
    plan: StepPlan,
    model: Model,
}

impl Engine {
    fn new(device: wgpu::Device, queue: wgpu::Queue) -> Result<Self, Box<dyn Error>> {
        let config = CacheConfig::new(LAYERS, KV_HEADS as u32, HEAD_DIM as u32).with_block_size(BLOCK_SIZE);
        let layout = config.with_num_blocks(32).with_max_seq_len(256).layout()?;
        let cache = KvCache::new(&device, &layout)?;
        let appender = cache.appender(AppendSpec::new())?;
        let attention = cache.attention(AttentionSpec::new(Q_HEADS as u32))?;
        let (manager, plan) = (CacheManager::new(&layout)?, cache.new_plan());
        Ok(Self { device, queue, cache, appender, attention, manager, plan, model: Model::new() })
    }

    fn used_blocks(&self) -> u32 {
        self.cache.layout().num_blocks() - self.manager.num_free_blocks()
    }

    /// Appends words to sequences; returns the scores of the word that follows each of them.
    fn step(&mut self, requests: &[(SeqId, &[usize])]) -> Result<Vec<Vec<f32>>, Box<dyn Error>> {
        let counts: Vec<_> = requests.iter().map(|(seq, words)| (*seq, words.len() as u32)).collect();
        let mut hidden = Vec::new();
        for (seq, words) in requests {
            let len = self.manager.seq_len(*seq)? as usize;
            hidden.extend(words.iter().enumerate().map(|(at, &word)| self.model.embed(word, len + at)));
        }
        self.manager.reserve(&counts, &mut self.plan)?;
        // Copies of shared blocks are recorded here, before anything is appended.
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let step = self.cache.begin_step(&mut encoder, &self.plan)?;
        for layer in 0..LAYERS {
            let buffers = self.model.project(&self.device, layer, &hidden);
            let mut pass = encoder.begin_compute_pass(&Default::default());
            self.cache.append(&mut pass, &self.appender, &step, layer, buffers.append())?;
            self.cache.attend(&mut pass, &self.attention, &step, layer, buffers.attend())?;
            drop(pass);
            let next = self.device.create_command_encoder(&Default::default());
            self.queue.submit([std::mem::replace(&mut encoder, next).finish()]);
            // The next layer is multiplied on the CPU, and so waits for this one.
            let out = buffers.read_out(&self.device, &self.queue)?;
            for (hidden, out) in hidden.iter_mut().zip(out.chunks(Q_HEADS * HEAD_DIM)) {
                self.model.add(layer, hidden, out);
            }
        }
        self.manager.commit(&mut self.plan)?;
        Ok(hidden.iter().map(|hidden| self.model.logits(hidden)).collect())
    }
}

/// Matrices of pseudo-random numbers, `[outputs, inputs]`.
struct Model {
    words: Vec<Vec<f32>>,
    /// Of every layer: to q, k and v, and back from the attention.
    layers: Vec<[Vec<Vec<f32>>; 4]>,
}

impl Model {
    fn new() -> Self {
        let mut seed = 1;
        let mut matrix = |outputs: usize, inputs: usize| -> Vec<Vec<f32>> {
            (0..outputs)
                .map(|_| {
                    seed += 1;
                    random(seed, inputs).map(|x| x * 2.0 / (inputs as f32).sqrt()).collect()
                })
                .collect()
        };
        let words = matrix(WORDS, WIDTH);
        let (q, kv) = (Q_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let layers =
            (0..LAYERS).map(|_| [matrix(q, WIDTH), matrix(kv, WIDTH), matrix(kv, WIDTH), matrix(WIDTH, q)]).collect();
        Self { words, layers }
    }

    /// A word at a position.
    fn embed(&self, word: usize, position: usize) -> Vec<f32> {
        let wave = |at: usize| (position as f32 / (1 + at) as f32).sin() * 0.3;
        self.words[word].iter().enumerate().map(|(at, x)| 4.0 * x + wave(at)).collect()
    }

    fn project(&self, device: &wgpu::Device, layer: u32, hidden: &[Vec<f32>]) -> Buffers {
        let [q, k, v, _] = &self.layers[layer as usize];
        let all = |matrix: &[Vec<f32>]| hidden.iter().flat_map(|hidden| multiply(matrix, hidden)).collect::<Vec<_>>();
        Buffers::upload(device, &all(q), &all(k), &all(v))
    }

    fn add(&self, layer: u32, hidden: &mut [f32], attended: &[f32]) {
        let back = multiply(&self.layers[layer as usize][3], attended);
        hidden.iter_mut().zip(back).for_each(|(x, more)| *x += more);
    }

    fn logits(&self, hidden: &[f32]) -> Vec<f32> {
        multiply(&self.words, hidden)
    }
}

fn multiply(matrix: &[Vec<f32>], x: &[f32]) -> Vec<f32> {
    matrix.iter().map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum()).collect()
}

/// A word, drawn with noise that depends on branch and place alone.
fn draw(logits: &[f32], branch: usize, at: usize) -> usize {
    let noise = random((1000 + 100 * branch + at) as u64, logits.len());
    let noisy = logits.iter().zip(noise).map(|(x, noise)| x + 9.0 * noise);
    noisy.enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(word, _)| word)
}

/// Numbers between -1 and 1 that depend on the seed only.
fn random(seed: u64, count: usize) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count).map(move |_| {
        // xorshift
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
}
