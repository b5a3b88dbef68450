//! Recording a step, from its upload to the end of its pass: no memory of ours, once the same buffers have come twice.

use crate::allocations::{Askers, askers_during};
use wgpu_paged_attention::blocks::{CacheManager, SeqId};
use wgpu_paged_attention::config::{CacheConfig, LayerKind};
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, KvCache, MropeSections, RotarySpec,
    RotaryStyle,
};
use wgpu_paged_attention::plan::StepPlan;
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;

const LAYERS: u32 = 4;

/// A batch in the middle of decoding, on a device that computes nothing.
struct Engine {
    gpu: Gpu,
    cache: KvCache,
    manager: CacheManager,
    plan: StepPlan,
    appender: Appender,
    attention: Attention,
    batch: Vec<(SeqId, u32)>,
    /// k, v, q, rotated, out, weights
    io: [wgpu::Buffer; 6],
}

impl Engine {
    fn new(context: u32, spec: AttentionSpec) -> Self {
        Self::of(CacheConfig::new(LAYERS, 2, 8), context, spec)
    }

    fn of(config: CacheConfig, context: u32, spec: AttentionSpec) -> Self {
        let gpu = Gpu::noop();
        let config = config.with_max_seq_len(context + 100).with_num_blocks(context);
        let layout = config.layout().unwrap();
        let cache = KvCache::new(&gpu.device, &layout).unwrap();
        let rotary = RotarySpec::new(RotaryStyle::HalfSplit, 8).with_sections(MropeSections::new([2, 1, 1]));
        let (mut manager, mut plan) = (CacheManager::new(&layout).unwrap(), cache.new_plan());
        let batch: Vec<_> = (0..3).map(|_| (manager.create_sequence().unwrap(), 1)).collect();
        for &(seq, _) in &batch {
            manager.reserve(&[(seq, context)], &mut plan).unwrap();
            manager.commit(&mut plan).unwrap();
        }
        let io = ["k", "v", "q", "rotated", "out", "weights"].map(|label| gpu.storage(label, &[0.0_f32; 3 * 4 * 8]));
        Self {
            appender: cache.appender(AppendSpec::for_attention(&spec).with_qk_norm(1e-6).with_rotary(rotary)).unwrap(),
            attention: cache.attention(spec).unwrap(),
            gpu,
            cache,
            manager,
            plan,
            batch,
            io,
        }
    }

    /// A whole step, submitted as soon as it is recorded; `also` is done in the middle of it.
    fn step(&mut self, also: impl FnOnce(&KvCache)) -> Askers {
        self.manager.reserve(&self.batch, &mut self.plan).unwrap();
        let [k, v, q, rotated, out, weights] = self.io.each_ref().map(|buffer| buffer.slice(..));
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let mut commands = None;
        let positions = [[1, 2, 3]; 3];
        let askers = askers_during(|| {
            self.plan.set_mrope_positions(&positions[..self.plan.num_rows() as usize]).unwrap();
            let step = self.cache.begin_step(&mut encoder, &self.plan).unwrap();
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for layer in 0..LAYERS {
                let io = AppendIo::new(k, v).with_queries(q, rotated).with_k_norm(weights).with_q_norm(weights);
                self.cache.append(&mut pass, &self.appender, &step, layer, io).unwrap();
                let io = AttentionIo::new(rotated, out);
                self.cache.attend(&mut pass, &self.attention, &step, layer, io).unwrap();
            }
            also(&self.cache);
            drop((step, pass));
            commands = Some(encoder.finish());
        });
        self.gpu.queue.submit(commands);
        self.gpu.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        self.manager.commit(&mut self.plan).unwrap();
        askers
    }
}

#[test]
fn recording_a_warm_step_asks_for_no_memory_of_ours() {
    // The second has splits to merge.
    for (context, merges) in [(40, false), (3000, true)] {
        for window in [None, Some(2500)] {
            let spec = AttentionSpec::new(4);
            let mut engine = Engine::new(context, window.map_or(spec.clone(), |window| spec.with_window(window)));
            let cold = engine.step(|_| {});
            assert!(!cold.ours.is_empty());
            engine.step(|_| {});
            engine.step(|_| {});
            // Long enough for every sequence to begin a block.
            for _ in 0..16 {
                let askers = engine.step(|_| {});
                assert!(askers.ours.is_empty(), "{merges} {window:?}: {:#?}", askers.ours);
                assert!(askers.others > 0);
            }
        }
    }
}

#[test]
fn a_warm_step_over_groups_of_layers_asks_for_no_memory_of_ours() {
    let (full, windowed) = (LayerKind::new(2, 8), LayerKind::new(2, 8).with_window(2500));
    let config = CacheConfig::of_layers(&[windowed, full, windowed, full]);
    let mut engine = Engine::of(config, 3000, AttentionSpec::new(4).with_window(2500));
    assert_eq!(engine.cache.layout().num_groups(), 2);
    (0..3).for_each(|_| drop(engine.step(|_| {})));
    for _ in 0..16 {
        let askers = engine.step(|_| {});
        assert!(askers.ours.is_empty(), "{:#?}", askers.ours);
    }
}

#[test]
fn planted_memory_of_ours_is_noticed() {
    let mut engine = Engine::new(40, AttentionSpec::new(4));
    (0..3).for_each(|_| drop(engine.step(|_| {})));
    let askers = engine.step(|cache| drop(cache.new_plan()));
    assert!(!askers.ours.is_empty());
}
