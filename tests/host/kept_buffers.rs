//! How long a cache holds on to the buffers of its caller, on a device that computes nothing: wgpu counts what lives.

use wgpu_paged_attention::blocks::{CacheManager, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, IoFormat, KvCache, State, StateMerger,
    StateShape,
};
use wgpu_paged_attention::plan::StepPlan;
use wgpu_paged_attention::wgpu;

/// An engine with one sequence, and an instance of its own, whose counts no other test changes.
struct Engine {
    instance: wgpu::Instance,
    device: wgpu::Device,
    queue: wgpu::Queue,
    cache: KvCache,
    manager: CacheManager,
    plan: StepPlan,
    appender: Appender,
    attention: Attention,
    seq: SeqId,
}

impl Engine {
    fn new() -> Self {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = wgpu::Backends::NOOP;
        descriptor.backend_options.noop = wgpu::NoopBackendOptions::enabled();
        let instance = wgpu::Instance::new(descriptor);
        let adapter = pollster::block_on(instance.request_adapter(&Default::default())).unwrap();
        let (device, queue) = pollster::block_on(adapter.request_device(&Default::default())).unwrap();
        let layout = CacheConfig::new(1, 1, 64).with_max_seq_len(4096).with_num_blocks(300).layout().unwrap();
        let cache = KvCache::new(&device, &layout).unwrap();
        let mut manager = CacheManager::new(&layout).unwrap();
        Self {
            instance,
            device,
            queue,
            appender: cache.appender(AppendSpec::new()).unwrap(),
            attention: cache.attention(AttentionSpec::new(1)).unwrap(),
            seq: manager.create_sequence().unwrap(),
            plan: cache.new_plan(),
            cache,
            manager,
        }
    }

    /// Buffers and bind groups that live.
    fn alive(&self) -> (usize, usize) {
        let report = self.instance.generate_report().unwrap();
        let hub = report.hub_report();
        (hub.buffers.num_allocated, hub.bind_groups.num_allocated)
    }

    /// k, v, q and out, with room for several of each.
    fn buffers(&self) -> [wgpu::Buffer; 4] {
        let (size, usage) = (1 << 16, wgpu::BufferUsages::STORAGE);
        [(); 4].map(|()| {
            self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
        })
    }

    /// A step of one token, submitted and done, with the slices from `offset` on.
    fn step(&mut self, buffers: &[wgpu::Buffer; 4], offsets: &[u64]) {
        self.manager.reserve(&[(self.seq, 1)], &mut self.plan).unwrap();
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let step = self.cache.begin_step(&mut encoder, &self.plan).unwrap();
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for &offset in offsets {
            let [k, v, q, out] = buffers.each_ref().map(|buffer| buffer.slice(offset..offset + 256));
            self.cache.append(&mut pass, &self.appender, &step, 0, AppendIo::new(k, v)).unwrap();
            self.cache.attend(&mut pass, &self.attention, &step, 0, AttentionIo::new(q, out)).unwrap();
        }
        drop((pass, step));
        self.queue.submit([encoder.finish()]);
        self.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        self.manager.commit(&mut self.plan).unwrap();
    }
}

#[test]
fn buffers_that_come_once_are_not_held() {
    let mut engine = Engine::new();
    let mut alive = Vec::new();
    for _ in 0..20 {
        let buffers = engine.buffers();
        // Twice in one step is once.
        engine.step(&buffers, &[0, 0]);
        drop(buffers);
        alive.push(engine.alive());
    }
    assert!(alive[1..].iter().all(|counts| *counts == alive[1]), "{alive:?}");
}

#[test]
fn buffers_that_came_again_are_let_go_after_32_further_steps_or_when_that_is_asked_for() {
    let mut engine = Engine::new();
    let buffers = engine.buffers();
    for _ in 0..5 {
        engine.step(&buffers, &[0]);
    }
    engine.cache.forget_buffers();
    let without = engine.alive();
    for at_once in [true, false] {
        let others = engine.buffers();
        for _ in 0..5 {
            engine.step(&others, &[0]);
        }
        drop(others);
        assert_eq!(engine.alive(), (without.0 + 4, without.1 + 2), "four buffers in two bind groups");
        if at_once {
            engine.cache.forget_buffers();
        } else {
            // They are not the buffers of these steps.
            for _ in 0..32 {
                let others = engine.buffers();
                engine.step(&others, &[0]);
            }
        }
        assert_eq!(engine.alive(), without);
    }
}

#[test]
fn there_is_a_limit_to_the_bind_groups_that_are_held() {
    let mut engine = Engine::new();
    let buffers = engine.buffers();
    engine.step(&buffers, &[0]);
    let before = engine.alive();
    let offsets: Vec<u64> = (0..255).map(|at| 256 * at).collect();
    // So many sets of buffers that all slices of them are more than are held.
    let sets: Vec<_> = (0..12).map(|_| engine.buffers()).collect();
    for _ in 0..3 {
        engine.manager.truncate(engine.seq, 0).unwrap();
        let engine = &mut engine;
        sets.iter().for_each(|buffers| engine.step(buffers, &offsets));
    }
    let (held, _) = (engine.alive().1 - before.1, before);
    assert!(held <= 4096 && held > 4000, "{held}");
    engine.cache.forget_buffers();
    engine.step(&buffers, &[0]);
    assert!(engine.alive().1 <= before.1 + 1);
}

#[test]
fn a_merger_holds_what_comes_again_for_two_thousand_merges() {
    let engine = Engine::new();
    let merger = StateMerger::new(&engine.device, IoFormat::F32).unwrap();
    let merge = |[a, b, c, d]: &[wgpu::Buffer; 4]| {
        let mut encoder = engine.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let (one, two) = (State::new(a.slice(..), b.slice(..)), State::new(c.slice(..), d.slice(..)));
        merger.merge(&mut pass, StateShape::new(1, 1, 8), one, two).unwrap();
    };
    let before = engine.alive();
    let buffers = engine.buffers();
    (0..3).for_each(|_| merge(&buffers));
    drop(buffers);
    assert_eq!(engine.alive(), (before.0 + 4, before.1 + 1));
    (0..2048).for_each(|_| merge(&engine.buffers()));
    assert_eq!(engine.alive(), before);
}
