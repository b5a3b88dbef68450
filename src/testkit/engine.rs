//! A small engine: a manager, a cache and an attention. What is stored of a token depends on the token, its position and the
//! layer only, so that sequences with the same beginning may share it.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Gpu, SENTINEL};
use crate::blocks::{BlockId, CacheManager, ManagerOptions, SeqId};
use crate::config::CacheConfig;
use crate::formats::round_rows;
use crate::gpu::{
    AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, ClearValue, DeviceProfile, KvCache, Step,
};
use crate::layout::KvLayout;
use crate::plan::StepPlan;
use crate::reference::{Heads, QueryRow, Scoring, attend, compare};

/// A sequence and its new tokens.
pub type Request<'a> = (SeqId, &'a [u32]);

/// The buffers of one layer of a step.
#[derive(Debug)]
pub struct StepIo {
    /// `[tokens, num_kv_heads, head_dim]`
    pub k: wgpu::Buffer,
    /// `[tokens, num_kv_heads, v_head_dim]`
    pub v: wgpu::Buffer,
    /// `[tokens, num_q_heads, head_dim]`
    pub q: wgpu::Buffer,
    /// `[tokens, num_q_heads, v_head_dim]`
    pub out: wgpu::Buffer,
}

impl StepIo {
    /// What is appended.
    pub fn append(&self) -> AppendIo<'_> {
        AppendIo::new(self.k.slice(..), self.v.slice(..))
    }

    /// What attends, and where its output goes.
    pub fn attend(&self) -> AttentionIo<'_> {
        AttentionIo::new(self.q.slice(..), self.out.slice(..))
    }
}

/// A manager, a cache and an attention, with shorthands that expect success.
///
/// All of its methods panic where the library answers with an error.
#[derive(Debug)]
pub struct TestEngine {
    /// The device.
    pub gpu: Gpu,
    /// The cache.
    pub cache: KvCache,
    /// Its manager.
    pub manager: CacheManager,
    /// The plan of the latest step.
    pub plan: StepPlan,
    /// What appends, without rotation.
    pub appender: Appender,
    /// What attends.
    pub attention: Attention,
    options: ManagerOptions,
    tokens: HashMap<SeqId, Vec<u32>>,
}

#[derive(Clone, Copy)]
pub(super) enum Part {
    K,
    V,
    Q,
}

pub(super) fn row(part: Part, layer: u32, token: u32, position: u32, len: u32) -> Vec<f32> {
    let seed = u64::from(token) << 32 | u64::from(position) << 8 | u64::from(layer) << 4 | part as u64;
    let mut rng = StdRng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-2.0..2.0)).collect()
}

/// What the attention of the last of `tokens` should give in a layer of this layout and number, from what it stored of them.
pub(super) fn expected_output(
    layout: &KvLayout,
    number: u32,
    tokens: &[u32],
    num_q_heads: u32,
    window: Option<u32>,
) -> Vec<f64> {
    let num_kv_heads = layout.num_kv_heads();
    let stored = |part, dim: u32| -> Vec<Vec<f32>> {
        let rows = (0..).zip(tokens).map(|(at, &token)| {
            let mut values = row(part, number, token, at, num_kv_heads * dim);
            round_rows(layout.kv_dtype(), dim as usize, &mut values);
            values
        });
        rows.collect()
    };
    let (dim, v_dim) = (layout.head_dim() as usize, layout.v_head_dim() as usize);
    let (k, v) = (stored(Part::K, layout.head_dim()), stored(Part::V, layout.v_head_dim()));
    let heads = Heads { v_head_dim: v_dim, ..Heads::new(num_q_heads as usize, num_kv_heads as usize, dim) };
    let position = tokens.len() - 1;
    let q = row(Part::Q, number, tokens[position], position as u32, num_q_heads * layout.head_dim());
    let scoring = Scoring { window, ..Scoring::new(1.0 / (dim as f64).sqrt()) };
    let key = |at: usize, head: usize| &k[at][head * dim..][..dim];
    let value = |at: usize, head: usize| &v[at][head * v_dim..][..v_dim];
    attend(&heads, &scoring, &q, QueryRow::newest(tokens.len()), key, value).output
}

impl TestEngine {
    /// An engine whose pools are NaN wherever nothing was appended.
    pub fn new(
        gpu: &Gpu,
        profile: &DeviceProfile,
        config: &CacheConfig,
        options: &ManagerOptions,
        spec: AttentionSpec,
    ) -> Self {
        let layout = config.layout().unwrap();
        let cache = KvCache::with_profile(&gpu.device, &layout, profile.clone()).unwrap();
        let engine = Self {
            gpu: gpu.clone(),
            manager: CacheManager::with_options(&layout, options).unwrap(),
            plan: cache.new_plan(),
            appender: cache.appender(AppendSpec::new()).unwrap(),
            attention: cache.attention(spec).unwrap(),
            cache,
            options: options.clone(),
            tokens: HashMap::new(),
        };
        engine.poison();
        engine
    }

    /// An engine on the device's own profile, without any option.
    pub fn plain(gpu: &Gpu, config: &CacheConfig, num_q_heads: u32) -> Self {
        let profile = DeviceProfile::of(&gpu.device);
        Self::new(gpu, &profile, config, &ManagerOptions::default(), AttentionSpec::new(num_q_heads))
    }

    /// Starts anew with the same kernels: no sequences, and NaN in the pools.
    pub fn reset(&mut self) {
        self.manager = CacheManager::with_options(self.cache.layout(), &self.options).unwrap();
        self.plan = self.cache.new_plan();
        self.tokens.clear();
        self.poison();
    }

    fn poison(&self) {
        let all: Vec<_> = (0..self.cache.layout().num_blocks()).filter_map(BlockId::new).collect();
        self.clear(&all, ClearValue::Poison);
    }

    /// Overwrites blocks.
    pub fn clear(&self, blocks: &[BlockId], value: ClearValue) {
        let mut encoder = self.encoder();
        self.cache.clear_blocks(&mut encoder, blocks, value).unwrap();
        self.gpu.submit(encoder);
    }

    /// An encoder of the device.
    pub fn encoder(&self) -> wgpu::CommandEncoder {
        self.gpu.device.create_command_encoder(&Default::default())
    }

    /// An empty sequence.
    pub fn seq(&mut self) -> SeqId {
        self.manager.create_sequence().unwrap()
    }

    /// A sequence of these tokens, appended in a step of their own.
    pub fn seq_of(&mut self, tokens: &[u32]) -> SeqId {
        let seq = self.seq();
        self.step(&[(seq, tokens)]);
        seq
    }

    /// A second sequence of the same tokens.
    pub fn fork(&mut self, seq: SeqId) -> SeqId {
        let fork = self.manager.fork(seq).unwrap();
        let tokens = self.tokens.get(&seq).cloned().unwrap_or_default();
        self.tokens.insert(fork, tokens);
        fork
    }

    /// Cuts a sequence to `len` tokens.
    pub fn truncate(&mut self, seq: SeqId, len: u32) {
        self.manager.truncate(seq, len).unwrap();
        self.tokens.entry(seq).or_default().truncate(len as usize);
    }

    /// Blocks in use.
    pub fn used(&self) -> u32 {
        self.cache.layout().num_blocks() - self.manager.num_free_blocks()
    }

    fn num_q_heads(&self) -> u32 {
        self.attention.spec().num_q_heads
    }

    /// Buffers of every layer for a step that is not reserved yet.
    pub fn io(&self, requests: &[Request<'_>]) -> Vec<StepIo> {
        let layout = self.cache.layout();
        let layer_io = |layer| {
            let (mut k, mut v, mut q, mut rows) = (Vec::new(), Vec::new(), Vec::new(), 0);
            for &(seq, tokens) in requests {
                let len = self.manager.seq_len(seq).unwrap();
                for (position, &token) in (len..).zip(tokens) {
                    k.extend(row(Part::K, layer, token, position, layout.num_kv_heads() * layout.head_dim()));
                    v.extend(row(Part::V, layer, token, position, layout.num_kv_heads() * layout.v_head_dim()));
                    q.extend(row(Part::Q, layer, token, position, self.num_q_heads() * layout.head_dim()));
                    rows += 1;
                }
            }
            let out = vec![SENTINEL; (rows * self.num_q_heads() * layout.v_head_dim()) as usize];
            let gpu = &self.gpu;
            StepIo {
                k: gpu.storage("k", &k),
                v: gpu.storage("v", &v),
                q: gpu.storage("q", &q),
                out: gpu.storage("out", &out),
            }
        };
        (0..layout.num_layers()).map(layer_io).collect()
    }

    /// Plans a step.
    pub fn reserve(&mut self, requests: &[Request<'_>]) {
        self.manager.reserve_tokens(requests, &mut self.plan).unwrap();
    }

    /// Begins the reserved step.
    pub fn begin(&self, encoder: &mut wgpu::CommandEncoder) -> Step {
        self.cache.begin_step(encoder, &self.plan).unwrap()
    }

    /// Records append and attention of all layers.
    pub fn record(&self, encoder: &mut wgpu::CommandEncoder, step: &Step, io: &[StepIo]) {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for (layer, io) in (0..).zip(io) {
            self.cache.append(&mut pass, &self.appender, step, layer, io.append()).unwrap();
            self.cache.attend(&mut pass, &self.attention, step, layer, io.attend()).unwrap();
        }
    }

    /// Closes the reserved step.
    pub fn commit(&mut self, requests: &[Request<'_>]) {
        self.manager.commit(&mut self.plan).unwrap();
        for &(seq, tokens) in requests {
            self.tokens.entry(seq).or_default().extend_from_slice(tokens);
        }
    }

    /// Reserves, records and commits a step, whose work is left in the encoder. Returns every layer's output.
    pub fn record_step(&mut self, encoder: &mut wgpu::CommandEncoder, requests: &[Request<'_>]) -> Vec<wgpu::Buffer> {
        let io = self.io(requests);
        self.reserve(requests);
        let step = self.begin(encoder);
        self.record(encoder, &step, &io);
        self.commit(requests);
        io.into_iter().map(|io| io.out).collect()
    }

    /// Like [`record_step`](Self::record_step), and submits, but waits for nothing.
    pub fn submit(&mut self, requests: &[Request<'_>]) -> Vec<wgpu::Buffer> {
        let mut encoder = self.encoder();
        let outs = self.record_step(&mut encoder, requests);
        self.gpu.queue.submit([encoder.finish()]);
        outs
    }

    /// A whole step. Returns the outputs of all layers, `[layers, tokens, num_q_heads, v_head_dim]`.
    pub fn step(&mut self, requests: &[Request<'_>]) -> Vec<f32> {
        let outs = self.submit(requests);
        self.read(&outs)
    }

    /// A whole step, whose outputs are held against the oracle.
    #[track_caller]
    pub fn step_right(&mut self, requests: &[Request<'_>]) {
        let rows = self.rows(requests);
        let out = self.step(requests);
        self.assert_right(&out, &rows);
    }

    /// Submits and commits a step that was recorded, and holds its outputs against the oracle.
    #[track_caller]
    pub fn finish_right(&mut self, encoder: wgpu::CommandEncoder, requests: &[Request<'_>], io: &[StepIo]) {
        let rows = self.rows(requests);
        self.gpu.submit(encoder);
        self.commit(requests);
        let outs: Vec<_> = io.iter().map(|io| io.out.clone()).collect();
        self.assert_right(&self.read(&outs), &rows);
    }

    /// The tokens of a step that is not committed yet, by their positions.
    fn rows(&self, requests: &[Request<'_>]) -> Vec<(SeqId, u32)> {
        let tokens =
            requests.iter().map(|&(seq, tokens)| (seq, self.manager.seq_len(seq).unwrap(), tokens.len() as u32));
        tokens.flat_map(|(seq, len, count)| (len..len + count).map(move |position| (seq, position))).collect()
    }

    /// The outputs of all layers.
    pub fn read(&self, outs: &[wgpu::Buffer]) -> Vec<f32> {
        outs.iter().flat_map(|out| self.gpu.read::<f32>(out).unwrap()).collect()
    }

    /// Appends without asking for attention, as when a prompt's outputs are of no use.
    pub fn append(&mut self, requests: &[Request<'_>]) {
        let io = self.io(requests);
        self.reserve(requests);
        let mut encoder = self.encoder();
        let step = self.begin(&mut encoder);
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for (layer, io) in (0..).zip(&io) {
                self.cache.append(&mut pass, &self.appender, &step, layer, io.append()).unwrap();
            }
        }
        self.gpu.submit(encoder);
        self.commit(requests);
    }

    /// What a further token sees of a sequence: the bits of the attention of all layers.
    pub fn look(&mut self, seq: SeqId, token: u32) -> Vec<u32> {
        self.step(&[(seq, &[token])]).into_iter().map(f32::to_bits).collect()
    }

    /// What the attention of the token at `position` should give in a layer.
    pub fn expected(&self, seq: SeqId, position: u32, layer: u32) -> Vec<f64> {
        let tokens = &self.tokens[&seq][..=position as usize];
        expected_output(self.cache.layout(), layer, tokens, self.num_q_heads(), None)
    }

    /// Holds the outputs of a step's tokens, given by their positions, against the oracle.
    #[track_caller]
    pub fn assert_right(&self, out: &[f32], rows: &[(SeqId, u32)]) {
        let layout = self.cache.layout();
        let width = (self.num_q_heads() * layout.v_head_dim()) as usize;
        assert_eq!(out.len(), layout.num_layers() as usize * rows.len() * width);
        let layers = (0..layout.num_layers()).flat_map(|layer| rows.iter().map(move |row| (layer, row)));
        for ((layer, &(seq, position)), got) in layers.zip(out.chunks(width)) {
            compare(got, &self.expected(seq, position, layer), 1e-5, 1e-5)
                .unwrap_or_else(|error| panic!("{seq:?} at {position} in layer {layer}: {error}"));
        }
    }
}
