//! What it costs the host to record a step, in CPU time of the recording thread: append with rotary embedding and attention
//! of 32 layers, and beside them the same dispatches with bind groups that were made beforehand.

use std::time::Duration;

use wgpu_paged_attention::blocks::{CacheManager, SeqId};
use wgpu_paged_attention::config::{CacheConfig, LayerKind};
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, KvCache, RotarySpec, RotaryStyle,
};
use wgpu_paged_attention::plan::StepPlan;
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;

mod support {
    pub mod clock;
    pub mod floor;
}

use support::clock::ThreadTime;
use support::floor::Floor;

const LAYERS: u32 = 32;
const STEPS: usize = 60;
const WARM: usize = 10;

/// An engine in the middle of decoding; its commands are dropped, not run.
struct Engine {
    cache: KvCache,
    manager: CacheManager,
    plan: StepPlan,
    appender: Appender,
    attention: Attention,
    batch: Vec<(SeqId, u32)>,
    /// k, v, q, rotated, out
    io: [wgpu::Buffer; 5],
}

/// CPU time of a step. The clock costs as much as a part of it, so it is read at the ends alone, or else around the parts.
#[derive(Clone, Copy, Default)]
struct Parts {
    whole: Duration,
    begin: Duration,
    append: Duration,
    attend: Duration,
    finish: Duration,
}

impl Parts {
    /// Does a part of the work, and adds its time to `time` if that is wanted.
    fn time<T>(wanted: bool, time: &mut Duration, work: impl FnOnce() -> T) -> T {
        let clock = wanted.then(ThreadTime::now);
        let done = work();
        *time += clock.map_or(Duration::ZERO, |clock| clock.elapsed());
        done
    }
}

impl Engine {
    /// With `groups`, every other layer looks back 512 tokens and has a table of its own.
    fn new(gpu: &Gpu, num_seqs: u32, context: u32, groups: bool) -> Self {
        let (kind, window) = (LayerKind::new(1, 8), 512);
        let kinds: Vec<_> =
            (0..LAYERS).map(|layer| if groups && layer % 2 == 0 { kind.with_window(window) } else { kind }).collect();
        let room = context + 2 * (STEPS + WARM) as u32 + 1;
        let config = CacheConfig::of_layers(&kinds)
            .with_max_seq_len(room)
            .with_max_sequences(num_seqs)
            .with_num_blocks(num_seqs * room.div_ceil(16) * (1 + u32::from(groups)));
        let layout = config.layout().expect("the configuration is valid");
        let cache = KvCache::new(&gpu.device, &layout).expect("the device is there");
        let spec = AttentionSpec::new(4);
        // Narrow enough for all layers.
        let spec = if groups { spec.with_window(window) } else { spec };
        let rotary = RotarySpec::new(RotaryStyle::HalfSplit, 8);
        let appender = cache.appender(AppendSpec::for_attention(&spec).with_rotary(rotary)).expect("it compiles");
        let attention = cache.attention(spec).expect("it compiles");
        let mut manager = CacheManager::new(&layout).expect("the tables fit into memory");
        let mut plan = cache.new_plan();
        let batch: Vec<_> = (0..num_seqs).map(|_| (manager.create_sequence().expect("there is room"), 1)).collect();
        for &(seq, _) in &batch {
            manager.reserve(&[(seq, context)], &mut plan).expect("the pool is large enough");
            manager.commit(&mut plan).expect("the step is open");
        }
        let io =
            ["k", "v", "q", "rotated", "out"].map(|label| gpu.storage(label, &vec![0.5_f32; (num_seqs * 32) as usize]));
        Self { cache, manager, plan, appender, attention, batch, io }
    }

    /// Records a step, and commits it as if it had run.
    fn step(&mut self, device: &wgpu::Device, apart: bool) -> Parts {
        self.manager.reserve(&self.batch, &mut self.plan).expect("the pool is large enough");
        let mut times = Parts::default();
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let [k, v, q, rotated, out] = self.io.each_ref().map(|buffer| buffer.slice(..));
        let clock = ThreadTime::now();
        let begin = || self.cache.begin_step(&mut encoder, &self.plan).expect("the plan is the cache's");
        let step = Parts::time(apart, &mut times.begin, begin);
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        for layer in 0..LAYERS {
            let io = AppendIo::new(k, v).with_queries(q, rotated);
            let append = || self.cache.append(&mut pass, &self.appender, &step, layer, io).expect("the buffers fit");
            Parts::time(apart, &mut times.append, append);
            let io = AttentionIo::new(rotated, out);
            let attend = || self.cache.attend(&mut pass, &self.attention, &step, layer, io).expect("the buffers fit");
            Parts::time(apart, &mut times.attend, attend);
        }
        Parts::time(apart, &mut times.finish, || drop(pass));
        let commands = Parts::time(apart, &mut times.finish, || encoder.finish());
        times.whole = clock.elapsed();
        drop(commands);
        self.manager.commit(&mut self.plan).expect("the step is open");
        times
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() {
    let gpu = Gpu::open(&Default::default()).expect("a device");
    println!("{}, {LAYERS} layers, medians of {STEPS} steps, microseconds of the thread's CPU time", gpu.info.name);
    println!(
        "{:>16} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12} {:>8}",
        "batch", "begin", "append", "attend", "finish", "step", "dispatches", "ratio"
    );
    let batches =
        [(1, 600), (32, 600), (256, 600), (1, 4_000), (32, 4_000)].map(|(seqs, context)| (seqs, context, false));
    for (num_seqs, context, groups) in batches.into_iter().chain([(32, 600, true)]) {
        let mut engine = Engine::new(&gpu, num_seqs, context, groups);
        let floor = Floor::new(&gpu, LAYERS, context > 1024);
        let (mut steps, mut parts, mut floors) = (Vec::new(), Vec::new(), Vec::new());
        // Turn by turn, so that all meet the same machine.
        for at in 0..WARM + STEPS {
            let step = engine.step(&gpu.device, false);
            let alone = floor.step(&gpu.device, engine.plan.upload_bytes());
            let apart = engine.step(&gpu.device, true);
            if at >= WARM {
                steps.push(step.whole);
                floors.push(alone);
                parts.push(apart);
            }
        }
        let part = |of: fn(Parts) -> Duration| median(parts.iter().copied().map(of).collect());
        let (whole, alone) = (median(steps), median(floors));
        println!(
            "{:>16} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {whole:>8.1} {alone:>12.1} {:>8.2}",
            format!("{num_seqs} x {context}{}", if groups { ", groups" } else { "" }),
            part(|parts| parts.begin),
            part(|parts| parts.append),
            part(|parts| parts.attend),
            part(|parts| parts.finish),
            whole / alone,
        );
    }
}
