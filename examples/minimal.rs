//! The whole story: an engine's own device, a cache, one sequence, a prompt, one decoded token.
//!
//! Needs the library only: `cargo run --release --example minimal --no-default-features`.

mod common;

use std::error::Error;

use common::{Buffers, HEADS, Text, open_device};
use wgpu_paged_attention::blocks::CacheManager;
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::gpu::{AppendIo, AppendSpec, AttentionIo, AttentionSpec, KvCache, RotarySpec, RotaryStyle};
use wgpu_paged_attention::reference::{self, Rotary, inverse_frequencies};

const PROMPT: u32 = 37;

fn main() -> Result<(), Box<dyn Error>> {
    let (device, queue) = open_device()?;
    let text = Text::random(1, PROMPT + 1);

    // Once: a cache of one layer, 2 KV heads of 64 elements and 64 blocks of 16 tokens; the kernels for 8 query heads, and
    // the rotary embedding of a Llama in Hugging Face's format; the manager of the blocks.
    let layout = CacheConfig::new(1, 2, 64).with_num_blocks(64).layout()?;
    let cache = KvCache::new(&device, &layout)?;
    let spec = AttentionSpec::new(8);
    let rotary = RotarySpec::new(RotaryStyle::HalfSplit, 64).with_base(500_000.0);
    let appender = cache.appender(AppendSpec::for_attention(&spec).with_rotary(rotary))?;
    let attention = cache.attention(spec)?;
    let (mut manager, mut plan) = (CacheManager::new(&layout)?, cache.new_plan());
    let seq = manager.create_sequence()?;

    // Each step takes the same path: first all tokens of the prompt, then one token.
    let mut outputs = Vec::new();
    for tokens in [0..PROMPT, PROMPT..PROMPT + 1] {
        let Buffers { q, k, v, rotated, out } = &Buffers::new(&device, &[(&text, tokens.clone())]);
        // Undone if an error drops it before its commit.
        let reserved = manager.step(&[(seq, tokens.end - tokens.start)], &mut plan)?;
        let mut encoder = device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&mut encoder, reserved.plan())?;
        for layer in 0..layout.num_layers() {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let io = AppendIo::new(k.slice(..), v.slice(..)).with_queries(q.slice(..), rotated.slice(..));
            cache.append(&mut pass, &appender, &step, layer, io)?;
            cache.attend(&mut pass, &attention, &step, layer, AttentionIo::new(rotated.slice(..), out.slice(..)))?;
        }
        queue.submit([encoder.finish()]);
        reserved.commit();
        outputs.extend(common::read(&device, &queue, out)?);
    }

    // Every token of the prompt has seen those before it, and the decoded one has seen them all.
    let inv_freq = inverse_frequencies(500_000.0, HEADS.head_dim);
    let text = text.rotated(&Rotary::new(false, &inv_freq));
    let mut worst = 0.0_f64;
    for (token, got) in (0..).zip(outputs.chunks(HEADS.query_len())) {
        // A rotated key that lies between two numbers in f16 may be rounded to either.
        worst = worst.max(reference::compare(got, &text.expected(token).output, 1e-3, 1e-3)?);
    }
    let blocks = manager.block_table(seq)?;
    assert_eq!((manager.seq_len(seq)?, blocks.len()), (PROMPT + 1, 3));
    println!("{}: {PROMPT} tokens of prompt and 1 decoded, in blocks {blocks:?}", device.adapter_info().name);
    println!("largest difference from the f64 reference: {worst:.1e}");
    Ok(())
}
