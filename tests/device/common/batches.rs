//! The sequences of a scenario in whatever batches a test asks for, over one cache and with one set of kernels.
#![allow(dead_code, reason = "every test binary uses a part of it")]

use half::f16;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use wgpu_paged_attention::gpu::{Attention, AttentionIo, DeviceProfile, IoFormat, KvCache};
use wgpu_paged_attention::plan::{Append, RawTables, StepPlan, Tables};
use wgpu_paged_attention::testkit::{Gpu, Scenario, ScenarioSpec};
use wgpu_paged_attention::wgpu;

/// Bytes of spare blocks, per KV head: with them a head's pool is larger than any other argument of a step, so that a
/// binding may be limited to it.
const SPARE_BYTES: u32 = 1 << 18;

/// What a sequence brings to a batch: its last `queries` of `len` tokens, by one of its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// A table of the scenario: sequence `seq % num_seqs`, whose first blocks are shared if it is below `num_seqs`.
    pub table: usize,
    pub len: u32,
    pub queries: u32,
}

/// The words of a row's output, and of its log-sum-exps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub out: Vec<u32>,
    pub lse: Vec<u32>,
}

pub struct Batches<'a> {
    gpu: &'a Gpu,
    /// Every sequence twice: with the first blocks in common with others, and with blocks of its own.
    pub scenario: Scenario,
    num_seqs: usize,
    cache: KvCache,
    attention: Attention,
}

/// A number from −2 to 2 that depends on these alone.
fn number(seed: u64, place: [u32; 4]) -> f32 {
    let mix = |state: u64, word: u32| {
        let x = (state ^ u64::from(word)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    (place.into_iter().fold(seed, mix) >> 40) as f32 / (1 << 22) as f32 - 2.0
}

/// A scenario for [`Batches`]: `spec.shared_blocks` say what the sequences have in common, tokens and all. Every token has a
/// query.
pub fn scenario(spec: &ScenarioSpec, seed: u64) -> Scenario {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut spec = spec.clone();
    let num_seqs = spec.seq_lens.len();
    spec.seq_lens.extend_from_within(..);
    spec.query_lens = Some(spec.seq_lens.clone());
    let blocks: Vec<u32> = spec.seq_lens.iter().map(|len| len.div_ceil(spec.block_size)).collect();
    let row_bytes = 16 * spec.kv_dtype.row_units(spec.head_dim.min(spec.v_dim()));
    let num_blocks = blocks.iter().sum::<u32>() + SPARE_BYTES.div_ceil(spec.block_size * row_bytes);
    let mut ids: Vec<u32> = (0..num_blocks).collect();
    ids.shuffle(&mut rng);
    let mut tables: Vec<Vec<u32>> = blocks.iter().map(|&blocks| ids.split_off(ids.len() - blocks as usize)).collect();
    let longest = (0..num_seqs).max_by_key(|&seq| tables[seq].len()).unwrap();
    let common = tables[longest].clone();
    for table in &mut tables[..num_seqs] {
        let shared = (spec.shared_blocks as usize).min(table.len());
        table[..shared].copy_from_slice(&common[..shared]);
    }
    let mut scenario = Scenario::blank(&spec, tables, num_blocks).unwrap();
    let shared_tokens = spec.shared_blocks * spec.block_size;
    let tag = |seq: usize, position: u32| if position < shared_tokens { u32::MAX } else { (seq % num_seqs) as u32 };
    scenario.fill(
        |seq, position, head, d| number(seed, [tag(seq, position), position, head, 2 * d]),
        |seq, position, head, d| number(seed, [tag(seq, position), position, head, 2 * d + 1]),
    );
    let width = (spec.num_q_heads * spec.head_dim) as usize;
    let rows = spec.rows();
    for (at, q) in scenario.q.iter_mut().enumerate() {
        let (seq, row) = rows[at / width];
        *q = number(!seed, [(seq % num_seqs) as u32, row.position as u32, (at % width) as u32, 0]);
    }
    scenario.alibi_slopes.iter_mut().enumerate().for_each(|(head, slope)| *slope = 0.02 * (head + 1) as f32);
    scenario.sinks.iter_mut().enumerate().for_each(|(head, sink)| *sink = number(seed, [head as u32, 0, 0, 7]));
    scenario
}

/// The element of V, in the scenario's memory.
pub fn v_index(scenario: &Scenario, table: usize, position: u32, head: u32, d: u32) -> usize {
    let block = scenario.tables[table][(position / scenario.spec.block_size) as usize];
    let slot = block * scenario.spec.block_size + position % scenario.spec.block_size;
    ((slot * scenario.spec.num_kv_heads + head) * scenario.spec.v_dim() + d) as usize
}

impl<'a> Batches<'a> {
    pub fn new(gpu: &'a Gpu, profile: &DeviceProfile, scenario: Scenario) -> Self {
        let cache = scenario.upload(gpu, profile).unwrap();
        let attention = cache.attention(scenario.attention_spec(None)).unwrap();
        Self { gpu, num_seqs: scenario.tables.len() / 2, scenario, cache, attention }
    }

    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// The plan of a batch, which appends nothing.
    pub fn plan(&self, batch: &[Part]) -> StepPlan {
        let block_size = self.scenario.spec.block_size;
        let (mut indptr, mut indices, mut last_page_len, mut cu_seqlens_q) = (vec![0], vec![], vec![], vec![0]);
        for part in batch {
            indices.extend(&self.scenario.tables[part.table][..part.len.div_ceil(block_size) as usize]);
            indptr.push(indices.len() as u32);
            last_page_len.push(part.len.saturating_sub(1) % block_size + 1);
            cu_seqlens_q.push(cu_seqlens_q[cu_seqlens_q.len() - 1] + part.queries);
        }
        let skip = vec![-1; cu_seqlens_q[batch.len()] as usize];
        let tables = RawTables {
            tables: Tables::Csr { indptr: &indptr, indices: &indices, last_page_len: &last_page_len },
            cu_seqlens_q: Some(&cu_seqlens_q),
            append: Append::Slots(&skip),
        };
        let mut plan = self.cache.new_plan();
        plan.plan_tables(self.cache.layout(), &tables).unwrap();
        plan
    }

    /// The rows of every part of a batch, served in one step.
    pub fn run(&self, batch: &[Part]) -> Vec<Vec<Row>> {
        let spec = &self.scenario.spec;
        let width = (spec.num_q_heads * spec.head_dim) as usize;
        let mut q = Vec::new();
        for part in batch {
            let seq = part.table % self.num_seqs;
            let first: u32 = spec.seq_lens[..seq].iter().sum::<u32>() + part.len - part.queries;
            q.extend_from_slice(&self.scenario.q[first as usize * width..][..part.queries as usize * width]);
        }
        let rows = q.len() / width;
        let per_word = spec.variant.io_format.per_word() as usize;
        let out_words = (spec.num_q_heads * spec.v_dim()) as usize / per_word;
        let gpu = self.gpu;
        let q = match spec.variant.io_format {
            IoFormat::F32 => gpu.storage("q", &q),
            IoFormat::F16 => gpu.storage("q", &q.into_iter().map(f16::from_f32).collect::<Vec<_>>()),
        };
        let out = gpu.storage("out", &vec![0x4b4b_4b4b_u32; rows * out_words]);
        let lse = gpu.storage("lse", &vec![0x4b4b_4b4b_u32; rows * spec.num_q_heads as usize]);
        let plan = self.plan(batch);
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = self.cache.begin_step(&mut encoder, &plan).unwrap();
        {
            let mut pass: wgpu::ComputePass<'_> = encoder.begin_compute_pass(&Default::default());
            let io = AttentionIo::new(q.slice(..), out.slice(..));
            let io = if spec.lse { io.with_lse(lse.slice(..)) } else { io };
            self.cache.attend(&mut pass, &self.attention, &step, 0, io).unwrap();
        }
        gpu.submit(encoder);
        let (out, lse): (Vec<u32>, Vec<u32>) = (gpu.read(&out).unwrap(), gpu.read(&lse).unwrap());
        let mut rows = out.chunks(out_words).zip(lse.chunks(spec.num_q_heads as usize));
        let row = |(out, lse): (&[u32], &[u32])| Row { out: out.to_vec(), lse: lse.to_vec() };
        batch.iter().map(|part| rows.by_ref().take(part.queries as usize).map(row).collect()).collect()
    }

    /// The rows of a part that is served alone.
    pub fn alone(&self, part: Part) -> Vec<Row> {
        self.run(&[part]).remove(0)
    }
}
