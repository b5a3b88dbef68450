//! A small engine: a manager, a cache and an attention, fed with data that depends on sequence and position only.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::blocks::{CacheManager, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::formats::round_rows;
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, DeviceProfile, KvCache, Step,
};
use wgpu_paged_attention::plan::StepPlan;
use wgpu_paged_attention::reference::{Heads, QueryRow, Scoring, attend};
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;

/// A sequence with the number that its data is drawn from.
#[derive(Clone, Copy, Debug)]
pub struct Talk {
    pub seq: SeqId,
    pub tag: u64,
}

/// The buffers of one step.
pub struct StepIo {
    pub k: wgpu::Buffer,
    pub v: wgpu::Buffer,
    pub q: wgpu::Buffer,
    pub out: wgpu::Buffer,
}

impl StepIo {
    pub fn append(&self) -> AppendIo<'_> {
        AppendIo::new(self.k.slice(..), self.v.slice(..))
    }

    pub fn attend(&self) -> AttentionIo<'_> {
        AttentionIo::new(self.q.slice(..), self.out.slice(..))
    }
}

pub struct Rig {
    pub gpu: Gpu,
    pub cache: KvCache,
    pub manager: CacheManager,
    pub appender: Appender,
    pub attention: Attention,
    pub plan: StepPlan,
    pub num_q_heads: u32,
}

#[derive(Clone, Copy)]
enum Part {
    K,
    V,
    Q,
}

fn data(part: Part, tag: u64, position: u32, len: u32) -> Vec<f32> {
    let seed = (tag << 34) | (u64::from(position) << 2) | part as u64;
    let mut rng = StdRng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-2.0..2.0)).collect()
}

impl Rig {
    /// Pools start as NaN wherever nobody writes.
    pub fn new(gpu: &Gpu, profile: &DeviceProfile, config: &CacheConfig, num_q_heads: u32) -> Self {
        let layout = config.layout().unwrap();
        let cache = KvCache::with_profile(&gpu.device, &layout, profile.clone()).unwrap();
        super::fill_pools(gpu, &cache, u32::MAX);
        let appender = cache.appender(AppendSpec::new()).unwrap();
        let attention = cache.attention(AttentionSpec::new(num_q_heads)).unwrap();
        let plan = cache.new_plan();
        let manager = CacheManager::new(&layout).unwrap();
        Self { gpu: gpu.clone(), cache, manager, appender, attention, plan, num_q_heads }
    }

    /// Starts anew with the same kernels: no sequences, and NaN in the pools.
    pub fn reset(&mut self) {
        super::fill_pools(&self.gpu, &self.cache, u32::MAX);
        self.manager = CacheManager::new(self.cache.layout()).unwrap();
        self.plan = self.cache.new_plan();
    }

    pub fn talk(&mut self, tag: u64) -> Talk {
        Talk { seq: self.manager.create_sequence().unwrap(), tag }
    }

    fn kv_row(&self) -> u32 {
        self.cache.layout().num_kv_heads() * self.cache.layout().head_dim()
    }

    fn q_row(&self) -> u32 {
        self.num_q_heads * self.cache.layout().head_dim()
    }

    /// Buffers for `count` new tokens of every talk, from the lengths before the step.
    pub fn io(&self, requests: &[(Talk, u32)]) -> StepIo {
        let (mut k, mut v, mut q) = (Vec::new(), Vec::new(), Vec::new());
        for &(talk, count) in requests {
            let len = self.manager.seq_len(talk.seq).unwrap();
            for position in len..len + count {
                k.extend(data(Part::K, talk.tag, position, self.kv_row()));
                v.extend(data(Part::V, talk.tag, position, self.kv_row()));
                q.extend(data(Part::Q, talk.tag, position, self.q_row()));
            }
        }
        let gpu = &self.gpu;
        let out = gpu.storage("out", &vec![123.0_f32; q.len()]);
        StepIo { k: gpu.storage("k", &k), v: gpu.storage("v", &v), q: gpu.storage("q", &q), out }
    }

    pub fn reserve(&mut self, requests: &[(Talk, u32)]) {
        let requests: Vec<_> = requests.iter().map(|&(talk, count)| (talk.seq, count)).collect();
        self.manager.reserve(&requests, &mut self.plan).unwrap();
    }

    /// Records append and attention of all layers; every layer gets the same K and V.
    pub fn record(&self, encoder: &mut wgpu::CommandEncoder, io: &StepIo) -> Step {
        let step = self.cache.begin_step(encoder, &self.plan).unwrap();
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for layer in 0..self.cache.layout().num_layers() {
            self.cache.append(&mut pass, &self.appender, &step, layer, io.append()).unwrap();
            self.cache.attend(&mut pass, &self.attention, &step, layer, io.attend()).unwrap();
        }
        step
    }

    /// Appends without asking for attention, as when a prompt's outputs are of no use.
    pub fn fill(&mut self, requests: &[(Talk, u32)]) {
        let io = self.io(requests);
        self.reserve(requests);
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let step = self.cache.begin_step(&mut encoder, &self.plan).unwrap();
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for layer in 0..self.cache.layout().num_layers() {
                self.cache.append(&mut pass, &self.appender, &step, layer, io.append()).unwrap();
            }
        }
        self.gpu.submit(encoder);
        self.manager.commit(&mut self.plan).unwrap();
    }

    /// Reserves, records, submits and commits a step, and waits for nothing; returns its output.
    pub fn submit(&mut self, requests: &[(Talk, u32)]) -> wgpu::Buffer {
        let io = self.io(requests);
        self.reserve(requests);
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        self.record(&mut encoder, &io);
        self.gpu.queue.submit([encoder.finish()]);
        self.manager.commit(&mut self.plan).unwrap();
        io.out
    }

    /// Like [`submit`](Self::submit), but waits.
    pub fn step(&mut self, requests: &[(Talk, u32)]) -> Vec<f32> {
        let out = self.submit(requests);
        self.gpu.read(&out).unwrap()
    }

    /// What the attention of the token at `position` should give.
    pub fn expected(&self, talk: Talk, position: u32) -> Vec<f64> {
        let layout = self.cache.layout();
        let stored = |part| -> Vec<Vec<f32>> {
            let rows = (0..=position).map(|at| {
                let mut row = data(part, talk.tag, at, self.kv_row());
                round_rows(layout.kv_dtype(), layout.head_dim() as usize, &mut row);
                row
            });
            rows.collect()
        };
        let (k, v) = (stored(Part::K), stored(Part::V));
        let dim = layout.head_dim() as usize;
        let heads = Heads::new(self.num_q_heads as usize, layout.num_kv_heads() as usize, dim);
        let q = data(Part::Q, talk.tag, position, self.q_row());
        let scoring = Scoring::new(1.0 / (dim as f64).sqrt());
        let row = |rows: &'_ [Vec<f32>], at: usize, head: usize| -> std::ops::Range<usize> {
            assert!(rows[at].len() >= (head + 1) * dim);
            head * dim..(head + 1) * dim
        };
        attend(
            &heads,
            &scoring,
            &q,
            QueryRow::newest(position as usize + 1),
            |at, head| &k[at][row(&k, at, head)],
            |at, head| &v[at][row(&v, at, head)],
        )
        .output
    }

    /// Holds the outputs of a step against the oracle: `firsts` are the positions of the first new tokens.
    #[track_caller]
    pub fn assert_right(&self, out: &[f32], rows: &[(Talk, u32)]) {
        let width = self.q_row() as usize;
        assert_eq!(out.len(), rows.len() * width);
        for (&(talk, position), got) in rows.iter().zip(out.chunks(width)) {
            let want = self.expected(talk, position);
            wgpu_paged_attention::reference::compare(got, &want, 1e-5, 1e-5)
                .unwrap_or_else(|error| panic!("{talk:?} at {position}: {error}"));
        }
    }
}
