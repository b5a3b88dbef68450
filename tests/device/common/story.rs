//! An engine whose sequences branch: what is stored of a token depends on the token and its position only, so that
//! sequences with the same beginning may share it.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::blocks::{CacheManager, ManagerOptions, SeqId};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, ClearValue, DeviceProfile, KvCache,
};
use wgpu_paged_attention::plan::StepPlan;
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;

const Q_HEADS: u32 = 6;
pub const HEADS: u32 = 3;

/// A sequence and its tokens.
#[derive(Clone, Debug)]
pub struct Story {
    pub seq: SeqId,
    pub words: Vec<u32>,
}

pub struct Teller {
    pub gpu: Gpu,
    pub cache: KvCache,
    pub manager: CacheManager,
    pub plan: StepPlan,
    appender: Appender,
    attention: Attention,
}

/// Two layers of three heads, V narrower than K, in blocks of 16.
pub fn config(format: KvDtype, num_blocks: u32) -> CacheConfig {
    CacheConfig::new(2, HEADS, 40)
        .with_v_head_dim(24)
        .with_kv_dtype(format)
        .with_num_blocks(num_blocks)
        .with_max_seq_len(128)
        .with_max_sequences(8)
}

/// The device's own profile, but token by token: wide tiles take a software driver long to compile, and what they do is
/// tested elsewhere.
pub fn narrow(gpu: &Gpu) -> DeviceProfile {
    DeviceProfile { tile_tokens: 1, ..DeviceProfile::of(&gpu.device) }
}

/// Such a profile with bindings so small that every head is a head shard of its own; a step's arguments fit if
/// there are some 64 blocks.
pub fn cut_by_heads(gpu: &Gpu, config: &CacheConfig) -> DeviceProfile {
    let layout = config.layout().unwrap();
    let head_bytes = layout.k_shard_bytes(1).max(layout.v_shard_bytes(1));
    DeviceProfile { max_binding_bytes: 2 * head_bytes - 1, ..narrow(gpu) }
}

impl Teller {
    pub fn new(gpu: &Gpu, profile: &DeviceProfile, config: &CacheConfig, options: &ManagerOptions) -> Self {
        Self::with_spec(gpu, profile, config, options, AttentionSpec::new(Q_HEADS))
    }

    pub fn with_window(
        gpu: &Gpu,
        profile: &DeviceProfile,
        config: &CacheConfig,
        options: &ManagerOptions,
        window: u32,
    ) -> Self {
        Self::with_spec(gpu, profile, config, options, AttentionSpec::new(Q_HEADS).with_window(window))
    }

    fn with_spec(
        gpu: &Gpu,
        profile: &DeviceProfile,
        config: &CacheConfig,
        options: &ManagerOptions,
        spec: AttentionSpec,
    ) -> Self {
        let layout = config.layout().unwrap();
        let cache = KvCache::with_profile(&gpu.device, &layout, profile.clone()).unwrap();
        let appender = cache.appender(AppendSpec::new()).unwrap();
        let attention = cache.attention(spec).unwrap();
        let manager = CacheManager::with_options(&layout, options).unwrap();
        let plan = cache.new_plan();
        let teller = Self { gpu: gpu.clone(), cache, manager, plan, appender, attention };
        let all: Vec<u32> = (0..layout.num_blocks()).collect();
        teller.fill(&all, ClearValue::Poison);
        teller
    }

    pub fn encoder(&self) -> wgpu::CommandEncoder {
        self.gpu.device.create_command_encoder(&Default::default())
    }

    pub fn fill(&self, blocks: &[u32], fill: ClearValue) {
        let mut encoder = self.encoder();
        self.cache.clear_blocks(&mut encoder, blocks, fill).unwrap();
        self.gpu.submit(encoder);
    }

    pub fn start(&mut self) -> Story {
        Story { seq: self.manager.create_sequence().unwrap(), words: Vec::new() }
    }

    pub fn fork(&mut self, story: &Story) -> Story {
        Story { seq: self.manager.fork(story.seq).unwrap(), words: story.words.clone() }
    }

    /// A sequence of these tokens, told on its own.
    pub fn alone(&mut self, words: &[u32]) -> Story {
        let mut story = self.start();
        self.tell(&mut [(&mut story, words)]);
        story
    }

    /// Appends tokens, submits, waits and commits. Returns the outputs of all layers, `[layers, tokens, heads, dim]`.
    pub fn tell(&mut self, parts: &mut [(&mut Story, &[u32])]) -> Vec<f32> {
        let mut encoder = self.encoder();
        let outs = self.record(&mut encoder, parts);
        self.gpu.submit(encoder);
        outs.iter().flat_map(|out| self.gpu.read::<f32>(out).unwrap()).collect()
    }

    /// Like [`tell`](Self::tell), but leaves the work in an encoder and the outputs on the device.
    pub fn record(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        parts: &mut [(&mut Story, &[u32])],
    ) -> Vec<wgpu::Buffer> {
        let requests: Vec<_> = parts.iter().map(|(story, words)| (story.seq, *words)).collect();
        self.manager.reserve_tokens(&requests, &mut self.plan).unwrap();
        let step = self.cache.begin_step(encoder, &self.plan).unwrap();
        let layout = self.cache.layout();
        let mut outs = Vec::new();
        for layer in 0..layout.num_layers() {
            let (mut k, mut v, mut q) = (Vec::new(), Vec::new(), Vec::new());
            for (story, words) in parts.iter() {
                for (position, &word) in (story.words.len() as u32..).zip(words.iter()) {
                    k.extend(data(0, layer, word, position, HEADS * layout.head_dim()));
                    v.extend(data(1, layer, word, position, HEADS * layout.v_head_dim()));
                    q.extend(data(2, layer, word, position, Q_HEADS * layout.head_dim()));
                }
            }
            let rows = self.plan.num_rows() * Q_HEADS * layout.v_head_dim();
            let out = self.gpu.storage("out", &vec![123.0_f32; rows as usize]);
            let [k, v, q] = [k, v, q].map(|values| self.gpu.storage("values", &values));
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let io = AppendIo::new(k.slice(..), v.slice(..));
            self.cache.append(&mut pass, &self.appender, &step, layer, io).unwrap();
            let io = AttentionIo::new(q.slice(..), out.slice(..));
            self.cache.attend(&mut pass, &self.attention, &step, layer, io).unwrap();
            outs.push(out);
        }
        self.manager.commit(&mut self.plan).unwrap();
        for (story, words) in parts {
            story.words.extend_from_slice(words);
        }
        outs
    }

    /// What a further token sees of a story: the bits of the attention of all layers.
    pub fn look(&mut self, story: &mut Story, word: u32) -> Vec<u32> {
        super::bits(&self.tell(&mut [(story, &[word])]))
    }

    pub fn used(&self) -> u32 {
        self.cache.layout().num_blocks() - self.manager.num_free_blocks()
    }
}

fn data(part: u64, layer: u32, word: u32, position: u32, len: u32) -> Vec<f32> {
    let seed = u64::from(word) << 32 | u64::from(position) << 8 | u64::from(layer) << 4 | part;
    let mut rng = StdRng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-2.0..2.0)).collect()
}

/// Tokens of a prompt.
pub fn words(count: u32) -> Vec<u32> {
    (100..100 + count).collect()
}
