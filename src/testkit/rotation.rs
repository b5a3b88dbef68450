//! An append that norms and rotates K and the queries, on a device, against the oracle's in f64.

mod fault;
mod judge;
mod turn;

pub use fault::RotationFault;
pub use turn::Turn;

use std::fmt;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Gpu, SENTINEL, Verdict, io_buffer, read_io, round_io};
use crate::config::CacheConfig;
use crate::error::ConfigError;
use crate::formats::KvDtype;
use crate::gpu::{AppendIo, AppendSpec, AttentionSpec, IoFormat, KvCache};
use crate::layout::KvLayout;
use crate::plan::{Append, RawTables, StepPlan, Tables};

/// A word that a buffer of outputs holds until a kernel writes it.
pub const BLANK: u32 = 0x1234_5678;
const BLOCK_SIZE: u32 = 4;
const MAX_SEQ_LEN: u32 = 64;

/// A step whose K and queries are changed before they are stored: two tokens of a long sequence, one padding row without keys,
/// one decoding sequence, one whose slot is skipped, unless others are set.
#[derive(Clone, Debug, PartialEq)]
pub struct RotationScenario {
    /// Query heads.
    pub num_q_heads: u32,
    /// KV heads.
    pub num_kv_heads: u32,
    /// Elements of one head.
    pub head_dim: u32,
    /// Elements of one head of V.
    pub v_head_dim: u32,
    /// Storage of K and V.
    pub kv_dtype: KvDtype,
    /// What K, V and the queries are made of.
    pub io_format: IoFormat,
    /// What becomes of K and of the queries.
    pub turn: Turn,
    /// Tokens of every sequence, those of this step included.
    pub seq_lens: Vec<u32>,
    /// Queries of every sequence.
    pub query_lens: Vec<u32>,
    /// The slot of every query token, -1 for padding.
    pub slots: Vec<i64>,
}

/// What a step is given.
struct Inputs {
    /// `[tokens, num_kv_heads, head_dim]`, `[tokens, num_kv_heads, v_head_dim]`, `[tokens, num_q_heads, head_dim]`
    rows: [Vec<f32>; 3],
    /// `[head_dim]` weights of K's norm, and of the queries'.
    norms: [Vec<f32>; 2],
    mrope_positions: Vec<[u32; 3]>,
}

/// What a device answered.
struct Rotated {
    queries: Vec<f32>,
    /// K and V of all slots, as words of the one head shard.
    pools: [Vec<u32>; 2],
}

impl RotationScenario {
    /// The usual step: two KV heads, four query heads.
    pub fn new(kv_dtype: KvDtype, head_dim: u32, v_head_dim: u32, io_format: IoFormat, turn: Turn) -> Self {
        Self {
            num_q_heads: 4,
            num_kv_heads: 2,
            head_dim,
            v_head_dim,
            kv_dtype,
            io_format,
            turn,
            seq_lens: vec![41, 0, 7, 3],
            query_lens: vec![2, 1, 1, 1],
            slots: vec![39, 17, 2, 6, -1],
        }
    }

    /// The shape of its cache.
    ///
    /// # Errors
    /// [`ConfigError`] if there is no such cache.
    pub fn layout(&self) -> Result<KvLayout, ConfigError> {
        let config = CacheConfig::new(1, self.num_kv_heads, self.head_dim).with_v_head_dim(self.v_head_dim);
        let config = config.with_kv_dtype(self.kv_dtype).with_block_size(BLOCK_SIZE).with_num_blocks(16);
        config.with_max_seq_len(MAX_SEQ_LEN).layout()
    }

    /// The plan of its step, without positions in time, height and width.
    ///
    /// # Errors
    /// [`Verdict::Tables`] if the tables are refused.
    pub fn plan(&self, cache: &KvCache) -> Result<StepPlan, Verdict> {
        let max_blocks = cache.layout().max_blocks_per_seq();
        let block_table = vec![0; self.seq_lens.len() * max_blocks as usize];
        let mut cu = vec![0];
        for queries in &self.query_lens {
            cu.push(cu[cu.len() - 1] + queries);
        }
        let mut plan = cache.new_plan();
        let tables = Tables::Dense { block_table: &block_table, max_blocks, seq_lens: &self.seq_lens };
        let append = Append::Slots(&self.slots);
        plan.plan_tables(cache.layout(), &RawTables { tables, cu_seqlens_q: Some(&cu), append })?;
        Ok(plan)
    }

    /// The spec of its append.
    pub fn append_spec(&self) -> AppendSpec {
        let attention = AttentionSpec { io_format: self.io_format, ..AttentionSpec::new(self.num_q_heads) };
        self.turn.add_to(AppendSpec::for_attention(&attention))
    }

    /// K, V and queries, as the caller has them before they are put into f16.
    pub fn rows(&self, seed: u64) -> [Vec<f32>; 3] {
        let mut rng = StdRng::seed_from_u64(seed);
        [self.num_kv_heads * self.head_dim, self.num_kv_heads * self.v_head_dim, self.num_q_heads * self.head_dim]
            .map(|len| (0..len as usize * self.slots.len()).map(|_| rng.random_range(-2.0..2.0)).collect())
    }

    fn inputs(&self, seed: u64) -> Inputs {
        let mut rng = StdRng::seed_from_u64(!seed);
        let norms = [(); 2].map(|()| (0..self.head_dim).map(|_| rng.random_range(0.5..1.5)).collect());
        let mrope_positions = self.slots.iter().map(|_| [(); 3].map(|()| rng.random_range(0..MAX_SEQ_LEN))).collect();
        Inputs { rows: self.rows(seed), norms, mrope_positions }
    }

    /// Runs the step on a device, with a fault if one is planted, and compares queries and pools with the oracle. Returns the
    /// largest error of a query.
    ///
    /// # Errors
    /// Any [`Verdict`].
    pub fn run(&self, gpu: &Gpu, seed: u64, fault: Option<RotationFault>) -> Result<f64, Verdict> {
        let inputs = self.inputs(seed);
        let (planted, told) = match fault {
            Some(fault) => fault.plant(self, &inputs),
            None => (self.clone(), self.inputs(seed)),
        };
        let cache = KvCache::new(&gpu.device, &self.layout()?)?;
        let rotated = planted.rotate(gpu, &cache, &told)?;
        self.judge(&cache, &inputs, &rotated)
    }

    fn rotate(&self, gpu: &Gpu, cache: &KvCache, inputs: &Inputs) -> Result<Rotated, Verdict> {
        let head_shard = &cache.head_shards(0)?[0];
        for pool in [&head_shard.k, &head_shard.v] {
            gpu.queue.write_buffer(pool, 0, bytemuck::cast_slice(&vec![BLANK; (pool.size() / 4) as usize]));
        }
        let appender = cache.appender(self.append_spec())?;
        let mut plan = self.plan(cache)?;
        if self.turn.sections.is_some() {
            plan.set_mrope_positions(&inputs.mrope_positions)?;
        }
        let len = inputs.rows[2].len();
        let [k, v, q] = inputs.rows.each_ref().map(|rows| io_buffer(gpu, "rows", rows, self.io_format));
        let rotated = io_buffer(gpu, "rotated", &vec![SENTINEL; len], self.io_format);
        let [k_norm, q_norm] = inputs.norms.each_ref().map(|weights| gpu.storage("weights", weights));
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&mut encoder, &plan)?;
        let mut io = AppendIo::new(k.slice(..), v.slice(..));
        if !self.turn.is_none() {
            io = io.with_queries(q.slice(..), rotated.slice(..));
        }
        if self.turn.norm_eps.is_some() {
            io = io.with_k_norm(k_norm.slice(..)).with_q_norm(q_norm.slice(..));
        }
        cache.append(&mut encoder.begin_compute_pass(&Default::default()), &appender, &step, 0, io)?;
        gpu.submit(encoder);
        let queries = if self.turn.is_none() { &q } else { &rotated };
        let read = |pool| gpu.read(pool).ok_or(Verdict::Lost);
        Ok(Rotated {
            queries: read_io(gpu, queries, len, self.io_format).ok_or(Verdict::Lost)?,
            pools: [read(&head_shard.k)?, read(&head_shard.v)?],
        })
    }

    /// Rows as the kernels see them.
    fn given(&self, rows: &[f32]) -> Vec<f32> {
        let mut rows = rows.to_vec();
        round_io(&mut rows, self.io_format);
        rows
    }
}

impl fmt::Display for RotationScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { num_q_heads, num_kv_heads, head_dim, kv_dtype, io_format, turn, .. } = self;
        write!(f, "append {num_q_heads}/{num_kv_heads}x{head_dim} {kv_dtype}, {turn}")?;
        if *io_format == IoFormat::F16 { f.write_str(", f16 io") } else { Ok(()) }
    }
}
