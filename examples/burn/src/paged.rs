//! A paged KV cache on cubecl's device and queue. It reads queries, keys and values where cubecl has them, and writes where
//! cubecl reads on.

use std::cell::Cell;
use std::error::Error;
use std::ops::Range;

use cubecl::client::Client;
use cubecl::server::Handle;
use cubecl::wgpu::{AutoCompiler, WgpuResource, WgpuServer, WgpuSetup};
use wgpu_paged_attention::blocks::CacheManager;
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, IoSlice, KvCache, RotarySpec, RotaryStyle,
    Step,
};
use wgpu_paged_attention::wgpu;

pub const NUM_Q_HEADS: usize = 8;
pub const NUM_KV_HEADS: usize = 2;
pub const HEAD_DIM: usize = 64;
pub const ROPE_BASE: f64 = 10_000.0;
/// Elements of a token in queries and outputs, and in keys or values.
pub const Q_WIDTH: usize = NUM_Q_HEADS * HEAD_DIM;
pub const KV_WIDTH: usize = NUM_KV_HEADS * HEAD_DIM;

/// Tokens of each text that are known when it begins, and those that follow one a step; both texts grow into a second block.
pub const PROMPTS: [usize; 2] = [21, 12];
pub const DECODED: usize = 6;

/// Where a fused projection lies, `[tokens, q | k | v]` in f32.
pub struct Qkv {
    pub memory: Handle,
    /// Elements from a token to the next.
    pub token_stride: usize,
    /// The first element of a token's q, k and v.
    pub columns: [usize; 3],
}

/// The columns as they lie side by side.
pub const COLUMNS: [usize; 3] = [0, Q_WIDTH, Q_WIDTH + KV_WIDTH];
/// Keys in the place of values: an error that the checks have to find.
pub const WRONG_COLUMNS: [usize; 3] = [0, Q_WIDTH, Q_WIDTH];
pub const QKV_WIDTH: usize = Q_WIDTH + 2 * KV_WIDTH;

pub struct PagedAttention {
    device: wgpu::Device,
    queue: wgpu::Queue,
    cache: KvCache,
    appender: Appender,
    attention: Attention,
    /// How often queries and outputs lay in one buffer.
    in_one_buffer: Cell<u32>,
}

impl PagedAttention {
    pub fn new(setup: &WgpuSetup, num_layers: u32) -> Result<Self, Box<dyn Error>> {
        // f32, so that the comparison is sharp; f16 is the default.
        let layout = CacheConfig::new(num_layers, NUM_KV_HEADS as u32, HEAD_DIM as u32)
            .with_num_blocks(16)
            .with_kv_dtype(KvDtype::F32)
            .layout()?;
        let cache = KvCache::new(&setup.device, &layout)?;
        // By default, cubecl cuts all its tensors from a few large buffers.
        let spec = AttentionSpec::new(NUM_Q_HEADS as u32).with_shared_buffers();
        let rotary = RotarySpec::new(RotaryStyle::HalfSplit, HEAD_DIM as u32).with_base(ROPE_BASE as f32);
        let appender = cache.appender(AppendSpec::for_attention(&spec).with_rotary(rotary))?;
        let attention = cache.attention(spec)?;
        let (device, queue) = (setup.device.clone(), setup.queue.clone());
        Ok(Self { device, queue, cache, appender, attention, in_one_buffer: Cell::new(0) })
    }

    /// Runs both texts. `forward` gets a step, and which tokens of each text are in it, and has all layers done.
    ///
    /// # Errors
    /// Also if queries and outputs never lay in one buffer, as they do in cubecl's default memory.
    pub fn run(
        &self,
        mut forward: impl FnMut(&Step, &[Range<usize>; 2]) -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        let (mut manager, mut plan) = (CacheManager::new(self.cache.layout())?, self.cache.new_plan());
        let sequences = [manager.create_sequence()?, manager.create_sequence()?];
        for at in 0..=DECODED {
            let tokens = PROMPTS.map(|prompt| if at == 0 { 0..prompt } else { prompt + at - 1..prompt + at });
            let requests = [0, 1].map(|text| (sequences[text], tokens[text].len() as u32));
            let reserved = manager.step(&requests, &mut plan)?;
            let mut encoder = self.device.create_command_encoder(&Default::default());
            // One upload for all layers.
            let step = self.cache.begin_step(&mut encoder, reserved.plan())?;
            self.queue.submit([encoder.finish()]);
            forward(&step, &tokens)?;
            reserved.commit();
        }
        for sequence in sequences {
            println!("{} tokens in blocks {:?}", manager.seq_len(sequence)?, manager.block_table(sequence)?);
        }
        match self.in_one_buffer.get() {
            0 => Err("queries and outputs never lay in one buffer; is this cubecl's default memory?".into()),
            _ => Ok(()),
        }
    }

    /// Appends the step's keys and values in one layer and attends; `out` is `[tokens, Q_WIDTH]` in f32, too.
    pub fn layer(
        &self,
        client: &Client,
        step: &Step,
        layer: u32,
        qkv: &Qkv,
        out: &Handle,
    ) -> Result<(), Box<dyn Error>> {
        let rotated = client.empty(step.num_rows() as usize * Q_WIDTH * size_of::<f32>());
        // What is held here keeps its place until it is dropped: after the submit.
        let hold = |memory: &Handle| client.get_resource::<WgpuServer<AutoCompiler>>(memory.clone());
        let held = (hold(&qkv.memory)?, hold(&rotated)?, hold(out)?);
        // What cubecl has recorded comes before what is submitted below: the projection, and whatever had this memory before.
        client.flush()?;
        let is_one = held.1.resource().buffer == held.2.resource().buffer;
        self.in_one_buffer.update(|times| times + u32::from(is_one));

        let [q, k, v] = qkv.columns.map(|first| columns(held.0.resource(), first, qkv.token_stride));
        let [rotated, attended] = [&held.1, &held.2].map(|held| slice(held.resource(), 0));
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let append = AppendIo::new(k, v).with_queries(q, rotated);
        self.cache.append(&mut pass, &self.appender, step, layer, append)?;
        self.cache.attend(&mut pass, &self.attention, step, layer, AttentionIo::new(rotated, attended))?;
        drop(pass);
        self.queue.submit([encoder.finish()]);
        Ok(())
    }
}

fn slice(memory: &WgpuResource, first: usize) -> wgpu::BufferSlice<'_> {
    let start = memory.offset + (first * size_of::<f32>()) as u64;
    memory.buffer.slice(start..memory.offset + memory.size)
}

fn columns(memory: &WgpuResource, first: usize, token_stride: usize) -> IoSlice<'_> {
    IoSlice::new(slice(memory, first)).with_token_stride(token_stride as u32)
}
