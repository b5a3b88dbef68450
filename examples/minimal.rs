//! The whole story with an engine's own device: a cache, one sequence, a prompt, one decoded token, and a look at it.
//!
//! `cargo run --release --example minimal --no-default-features`

use std::error::Error;

use wgpu_paged_attention::blocks::CacheManager;
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::gpu::{AttentionIo, AttentionSpec, KvCache, recommended_features, recommended_limits};
use wgpu_paged_attention::reference::{self, Heads};
use wgpu_paged_attention::wgpu::{self, util::DeviceExt};

const Q_HEADS: u32 = 8;
const KV_HEADS: u32 = 2;
const HEAD_DIM: u32 = 64;
const PROMPT: u32 = 37;

fn main() -> Result<(), Box<dyn Error>> {
    let (device, queue) = pollster::block_on(open())?;

    // Stand-ins for what the model's projections write into its buffers: [tokens, heads, head_dim], f32.
    let q = Values::random(1, (PROMPT + 1) * Q_HEADS * HEAD_DIM);
    let k = Values::random(2, (PROMPT + 1) * KV_HEADS * HEAD_DIM);
    let v = Values::random(3, (PROMPT + 1) * KV_HEADS * HEAD_DIM);

    // Once: the cache (here one layer and 64 blocks of 16 tokens), its kernels, and who owns which block.
    let layout = CacheConfig::new(1, KV_HEADS, HEAD_DIM).with_num_blocks(64).layout()?;
    let cache = KvCache::new(&device, &layout)?;
    let attention = cache.attention(AttentionSpec::new(Q_HEADS))?;
    let mut manager = CacheManager::new(&layout)?;
    let mut plan = cache.new_plan();
    let seq = manager.create_sequence()?;
    let mut last_output = None;

    // Each step: first the prompt, then one token. Both are the same code.
    for tokens in [0..PROMPT, PROMPT..PROMPT + 1] {
        let (q, k, v) = (q.upload(&device, &tokens), k.upload(&device, &tokens), v.upload(&device, &tokens));
        let out = output(&device, q.size());

        manager.reserve(&[(seq, tokens.end - tokens.start)], &mut plan)?;
        let mut encoder = device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&queue, &mut encoder, &plan)?;
        for layer in 0..layout.num_layers() {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            cache.append(&mut pass, &step, layer, k.slice(..), v.slice(..))?;
            let io = AttentionIo { q: q.slice(..), out: out.slice(..), lse: None };
            cache.attend(&mut pass, &attention, &step, layer, io)?;
        }
        queue.submit([encoder.finish()]);
        manager.commit(&mut plan)?;
        last_output = Some(out);
    }

    // The decoded token has seen every key, as f16 keeps them.
    let got = read(&device, &queue, &last_output.ok_or("no step was run")?)?;
    let (k, v) = (k.as_stored(), v.as_stored());
    let heads = Heads { num_q_heads: 8, num_kv_heads: 2, head_dim: 64 };
    let row = |of: &[f32], token: usize, head: usize| ((token * 2 + head) * 64, of.len()).0;
    let want = reference::attend(
        &heads,
        0.125, // 1 / sqrt(HEAD_DIM)
        &q.0[(PROMPT * Q_HEADS * HEAD_DIM) as usize..],
        PROMPT as usize + 1,
        |token, head| &k[row(&k, token, head)..][..64],
        |token, head| &v[row(&v, token, head)..][..64],
    );
    let error = reference::compare(&got, &want.output, 1e-5, 1e-4)?;
    println!(
        "{}: decoded token {} over {} blocks, first outputs {:.4?}, largest error {error:.1e}",
        device.adapter_info().name,
        manager.seq_len(seq)?,
        manager.block_table(seq)?.len(),
        &got[..3]
    );
    Ok(())
}
