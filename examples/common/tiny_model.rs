//! A language model of one layer whose every step stays on the device: word ids in, the next word's ids out. What it says is
//! made up; its attention is the real one.

use std::error::Error;

use wgpu_paged_attention::blocks::{CacheManager, ManagerOptions, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::ManagerError;
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, KvCache, RotarySpec, RotaryStyle, Step,
};
use wgpu_paged_attention::layout::KvLayout;
use wgpu_paged_attention::plan::{STEP_WORDS_VERSION, StepPlan};
use wgpu_paged_attention::wgpu::{self, util::DeviceExt};

pub const WORDS: u32 = 48;
/// The word that ends a text; the longer a text is, the likelier it comes.
pub const END: u32 = 0;
/// Rows of a step at most.
pub const MAX_ROWS: u64 = 64;
/// Bytes of a step's ids: a binding may begin at each.
pub const IDS_BYTES: u64 = 4 * MAX_ROWS;

pub const Q_HEADS: u32 = 8;
pub const KV_HEADS: u32 = 2;
pub const HEAD_DIM: u32 = 64;

/// The kernels of the model. They take the rows, their positions and the last rows from the words of the step.
const TEXT: &str = "
const WORDS = 48u;
const Q = 512u;
const KV = 128u;

@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read> words: array<f32>;
@group(0) @binding(3) var<storage, read_write> q: array<f32>;
@group(0) @binding(4) var<storage, read_write> k: array<f32>;
@group(0) @binding(5) var<storage, read_write> v: array<f32>;

// Looks up q, k and v of every row's word.
@compute @workgroup_size(64)
fn embed(@builtin(global_invocation_id) id: vec3<u32>) {
    let row = id.x / (Q + 2u * KV);
    if (row >= step[1]) { return; }
    let at = id.x % (Q + 2u * KV);
    let value = words[ids[row] * (Q + 2u * KV) + at];
    if (at < Q) { q[row * Q + at] = value; }
    else if (at < Q + KV) { k[row * KV + at - Q] = value; }
    else { v[row * KV + at - Q - KV] = value; }
}

@group(0) @binding(6) var<storage, read> attended: array<f32>;
@group(0) @binding(7) var<storage, read_write> next: array<u32>;

// The likeliest word behind every request's last row.
@compute @workgroup_size(64)
fn sample(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= step[4]) { return; }
    let row = step[step[8] + id.x];
    let position = bitcast<i32>(step[step[5] + row]);
    var best = 0u;
    var best_score = 0.0;
    for (var word = 0u; word < WORDS; word++) {
        var score = select(0.0, 0.13 * f32(position), word == 0u);
        for (var at = 0u; at < Q; at++) { score += words[word * (Q + 2u * KV) + at] * attended[row * Q + at]; }
        if (word == 0u || score > best_score) {
            best = word;
            best_score = score;
        }
    }
    next[id.x] = best;
}
";

fn new_manager(layout: &KvLayout) -> Result<CacheManager, ManagerError> {
    CacheManager::with_options(layout, &ManagerOptions::default().with_prefix_cache(true))
}

/// A model with its cache and the manager of the blocks.
pub struct TinyEngine {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub cache: KvCache,
    pub manager: CacheManager,
    plan: StepPlan,
    model: TinyModel,
}

impl TinyEngine {
    /// `random(count)` are numbers between -1 and 1.
    pub fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        random: impl FnOnce(usize) -> Vec<f32>,
    ) -> Result<Self, Box<dyn Error>> {
        let layout = CacheConfig::new(1, KV_HEADS, HEAD_DIM).with_num_blocks(64).with_max_seq_len(256).layout()?;
        let cache = KvCache::new(&device, &layout)?;
        let manager = new_manager(&layout)?;
        let (plan, model) = (cache.new_plan(), TinyModel::new(&cache, random)?);
        Ok(Self { device, queue, cache, manager, plan, model })
    }

    /// Forgets all sequences and all that was cached.
    pub fn reset(&mut self) -> Result<(), ManagerError> {
        self.manager = new_manager(self.cache.layout())?;
        Ok(())
    }

    /// Appends the words of a prompt, at most [`MAX_ROWS`], and returns the word behind them.
    pub fn prompt(&mut self, seq: SeqId, words: &[u32]) -> Result<u32, Box<dyn Error>> {
        let ids = self.model.ids(2, words);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let step = self.manager.step_tokens(&[(seq, words)], &mut self.plan)?;
        let begun = self.cache.begin_step(&mut encoder, step.plan())?;
        self.model.record(&mut encoder, &self.cache, &begun, &ids, 0)?;
        self.queue.submit([encoder.finish()]);
        step.commit();
        Ok(self.read(&ids, 2)?[MAX_ROWS as usize])
    }

    /// Appends a word to each sequence, then the words that the model says behind these, in `steps` steps of one submit.
    /// Returns the words, `[sequences][steps + 1]`; of the last the cache knows nothing yet.
    pub fn decode(&mut self, batch: &[(SeqId, u32)], steps: usize) -> Result<Vec<Vec<u32>>, Box<dyn Error>> {
        let first: Vec<u32> = batch.iter().map(|(_, word)| *word).collect();
        let requests: Vec<(SeqId, u32)> = batch.iter().map(|(seq, _)| (*seq, 1)).collect();
        let ids = self.model.ids(steps + 1, &first);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        for at in 0..steps {
            // Which word it is, only the device will know. The step counts as done here, so that the next can be planned.
            let step = self.manager.step(&requests, &mut self.plan)?;
            let begun = self.cache.begin_step(&mut encoder, step.plan())?;
            self.model.record(&mut encoder, &self.cache, &begun, &ids, at as u64)?;
            step.commit();
        }
        self.queue.submit([encoder.finish()]);
        let ids = self.read(&ids, steps + 1)?;
        let words = |at| ids.iter().skip(at).step_by(MAX_ROWS as usize).copied().collect();
        Ok((0..batch.len()).map(words).collect())
    }

    fn read(&self, ids: &wgpu::Buffer, steps: usize) -> Result<Vec<u32>, Box<dyn Error>> {
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: steps as u64 * IDS_BYTES,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(ids, 0, &staging, 0, staging.size());
        let (sender, receiver) = std::sync::mpsc::channel();
        encoder.map_buffer_on_submit(&staging, wgpu::MapMode::Read, .., move |result| {
            // The receiver lives until the device is done.
            let _ = sender.send(result);
        });
        self.queue.submit([encoder.finish()]);
        self.device.poll(wgpu::PollType::wait_indefinitely())?;
        receiver.recv()??;
        Ok(bytemuck::pod_collect_to_vec(&staging.get_mapped_range(..)?[..]))
    }
}

/// The kernels of the model and their buffers.
struct TinyModel {
    device: wgpu::Device,
    appender: Appender,
    attention: Attention,
    embed: wgpu::ComputePipeline,
    sample: wgpu::ComputePipeline,
    words: wgpu::Buffer,
    /// `q`, `k`, `v`, rotated queries and outputs of a step.
    io: [wgpu::Buffer; 5],
}

impl TinyModel {
    fn new(cache: &KvCache, random: impl FnOnce(usize) -> Vec<f32>) -> Result<Self, Box<dyn Error>> {
        // The kernels below read this version of a step's words.
        assert_eq!(STEP_WORDS_VERSION, 1);
        let device = cache.device().clone();
        let spec = AttentionSpec::new(Q_HEADS);
        let rotary = RotarySpec::new(RotaryStyle::HalfSplit, HEAD_DIM);
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("tiny model"),
            source: wgpu::ShaderSource::Wgsl(TEXT.into()),
        });
        let pipeline = |entry_point| {
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(entry_point),
                layout: None,
                module: &module,
                entry_point: Some(entry_point),
                compilation_options: Default::default(),
                cache: None,
            })
        };
        let (q, kv) = (u64::from(Q_HEADS * HEAD_DIM), u64::from(KV_HEADS * HEAD_DIM));
        let words = random((u64::from(WORDS) * (q + 2 * kv)) as usize);
        let buffer = |width: u64| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: 4 * MAX_ROWS * width,
                usage: wgpu::BufferUsages::STORAGE,
                mapped_at_creation: false,
            })
        };
        Ok(Self {
            appender: cache.appender(AppendSpec::for_attention(&spec).with_rotary(rotary))?,
            attention: cache.attention(spec)?,
            embed: pipeline("embed"),
            sample: pipeline("sample"),
            words: device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
                label: None,
                contents: bytemuck::cast_slice(&words),
                usage: wgpu::BufferUsages::STORAGE,
            }),
            io: [q, kv, kv, q, q].map(buffer),
            device,
        })
    }

    /// A buffer for the ids of some steps, `[steps, MAX_ROWS]`, the first of which hold `ids`.
    fn ids(&self, steps: usize, ids: &[u32]) -> wgpu::Buffer {
        let mut contents = vec![0; steps * MAX_ROWS as usize];
        contents[..ids.len()].copy_from_slice(ids);
        self.device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
            label: Some("ids"),
            contents: bytemuck::cast_slice(&contents),
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
        })
    }

    /// Records a step: step `at` of `ids` are its words, and the next step's are written behind them.
    fn record(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        cache: &KvCache,
        step: &Step,
        ids: &wgpu::Buffer,
        at: u64,
    ) -> Result<(), Box<dyn Error>> {
        let [q, k, v, rotated, out] = &self.io;
        let whole = wgpu::Buffer::as_entire_buffer_binding;
        let own = wgpu::BufferBinding { buffer: ids, offset: at * IDS_BYTES, size: wgpu::BufferSize::new(IDS_BYTES) };
        let words = whole(&self.words);
        let embed = [(0, step.words()), (1, own), (2, words.clone()), (3, whole(q)), (4, whole(k)), (5, whole(v))];
        let rows = step.num_rows();
        self.dispatch(encoder, &self.embed, &embed, rows * (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM);
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let append = AppendIo::new(k.slice(..), v.slice(..)).with_queries(q.slice(..), rotated.slice(..));
        cache.append(&mut pass, &self.appender, step, 0, append)?;
        let attend = AttentionIo::new(rotated.slice(..), out.slice(..));
        cache.attend(&mut pass, &self.attention, step, 0, attend)?;
        drop(pass);
        // The next ids lie in the buffer of these, so they are sampled elsewhere and copied.
        let next = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("next ids"),
            size: IDS_BYTES,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let sample = [(0, step.words()), (2, words), (6, whole(out)), (7, whole(&next))];
        self.dispatch(encoder, &self.sample, &sample, rows);
        encoder.copy_buffer_to_buffer(&next, 0, ids, (at + 1) * IDS_BYTES, IDS_BYTES);
        Ok(())
    }

    fn dispatch(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        pipeline: &wgpu::ComputePipeline,
        bindings: &[(u32, wgpu::BufferBinding<'_>)],
        invocations: u32,
    ) {
        let entries: Vec<_> = bindings
            .iter()
            .map(|(binding, buffer)| wgpu::BindGroupEntry {
                binding: *binding,
                resource: wgpu::BindingResource::Buffer(buffer.clone()),
            })
            .collect();
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(invocations.div_ceil(64), 1, 1);
    }
}
