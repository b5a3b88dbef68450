//! An engine that keeps its own block tables and only hands them over: first as vLLM does, `block_table`, `seq_lens` and
//! `slot_mapping` with -1 for padding, then as FlashInfer does, `indptr`, `indices`, `last_page_len` and positions. Two
//! sequences share a block.

mod common;

use std::error::Error;

use common::{Buffers, HEADS, Text, open_device};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::gpu::{AppendSpec, AttentionSpec, KvCache};
use wgpu_paged_attention::plan::{Append, RawTables, Tables};
use wgpu_paged_attention::reference;

const BLOCK_SIZE: u32 = 16;
/// Columns of a row that are not used may hold anything.
const UNUSED: u32 = 999_999;
/// Sequence A has 20 tokens in blocks 5 and 2; B shares block 5, its first 16 tokens, and goes on in block 9; the last
/// row fills the batch up.
const BLOCK_TABLE: [u32; 9] = [5, 2, UNUSED, 5, 9, UNUSED, UNUSED, UNUSED, UNUSED];
const MAX_BLOCKS: u32 = 3;

/// The slot of a position in a sequence: `block * block_size + offset`.
fn slot(sequence: u32, position: u32) -> i64 {
    let block = BLOCK_TABLE[(sequence * MAX_BLOCKS + position / BLOCK_SIZE) as usize];
    i64::from(block * BLOCK_SIZE + position % BLOCK_SIZE)
}

fn main() -> Result<(), Box<dyn Error>> {
    let (device, queue) = open_device()?;
    let a = Text::random(1, 21);
    let mut b = Text::random(2, 20);
    let shared = BLOCK_SIZE as usize * HEADS.num_kv_heads * HEADS.head_dim;
    b.k[..shared].copy_from_slice(&a.k[..shared]);
    b.v[..shared].copy_from_slice(&a.v[..shared]);

    let layout = CacheConfig::new(1, 2, 64).with_block_size(BLOCK_SIZE).with_num_blocks(32).layout()?;
    let cache = KvCache::new(&device, &layout)?;
    let (appender, attention) = (cache.appender(AppendSpec::new())?, cache.attention(AttentionSpec::new(8))?);
    let mut plan = cache.new_plan();
    let mut run = |tables: &RawTables<'_>, buffers: &Buffers| -> Result<Vec<f32>, Box<dyn Error>> {
        plan.plan_tables(&layout, tables)?;
        let mut encoder = device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&mut encoder, &plan)?;
        let mut pass = encoder.begin_compute_pass(&Default::default());
        cache.append(&mut pass, &appender, &step, 0, buffers.append())?;
        cache.attend(&mut pass, &attention, &step, 0, buffers.attend())?;
        drop(pass);
        queue.submit([encoder.finish()]);
        buffers.read_out(&device, &queue)
    };

    // Prefill: all 20 tokens of A, and of B only the 3 that no block holds yet.
    let slots: Vec<i64> = (0..20).map(|p| slot(0, p)).chain((16..19).map(|p| slot(1, p))).collect();
    let dense = |seq_lens| Tables::Dense { block_table: &BLOCK_TABLE, max_blocks: MAX_BLOCKS, seq_lens };
    let tables =
        RawTables { tables: dense(&[20, 19, 0]), cu_seqlens_q: Some(&[0, 20, 23, 23]), append: Append::Slots(&slots) };
    let prefill = run(&tables, &Buffers::new(&device, &[(&a, 0..20), (&b, 16..19)]))?;

    // Decode: one token each, and a padding row whose K and V go nowhere. The same tables, as a list of blocks.
    let tables = RawTables {
        tables: Tables::Csr { indptr: &[0, 2, 4, 4], indices: &[5, 2, 5, 9], last_page_len: &[5, 4, 0] },
        cu_seqlens_q: None,
        append: Append::Positions { batch_indices: &[0, 1, -1], positions: &[20, 19, 0] },
    };
    let decode = run(&tables, &Buffers::new(&device, &[(&a, 20..21), (&b, 19..20), (&a, 0..1)]))?;

    let of_a = (0..20).map(|token| a.expected(token).output);
    let want: Vec<f64> = of_a.chain((16..19).map(|token| b.expected(token).output)).flatten().collect();
    let worst = reference::compare(&prefill, &want, 1e-5, 1e-4)?;
    let padding = vec![0.0; HEADS.query_len()];
    let want = [a.expected(20).output, b.expected(19).output, padding].concat();
    let worst = reference::compare(&decode, &want, 1e-5, 1e-4)?.max(worst);
    // A table that points outside the pool is refused on the host.
    let wrong = RawTables::new(dense(&[33, 20, 0]));
    let refused = plan_error(&cache, &wrong).ok_or("a bad block id was accepted")?;

    println!("{}: 23 tokens prefilled and 2 decoded through the engine's own tables", device.adapter_info().name);
    println!("largest difference from the f64 reference: {worst:.1e}");
    println!("and a wrong table is refused: {refused}");
    Ok(())
}

fn plan_error(cache: &KvCache, tables: &RawTables<'_>) -> Option<String> {
    cache.new_plan().plan_tables(cache.layout(), tables).err().map(|error| error.to_string())
}
