//! The same requests and the same memory, once reserved in one piece per sequence and once in blocks: how many
//! sequences run at a time?

mod common;

use std::error::Error;

use common::{Buffers, HEADS, Text, open_device};
use wgpu_paged_attention::blocks::{CacheManager, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::{ManagerError, PoolError};
use wgpu_paged_attention::gpu::{AppendSpec, AttentionSpec, KvCache};
use wgpu_paged_attention::reference;
use wgpu_paged_attention::wgpu;

const MEMORY: u64 = 4 << 20;
const MAX_SEQ_LEN: u32 = 1024;
/// Tokens of the waiting requests, this pattern over and over: most are far below the longest.
const LENGTHS: [u32; 8] = [31, 190, 64, 422, 17, 101, 260, 75];

struct Outcome {
    sequences: usize,
    reserved: u64,
    used: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let (device, queue) = open_device()?;
    println!(
        "{}: {} KiB of K and V, sequences of up to {MAX_SEQ_LEN} tokens",
        device.adapter_info().name,
        MEMORY >> 10
    );
    let contiguous = run(&device, &queue, false)?;
    let paged = run(&device, &queue, true)?;
    println!("mode        sequences  reserved KiB  used KiB  used");
    for (mode, outcome) in [("contiguous", &contiguous), ("paged", &paged)] {
        let Outcome { sequences, reserved, used } = *outcome;
        let (share, reserved, used) = (100.0 * used as f64 / reserved as f64, reserved >> 10, used >> 10);
        println!("{mode:<10}  {sequences:>9}  {reserved:>12}  {used:>8}  {share:>3.0}%");
    }
    assert_eq!(contiguous.reserved, MEMORY);
    assert!(paged.sequences > 4 * contiguous.sequences, "paging lets several times as many sequences in");
    assert!(10 * paged.used > 9 * paged.reserved, "all that is lost is part of each sequence's last block");
    Ok(())
}

/// Lets in requests until the memory is full, appends their prompts, decodes one token each and checks it.
fn run(device: &wgpu::Device, queue: &wgpu::Queue, paged: bool) -> Result<Outcome, Box<dyn Error>> {
    let config = CacheConfig::new(1, 2, 64).with_memory_budget_bytes(MEMORY).with_max_seq_len(MAX_SEQ_LEN);
    // The one difference.
    let layout = config.with_paged(paged).layout()?;
    let cache = KvCache::new(device, &layout)?;
    let (appender, attention) = (cache.appender(AppendSpec::new())?, cache.attention(AttentionSpec::new(8))?);
    let mut manager = CacheManager::new(&layout)?;
    let mut plan = cache.new_plan();

    let mut batch: Vec<(SeqId, u32)> = Vec::new();
    for &length in LENGTHS.iter().cycle() {
        match manager.create_sequence() {
            Ok(seq) => batch.push((seq, length)),
            Err(ManagerError::Pool(PoolError::OutOfBlocks { .. })) => break,
            Err(error) => return Err(error.into()),
        }
        if !manager.can_reserve(&batch, 0) {
            batch.pop().map(|(seq, _)| manager.release(seq)).transpose()?;
            break;
        }
    }
    let texts: Vec<Text> = (0..).zip(&batch).map(|(seed, &(_, length))| Text::random(seed, length)).collect();
    let lengths = || texts.iter().zip(&batch).map(|(text, &(_, length))| (text, length));

    // All tokens but the last are the prompt; its outputs are not needed, so it is appended only.
    let prompts: Vec<_> = batch.iter().map(|&(seq, length)| (seq, length - 1)).collect();
    let buffers = Buffers::new(device, &lengths().map(|(text, length)| (text, 0..length - 1)).collect::<Vec<_>>());
    manager.reserve(&prompts, &mut plan)?;
    let mut encoder = device.create_command_encoder(&Default::default());
    let step = cache.begin_step(&mut encoder, &plan)?;
    cache.append(&mut encoder.begin_compute_pass(&Default::default()), &appender, &step, 0, buffers.append())?;
    queue.submit([encoder.finish()]);
    manager.commit(&mut plan)?;

    let decodes: Vec<_> = batch.iter().map(|&(seq, _)| (seq, 1)).collect();
    let parts: Vec<_> = lengths().map(|(text, length)| (text, length - 1..length)).collect();
    let buffers = Buffers::new(device, &parts);
    manager.reserve(&decodes, &mut plan)?;
    let mut encoder = device.create_command_encoder(&Default::default());
    let step = cache.begin_step(&mut encoder, &plan)?;
    let mut pass = encoder.begin_compute_pass(&Default::default());
    cache.append(&mut pass, &appender, &step, 0, buffers.append())?;
    cache.attend(&mut pass, &attention, &step, 0, buffers.attend())?;
    drop(pass);
    queue.submit([encoder.finish()]);
    manager.commit(&mut plan)?;

    let outputs = buffers.read_out(device, queue)?;
    for ((text, length), got) in lengths().zip(outputs.chunks(HEADS.query_len())) {
        reference::compare(got, &text.expected(length - 1).output, 1e-5, 1e-4)?;
    }
    let tokens: u64 = batch.iter().map(|&(_, length)| u64::from(length)).sum();
    Ok(Outcome {
        sequences: batch.len(),
        reserved: u64::from(manager.num_blocks() - manager.num_free_blocks()) * layout.block_bytes(),
        used: tokens * layout.bytes_per_token(),
    })
}
