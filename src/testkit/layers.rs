//! A model whose layers are of unlike kinds on a device: one cache with its manager, kernels for each kind, and the oracle.

use std::collections::HashMap;

use super::engine::{Part, Request, StepIo, expected_output, row};
use super::{Gpu, SENTINEL, ScenarioVariant, Tolerances, Verdict};
use crate::blocks::{BlockId, CacheManager, ManagerOptions, RELEASED, SeqId};
use crate::config::{CacheConfig, KvDtype, LayerKind};
use crate::gpu::{AppendSpec, Appender, Attention, AttentionSpec, ClearValue, DeviceProfile, KvCache, Step};
use crate::layout::KvLayout;
use crate::plan::{StepPlan, TableUpdate};
use crate::reference::compare;

const Q_HEADS: u32 = 4;

/// A cache with layers of unlike kinds, whose memory is NaN wherever no sequence has a token.
///
/// What is stored of a token depends on the token, its position and the number of the layer. Methods panic where the host's
/// part answers with an error, and return what the device's part answers.
#[derive(Debug)]
pub struct LayerEngine {
    /// The device.
    pub gpu: Gpu,
    /// The cache.
    pub cache: KvCache,
    /// Its manager.
    pub manager: CacheManager,
    /// The plan of the latest step.
    pub plan: StepPlan,
    /// Of every kind.
    kernels: Vec<(Appender, Attention)>,
    /// The kind of every layer.
    kinds: Vec<usize>,
    numbers: Vec<u32>,
    tokens: HashMap<SeqId, Vec<u32>>,
}

/// The layout of a layer's group.
fn group_of(layout: &KvLayout, layer: u32) -> &KvLayout {
    &layout.groups()[layout.place(layer).expect("a layer of the model").group]
}

fn new_manager(layout: &KvLayout) -> CacheManager {
    let options = ManagerOptions::default().with_clear_freed(true).with_prefix_cache(true);
    CacheManager::with_options(layout, &options).expect("a manager")
}

impl LayerEngine {
    /// An engine whose layers have these numbers, which decide what they store.
    ///
    /// # Errors
    /// [`Verdict::Config`] or [`Verdict::Gpu`].
    pub fn new(gpu: &Gpu, profile: &DeviceProfile, config: &CacheConfig, numbers: &[u32]) -> Result<Self, Verdict> {
        let layout = config.layout()?;
        let mut cache = KvCache::with_profile(&gpu.device, &layout, profile.clone())?;
        cache.set_clear_value(ClearValue::Poison);
        let (mut kernels, mut known, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        for layer in 0..layout.num_layers() {
            let group = group_of(&layout, layer);
            let kind = (group.num_kv_heads(), group.head_dim(), group.v_head_dim(), group.window());
            if !known.contains(&kind) {
                let spec = AttentionSpec::new(Q_HEADS).with_layer(layer);
                let spec = group.window().map_or(spec.clone(), |window| spec.with_window(window));
                kernels.push((cache.appender(AppendSpec::for_attention(&spec))?, cache.attention(spec)?));
                known.push(kind);
            }
            kinds.push(known.iter().position(|other| *other == kind).unwrap_or(0));
        }
        let mut engine = Self {
            gpu: gpu.clone(),
            manager: new_manager(&layout),
            plan: cache.new_plan(),
            cache,
            kernels,
            kinds,
            numbers: numbers.to_vec(),
            tokens: HashMap::new(),
        };
        engine.reset()?;
        Ok(engine)
    }

    /// Starts anew with the same kernels: no sequences, and NaN in the pools.
    ///
    /// # Errors
    /// [`Verdict::Gpu`].
    pub fn reset(&mut self) -> Result<(), Verdict> {
        (self.manager, self.plan) = (new_manager(self.cache.layout()), self.cache.new_plan());
        self.tokens.clear();
        self.poison(&(0..self.cache.layout().num_blocks()).filter_map(BlockId::new).collect::<Vec<_>>())
    }

    /// Fills blocks with NaN.
    ///
    /// # Errors
    /// [`Verdict::Gpu`].
    pub fn poison(&self, blocks: &[BlockId]) -> Result<(), Verdict> {
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        self.cache.clear_blocks(&mut encoder, blocks, ClearValue::Poison)?;
        self.gpu.submit(encoder);
        Ok(())
    }

    /// Fills all blocks with NaN that were given back since the last time.
    ///
    /// # Errors
    /// [`Verdict::Gpu`].
    pub fn poison_freed(&mut self) -> Result<(), Verdict> {
        let mut freed = Vec::new();
        self.manager.take_clears(&mut freed);
        self.poison(&freed)
    }

    /// An empty sequence.
    pub fn seq(&mut self) -> SeqId {
        self.manager.create_sequence().expect("room for a sequence")
    }

    /// A sequence with the blocks in which the prefix cache holds the start of these tokens, and how many they are.
    pub fn seq_of(&mut self, tokens: &[u32]) -> (SeqId, u32) {
        let found = self.manager.create_sequence_with_tokens(tokens, &Default::default());
        let (seq, cached) = found.expect("room for a sequence");
        self.tokens.insert(seq, tokens[..cached as usize].to_vec());
        (seq, cached)
    }

    /// A second sequence of the same tokens.
    pub fn fork(&mut self, seq: SeqId) -> SeqId {
        let fork = self.manager.fork(seq).expect("room for a fork");
        let tokens = self.tokens.get(&seq).cloned().unwrap_or_default();
        self.tokens.insert(fork, tokens);
        fork
    }

    /// Cuts a sequence to `len` tokens.
    pub fn truncate(&mut self, seq: SeqId, len: u32) {
        self.manager.truncate(seq, len).expect("the window still has what is left");
        self.tokens.entry(seq).or_default().truncate(len as usize);
    }

    /// Gives a sequence another name, under which it came back.
    pub fn rename(&mut self, seq: SeqId, new: SeqId) {
        let tokens = self.tokens.remove(&seq).unwrap_or_default();
        self.tokens.insert(new, tokens);
    }

    /// The kernels of a layer.
    pub fn kernels(&self, layer: u32) -> &(Appender, Attention) {
        &self.kernels[self.kinds[layer as usize]]
    }

    /// Buffers of a layer for a step that is not reserved yet.
    pub fn io(&self, layer: u32, requests: &[Request<'_>]) -> StepIo {
        let (group, number) = (group_of(self.cache.layout(), layer), self.numbers[layer as usize]);
        let (mut k, mut v, mut q, mut rows) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for &(seq, tokens) in requests {
            let len = self.manager.seq_len(seq).expect("a sequence");
            for (position, &token) in (len..).zip(tokens) {
                k.extend(row(Part::K, number, token, position, group.num_kv_heads() * group.head_dim()));
                v.extend(row(Part::V, number, token, position, group.num_kv_heads() * group.v_head_dim()));
                q.extend(row(Part::Q, number, token, position, Q_HEADS * group.head_dim()));
                rows += 1;
            }
        }
        let out = vec![SENTINEL; (rows * Q_HEADS * group.v_head_dim()) as usize];
        let new = |label, values: &[f32]| self.gpu.storage(label, values);
        StepIo { k: new("k", &k), v: new("v", &v), q: new("q", &q), out: new("out", &out) }
    }

    /// Records append and attention of all layers.
    ///
    /// # Errors
    /// [`Verdict::Gpu`].
    pub fn record(&self, encoder: &mut wgpu::CommandEncoder, step: &Step, io: &[StepIo]) -> Result<(), Verdict> {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for (layer, io) in (0..).zip(io) {
            let (appender, attention) = self.kernels(layer);
            self.cache.append(&mut pass, appender, step, layer, io.append())?;
            self.cache.attend(&mut pass, attention, step, layer, io.attend())?;
        }
        Ok(())
    }

    /// A whole step, after changes of the tables of some groups that the plan knows nothing of. Returns the outputs of every
    /// layer, `[rows, num_q_heads, v_head_dim]`.
    ///
    /// # Errors
    /// [`Verdict::Gpu`] or [`Verdict::Lost`].
    pub fn step_with(
        &mut self,
        requests: &[Request<'_>],
        planted: &[(usize, TableUpdate)],
    ) -> Result<Vec<Vec<f32>>, Verdict> {
        let io: Vec<_> = (0..self.cache.layout().num_layers()).map(|layer| self.io(layer, requests)).collect();
        self.manager.reserve_tokens(requests, &mut self.plan).expect("room for the step");
        for &(group, update) in planted {
            self.plan.groups_mut()[group].updates.push(update);
        }
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let step = self.cache.begin_step(&mut encoder, &self.plan)?;
        self.record(&mut encoder, &step, &io)?;
        self.gpu.submit(encoder);
        self.manager.commit(&mut self.plan).expect("the step is open");
        for &(seq, tokens) in requests {
            self.tokens.entry(seq).or_default().extend_from_slice(tokens);
        }
        let outs = io.iter().map(|io| self.gpu.read(&io.out).ok_or(Verdict::Lost)).collect();
        self.poison_freed()?;
        outs
    }

    /// A whole step, whose outputs are held against the oracle.
    ///
    /// # Errors
    /// As [`step_with`](Self::step_with), and [`Verdict::Output`].
    pub fn step(&mut self, requests: &[Request<'_>]) -> Result<StepOutcome, Verdict> {
        self.planted_step(requests, &[])
    }

    /// The same with changed tables.
    fn planted_step(
        &mut self,
        requests: &[Request<'_>],
        planted: &[(usize, TableUpdate)],
    ) -> Result<StepOutcome, Verdict> {
        let lens = requests.iter().map(|&(seq, tokens)| (seq, self.manager.seq_len(seq).unwrap_or(0), tokens.len()));
        let rows: Vec<_> =
            lens.flat_map(|(seq, len, count)| (len..len + count as u32).map(move |at| (seq, at))).collect();
        let outputs = self.step_with(requests, planted)?;
        let mut worst = 0.0_f64;
        for (layer, output) in (0..).zip(&outputs) {
            let width = output.len() / rows.len();
            for (&(seq, position), got) in rows.iter().zip(output.chunks(width)) {
                let (atol, rtol) = Tolerances::new(&ScenarioVariant::PLAIN, 2.0, position + 1, 0.0).output;
                let want = self.expected(seq, position, layer);
                worst = worst.max(compare(got, &want, atol, rtol).map_err(Verdict::Output)?);
            }
        }
        Ok(StepOutcome { outputs, worst })
    }

    /// What the attention of the token at `position` should give in a layer.
    fn expected(&self, seq: SeqId, position: u32, layer: u32) -> Vec<f64> {
        let (group, number) = (group_of(self.cache.layout(), layer), self.numbers[layer as usize]);
        let tokens = &self.tokens[&seq][..=position as usize];
        expected_output(group, number, tokens, Q_HEADS, group.window())
    }
}

/// What a step of a [`LayerEngine`] gave.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    /// Of every layer, `[rows, num_q_heads, v_head_dim]`.
    pub outputs: Vec<Vec<f32>>,
    /// The largest error.
    pub worst: f64,
}

/// A deliberate error in how groups of layers are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerFault {
    /// The layers of a group read the blocks of another group.
    OtherTable,
    /// A block that a window still shows belongs to others.
    ReleasedEarly,
}

impl LayerFault {
    /// Every fault.
    pub const ALL: [Self; 2] = [Self::OtherTable, Self::ReleasedEarly];

    /// What went wrong, in a few words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OtherTable => "table of another group",
            Self::ReleasedEarly => "block released too early",
        }
    }
}

/// A model of three kinds of layers: all keys, a narrow window, a wider one with half as many bytes a token. Where rows have
/// no scales, the first two differ in their heads as well.
pub fn layer_kinds(kv_dtype: KvDtype) -> Vec<LayerKind> {
    let has_scales = !matches!(kv_dtype, KvDtype::F32 | KvDtype::F16 | KvDtype::Bf16);
    let full = LayerKind::new(2, 64).with_v_head_dim(32);
    let (narrow, half) = match has_scales {
        true => (full.with_window(20), LayerKind::new(1, 64).with_v_head_dim(32)),
        false => (LayerKind::new(4, 32).with_v_head_dim(16).with_window(20), LayerKind::new(2, 32).with_v_head_dim(16)),
    };
    vec![narrow, narrow, full, half.with_window(40), narrow, full]
}

/// A cache for that model, in groups of two layers.
pub fn layer_config(kv_dtype: KvDtype) -> CacheConfig {
    CacheConfig::of_layers(&layer_kinds(kv_dtype))
        .with_layers_per_group(2)
        .with_kv_dtype(kv_dtype)
        .with_num_blocks(120)
        .with_max_seq_len(128)
        .with_max_sequences(8)
}

/// Tokens of a prompt.
fn words(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).collect()
}

/// A story of several sequences, in which tables get out of order, blocks change hands, and every step is held against the
/// oracle: ragged chunks of prompts beside single tokens, a fork with its copies, windows that move on, a cut.
///
/// # Errors
/// As [`LayerEngine::step`].
pub fn layer_story(engine: &mut LayerEngine, fault: Option<LayerFault>) -> Result<Vec<StepOutcome>, Verdict> {
    let (a, b) = (engine.seq(), engine.seq());
    let mut seen = vec![engine.step(&[(a, &words(100, 41)), (b, &[7, 8, 9])])?];
    seen.push(engine.step(&[(b, &[1]), (a, &words(200, 30))])?);
    let c = engine.fork(a);
    seen.push(engine.step(&[(c, &[1]), (b, &words(300, 17)), (a, &[2])])?);
    engine.manager.release(b).expect("a sequence");
    engine.poison_freed()?;
    // What was given back goes to another sequence.
    let d = engine.seq();
    seen.push(engine.step(&[(d, &words(400, 50)), (a, &[3]), (c, &[4])])?);
    engine.truncate(a, 71);
    seen.push(engine.step(&[(a, &[5, 6]), (d, &words(500, 9))])?);
    let planted = match fault {
        Some(LayerFault::OtherTable) => other_table(engine, a),
        Some(LayerFault::ReleasedEarly) => {
            engine.poison(&oldest_kept(engine, a).into_iter().collect::<Vec<_>>())?;
            Vec::new()
        }
        None => Vec::new(),
    };
    seen.push(engine.planted_step(&[(d, &[6]), (c, &[6]), (a, &[7])], &planted)?);
    engine.manager.check_invariants().expect("nothing was lost");
    Ok(seen)
}

/// The last group's row of a sequence, as if its blocks were those of the first group.
fn other_table(engine: &LayerEngine, seq: SeqId) -> Vec<(usize, TableUpdate)> {
    let (last, layout) = (engine.cache.layout().num_groups() - 1, engine.cache.layout());
    let table = |group| engine.manager.group_block_table(seq, group).expect("a sequence");
    let start = seq.index() * layout.groups()[last].max_blocks_per_seq();
    let kept = (0..).zip(table(0)).zip(table(last)).filter(|(_, block)| **block != RELEASED);
    kept.map(|((column, &block), _)| (last, TableUpdate { index: start + column, block })).collect()
}

/// The oldest block of a sequence in the last group, which its window still shows.
fn oldest_kept(engine: &LayerEngine, seq: SeqId) -> Option<BlockId> {
    let table = engine.manager.group_block_table(seq, engine.cache.layout().num_groups() - 1).expect("a sequence");
    table.iter().copied().find(|block| *block != RELEASED)
}
