//! What an engine has anyway: a device, the model's buffers, a way to read back; and the answer that is expected.
#![allow(dead_code, reason = "every example uses a part of it")]

use std::error::Error;
use std::ops::Range;

use wgpu_paged_attention::formats::{KvDtype, round_rows};
use wgpu_paged_attention::gpu::{AppendIo, AttentionIo, recommended_features, recommended_limits};
use wgpu_paged_attention::reference::{self, Attended, Heads, QueryRow, Rotary, Scoring};
use wgpu_paged_attention::wgpu::{self, util::DeviceExt};

/// A small model's attention: four query heads share a KV head.
pub const HEADS: Heads = Heads::new(8, 2, 64);

/// Opens the first adapter, with what the cache makes use of; plain WebGPU defaults would do as well.
pub fn open_device() -> Result<(wgpu::Device, wgpu::Queue), Box<dyn Error>> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let adapter = pollster::block_on(instance.request_adapter(&Default::default()))
        .map_err(|error| format!("{error}; `make setup` installs a driver that computes on the CPU"))?;
    let descriptor = wgpu::DeviceDescriptor {
        required_features: recommended_features(&adapter),
        required_limits: recommended_limits(&adapter),
        ..Default::default()
    };
    Ok(pollster::block_on(adapter.request_device(&descriptor))?)
}

/// Queries, keys and values of a text, as a model's projections would give them: `[tokens, heads, head_dim]`.
pub struct Text {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

impl Text {
    /// Numbers between -1 and 1 that depend on the seed only.
    pub fn random(seed: u64, tokens: u32) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut numbers = |heads: usize| -> Vec<f32> {
            let next = |_| {
                // xorshift
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1 << 23) as f32 - 1.0
            };
            (0..tokens as usize * heads * HEADS.head_dim).map(next).collect()
        };
        Self { q: numbers(HEADS.num_q_heads), k: numbers(HEADS.num_kv_heads), v: numbers(HEADS.num_kv_heads) }
    }

    /// The same text after rotary embedding of all of a head, in f64: queries and keys of token `t` at position `t`.
    pub fn rotated(&self, rotary: &Rotary<'_>) -> Self {
        let turn = |rows: &[f32], heads: usize| -> Vec<f32> {
            let tokens = rows.chunks(heads * HEADS.head_dim).zip(0..);
            let heads = tokens.flat_map(|(token, at)| token.chunks(HEADS.head_dim).map(move |head| (head, at)));
            heads.flat_map(|(head, at)| reference::rotate(rotary, head, at)).map(|x| x as f32).collect()
        };
        Self { q: turn(&self.q, HEADS.num_q_heads), k: turn(&self.k, HEADS.num_kv_heads), v: self.v.clone() }
    }

    /// Attention of one token over all tokens up to itself, in f64, of K and V as a cache in f16 keeps them.
    pub fn expected(&self, token: u32) -> Attended {
        let (mut k, mut v) = (self.k.clone(), self.v.clone());
        round_rows(KvDtype::F16, HEADS.head_dim, &mut k);
        round_rows(KvDtype::F16, HEADS.head_dim, &mut v);
        let query = token as usize * HEADS.query_len();
        let row = |position: usize, head: usize| {
            let start = (position * HEADS.num_kv_heads + head) * HEADS.head_dim;
            start..start + HEADS.head_dim
        };
        reference::attend(
            &HEADS,
            &Scoring::new(1.0 / (HEADS.head_dim as f64).sqrt()),
            &self.q[query..query + HEADS.query_len()],
            QueryRow::newest(token as usize + 1),
            |position, head| &k[row(position, head)],
            |position, head| &v[row(position, head)],
        )
    }
}

/// The buffers of one layer in one step.
pub struct Buffers {
    pub q: wgpu::Buffer,
    pub k: wgpu::Buffer,
    pub v: wgpu::Buffer,
    /// As large as `q`, for queries after rotary embedding.
    pub rotated: wgpu::Buffer,
    pub out: wgpu::Buffer,
}

impl Buffers {
    /// Uploads these tokens of these texts, one text after the other.
    pub fn new(device: &wgpu::Device, parts: &[(&Text, Range<u32>)]) -> Self {
        let all = |of: fn(&Text) -> &[f32], heads: usize| -> Vec<f32> {
            let size = heads * HEADS.head_dim;
            let range = |tokens: &Range<u32>| tokens.start as usize * size..tokens.end as usize * size;
            parts.iter().flat_map(|(text, tokens)| &of(text)[range(tokens)]).copied().collect()
        };
        let kv_heads = HEADS.num_kv_heads;
        let [q, k, v] =
            [all(|text| &text.q, HEADS.num_q_heads), all(|text| &text.k, kv_heads), all(|text| &text.v, kv_heads)];
        Self::upload(device, &q, &k, &v)
    }

    /// Uploads `[tokens, heads, head_dim]` of each; the outputs are as many as the queries.
    pub fn upload(device: &wgpu::Device, q: &[f32], k: &[f32], v: &[f32]) -> Self {
        let [q, k, v] = [q, k, v].map(|values| {
            device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
                label: None,
                contents: bytemuck::cast_slice(values),
                usage: wgpu::BufferUsages::STORAGE,
            })
        });
        let [rotated, out] = [(); 2].map(|()| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: q.size(),
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            })
        });
        Self { q, k, v, rotated, out }
    }

    /// What an append without rotary embedding takes.
    pub fn append(&self) -> AppendIo<'_> {
        AppendIo::new(self.k.slice(..), self.v.slice(..))
    }

    /// What an attention takes after it.
    pub fn attend(&self) -> AttentionIo<'_> {
        AttentionIo::new(self.q.slice(..), self.out.slice(..))
    }

    /// Waits for the device and returns the outputs, `[tokens, num_q_heads, head_dim]`.
    pub fn read_out(&self, device: &wgpu::Device, queue: &wgpu::Queue) -> Result<Vec<f32>, Box<dyn Error>> {
        read(device, queue, &self.out)
    }
}

/// Waits for the device and returns what a buffer holds.
pub fn read(device: &wgpu::Device, queue: &wgpu::Queue, buffer: &wgpu::Buffer) -> Result<Vec<f32>, Box<dyn Error>> {
    let staging = device.create_buffer(&wgpu::BufferDescriptor {
        label: None,
        size: buffer.size(),
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, staging.size());
    let (sender, receiver) = std::sync::mpsc::channel();
    encoder.map_buffer_on_submit(&staging, wgpu::MapMode::Read, .., move |result| {
        // The receiver lives until the device is done.
        let _ = sender.send(result);
    });
    queue.submit([encoder.finish()]);
    device.poll(wgpu::PollType::wait_indefinitely())?;
    receiver.recv()??;
    Ok(bytemuck::pod_collect_to_vec(&staging.get_mapped_range(..)?[..]))
}
