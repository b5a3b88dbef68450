//! The whole story: an engine's own device, a cache, one sequence, a prompt, one decoded token.
//!
//! Needs the library only: `cargo run --release --example minimal --no-default-features`.

mod common;

use std::error::Error;

use common::{Buffers, HEADS, Text, open_device};
use wgpu_paged_attention::blocks::CacheManager;
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::gpu::{AttentionIo, AttentionSpec, KvCache};
use wgpu_paged_attention::reference;

const PROMPT: u32 = 37;

fn main() -> Result<(), Box<dyn Error>> {
    let (device, queue) = open_device()?;
    let text = Text::random(1, PROMPT + 1);

    // Once: a cache of one layer and 64 blocks of 16 tokens, its kernels, and the keeper of its blocks.
    let layout = CacheConfig::new(1, 2, 64).with_num_blocks(64).layout()?;
    let cache = KvCache::new(&device, &layout)?;
    let attention = cache.attention(AttentionSpec::new(8))?;
    let mut manager = CacheManager::new(&layout)?;
    let mut plan = cache.new_plan();
    let seq = manager.create_sequence()?;

    // Each step takes the same path: first all tokens of the prompt, then one token.
    let mut outputs = Vec::new();
    for tokens in [0..PROMPT, PROMPT..PROMPT + 1] {
        let buffers = Buffers::new(&device, &[(&text, tokens.clone())]);
        manager.reserve(&[(seq, tokens.end - tokens.start)], &mut plan)?;
        let mut encoder = device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&queue, &mut encoder, &plan)?;
        for layer in 0..layout.num_layers() {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            cache.append(&mut pass, &step, layer, buffers.k.slice(..), buffers.v.slice(..))?;
            let io = AttentionIo { q: buffers.q.slice(..), out: buffers.out.slice(..), lse: None };
            cache.attend(&mut pass, &attention, &step, layer, io)?;
        }
        queue.submit([encoder.finish()]);
        manager.commit(&mut plan)?;
        outputs.extend(buffers.read_out(&device, &queue)?);
    }

    // Every token of the prompt has seen those before it, and the decoded one has seen them all.
    let mut worst = 0.0_f64;
    for (token, got) in (0..).zip(outputs.chunks(HEADS.query_len())) {
        worst = worst.max(reference::compare(got, &text.expected(token).output, 1e-5, 1e-4)?);
    }
    let blocks = manager.block_table(seq)?;
    assert_eq!((manager.seq_len(seq)?, blocks.len()), (PROMPT + 1, 3));
    println!("{}: {PROMPT} tokens of prompt and 1 decoded, in blocks {blocks:?}", device.adapter_info().name);
    println!("largest difference from the f64 reference: {worst:.1e}");
    Ok(())
}
