//! A scene: sequences with tables, K, V and queries on the host, run on a device and judged by the oracle.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::gpu::Gpu;
use crate::config::{CacheConfig, KvFormat};
use crate::error::{ConfigError, TableError};
use crate::gpu::{AttentionIo, AttentionSpec, DeviceProfile, GpuError, KvCache};
use crate::layout::KvLayout;
use crate::plan::{RawTables, StepPlan, slot_at};
use crate::reference::{Attended, Heads, Mismatch, attend_rows, compare, round_to_f16};

/// What memory that nobody wrote may hold: a NaN in f32, and two of them in packed f16.
const POISON: u32 = 0xffff_ffff;
/// What outputs hold before a run, so that a row that is not written shows.
const SENTINEL: f32 = 123.0;

/// The shape of a scene.
#[derive(Clone, Debug, PartialEq)]
pub struct SceneSpec {
    /// Query heads.
    pub num_q_heads: u32,
    /// KV heads.
    pub num_kv_heads: u32,
    /// Elements of one head.
    pub head_dim: u32,
    /// Storage of K and V.
    pub kv_format: KvFormat,
    /// Tokens per block.
    pub block_size: u32,
    /// `false` gives every sequence one region of the longest length.
    pub paged: bool,
    /// Tokens of every sequence, those of this step included.
    pub seq_lens: Vec<u32>,
    /// Queries of every sequence; `None` is one each.
    pub query_lens: Option<Vec<u32>>,
    /// Leading blocks that all sequences share, where they are long enough.
    pub shared_blocks: u32,
    /// Whether the log-sum-exp is asked for.
    pub lse: bool,
}

impl SceneSpec {
    /// One query per sequence, block size 16, f16, nothing shared.
    pub fn decode(num_q_heads: u32, num_kv_heads: u32, head_dim: u32, seq_lens: &[u32]) -> Self {
        Self {
            num_q_heads,
            num_kv_heads,
            head_dim,
            kv_format: KvFormat::F16,
            block_size: 16,
            paged: true,
            seq_lens: seq_lens.to_vec(),
            query_lens: None,
            shared_blocks: 0,
            lse: false,
        }
    }
}

/// A deliberate error, to show that a harness notices it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device is told of one block of keys less than there is.
    SkipLastBlock,
    /// The first table entry of the first sequence points to a block that nobody wrote.
    StrayBlock,
}

/// A scene, ready to run. Its data may be changed before.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The shape.
    pub spec: SceneSpec,
    /// The cache.
    pub layout: KvLayout,
    /// `[sequences][blocks]`, shuffled.
    pub tables: Vec<Vec<u32>>,
    /// K of every slot, `[num_slots, num_kv_heads, head_dim]`; NaN where no sequence has a token.
    pub k: Vec<f32>,
    /// V, alike.
    pub v: Vec<f32>,
    /// `[rows, num_q_heads, head_dim]`
    pub q: Vec<f32>,
    /// Factor of `q · k`.
    pub scale: Option<f32>,
}

/// What a device answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// `[rows, num_q_heads, head_dim]`
    pub out: Vec<f32>,
    /// `[rows, num_q_heads]`, empty unless asked for.
    pub lse: Vec<f32>,
}

/// Why a scene failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Verdict {
    /// The scene describes no possible cache.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tables were refused.
    #[error(transparent)]
    Tables(#[from] TableError),
    /// The device, or the library on it, refused.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// Nothing could be read back.
    #[error("the device is lost")]
    Lost,
    /// The output is wrong.
    #[error("wrong output: {0}")]
    Output(Mismatch),
    /// The log-sum-exp is wrong.
    #[error("wrong log-sum-exp: {0}")]
    Lse(Mismatch),
}

impl Scene {
    /// A scene with data drawn from N(0, 1)-like values, tables shuffled over a pool with a few blocks to spare.
    ///
    /// # Errors
    /// [`Verdict::Config`] if the spec describes no possible cache.
    pub fn random(spec: &SceneSpec, seed: u64) -> Result<Self, Verdict> {
        let mut rng = StdRng::seed_from_u64(seed);
        let longest = spec.seq_lens.iter().copied().max().unwrap_or(0).max(1);
        let block_tokens = if spec.paged { spec.block_size } else { longest };
        let blocks = |len: u32| if spec.paged { len.div_ceil(block_tokens) } else { 1 };
        let wanted: u32 = spec.seq_lens.iter().map(|&len| blocks(len)).sum();
        let num_blocks = wanted + 3;
        let config = CacheConfig::new(1, spec.num_kv_heads, spec.head_dim)
            .with_kv_format(spec.kv_format)
            .with_block_size(block_tokens)
            .with_num_blocks(num_blocks)
            .with_paged(spec.paged)
            .with_max_seq_len(longest)
            .with_max_sequences((spec.seq_lens.len() as u32).max(1));
        let layout = config.layout()?;

        let mut ids: Vec<u32> = (0..num_blocks).collect();
        ids.shuffle(&mut rng);
        let mut tables: Vec<Vec<u32>> = Vec::new();
        for &len in &spec.seq_lens {
            let mut table: Vec<u32> = ids.split_off(ids.len() - blocks(len) as usize);
            if let Some(first) = tables.iter().max_by_key(|table| table.len()) {
                let shared = (spec.shared_blocks as usize).min(table.len()).min(first.len());
                table[..shared].copy_from_slice(&first[..shared]);
            }
            tables.push(table);
        }

        let row = (spec.num_kv_heads * spec.head_dim) as usize;
        let slots = layout.num_slots() as usize;
        let (mut k, mut v) = (vec![f32::NAN; slots * row], vec![f32::NAN; slots * row]);
        for (table, &len) in tables.iter().zip(&spec.seq_lens) {
            for position in 0..len {
                let at = slot_at(&layout, table, position) as usize * row;
                for element in at..at + row {
                    if k[element].is_nan() {
                        (k[element], v[element]) = (normal(&mut rng), normal(&mut rng));
                    }
                }
            }
        }
        let rows: u32 = match &spec.query_lens {
            Some(lens) => lens.iter().sum(),
            None => spec.seq_lens.len() as u32,
        };
        let q = (0..rows * spec.num_q_heads * spec.head_dim).map(|_| normal(&mut rng)).collect();
        Ok(Self { spec: spec.clone(), layout, tables, k, v, q, scale: None })
    }

    /// Sets every K element to `key(sequence, position, head, d)` and V alike, where a sequence has a token.
    pub fn fill(&mut self, key: impl Fn(usize, u32, u32, u32) -> f32, value: impl Fn(usize, u32, u32, u32) -> f32) {
        let (heads, dim) = (self.spec.num_kv_heads, self.spec.head_dim);
        for (seq, (table, &len)) in self.tables.iter().zip(&self.spec.seq_lens).enumerate() {
            for position in 0..len {
                let at = slot_at(&self.layout, table, position) as usize * (heads * dim) as usize;
                for head in 0..heads {
                    for d in 0..dim {
                        let element = at + (head * dim + d) as usize;
                        self.k[element] = key(seq, position, head, d);
                        self.v[element] = value(seq, position, head, d);
                    }
                }
            }
        }
    }

    /// Visible keys of every row.
    pub fn kv_lens(&self) -> Vec<(usize, usize)> {
        let mut rows = Vec::new();
        for (seq, &len) in self.spec.seq_lens.iter().enumerate() {
            let queries = self.spec.query_lens.as_ref().map_or(1, |lens| lens[seq]);
            rows.extend((0..queries).map(|i| (seq, (len + i + 1).saturating_sub(queries) as usize)));
        }
        rows
    }

    /// The plan of the scene's attention; no K or V is appended by it.
    ///
    /// # Errors
    /// [`Verdict::Tables`].
    pub fn plan(&self, split_tokens: u32, fault: Option<Fault>) -> Result<StepPlan, Verdict> {
        let max_blocks = self.layout.max_blocks_per_seq();
        // Unused columns hold an id that does not exist: nobody may look at them.
        let mut block_table = vec![u32::MAX; self.tables.len() * max_blocks as usize];
        for (row, table) in block_table.chunks_mut(max_blocks as usize).zip(&self.tables) {
            row[..table.len()].copy_from_slice(table);
        }
        let mut seq_lens = self.spec.seq_lens.clone();
        match fault {
            Some(Fault::SkipLastBlock) => {
                for len in &mut seq_lens {
                    *len = len.saturating_sub(1) / self.spec.block_size * self.spec.block_size;
                }
            }
            Some(Fault::StrayBlock) => {
                let used: Vec<u32> = self.tables.concat();
                if let Some(stray) = (0..self.layout.num_blocks()).find(|id| !used.contains(id)) {
                    block_table[0] = stray;
                }
            }
            None => {}
        }
        let mut cu_seqlens_q = vec![0];
        for seq in 0..seq_lens.len() {
            let queries = self.spec.query_lens.as_ref().map_or(1, |lens| lens[seq]);
            cu_seqlens_q.push(cu_seqlens_q[seq] + queries);
        }
        let skip = vec![-1; *cu_seqlens_q.last().unwrap_or(&0) as usize];
        let mut plan = StepPlan::new(split_tokens);
        plan.plan_tables(
            &self.layout,
            &RawTables {
                block_table: &block_table,
                max_blocks,
                seq_lens: &seq_lens,
                cu_seqlens_q: Some(&cu_seqlens_q),
                slot_mapping: Some(&skip),
            },
        )?;
        Ok(plan)
    }

    /// A cache on the device whose memory is poison, but for the scene's tokens, written by the append kernel.
    ///
    /// # Errors
    /// [`Verdict::Gpu`] or [`Verdict::Tables`].
    pub fn upload(&self, gpu: &Gpu, profile: &DeviceProfile) -> Result<KvCache, Verdict> {
        let cache = KvCache::with_profile(&gpu.device, &self.layout, profile.clone())?;
        for layer in 0..self.layout.num_layers() {
            for segment in cache.segments(layer)? {
                for pool in [&segment.k, &segment.v] {
                    gpu.queue.write_buffer(pool, 0, bytemuck::cast_slice(&vec![POISON; (pool.size() / 4) as usize]));
                }
            }
        }
        let row = (self.spec.num_kv_heads * self.spec.head_dim) as usize;
        let mut owned: Vec<u32> = Vec::new();
        for (table, &len) in self.tables.iter().zip(&self.spec.seq_lens) {
            owned.extend((0..len).map(|position| slot_at(&self.layout, table, position)));
        }
        owned.sort_unstable();
        owned.dedup();
        // In pieces, as an engine would, and so that no binding grows beyond its limit.
        for slots in owned.chunks(16_384) {
            let gather = |source: &[f32]| -> Vec<f32> {
                slots.iter().flat_map(|&slot| &source[slot as usize * row..][..row]).copied().collect()
            };
            let (k, v) = (gpu.storage("k", &gather(&self.k)), gpu.storage("v", &gather(&self.v)));
            let slot_mapping: Vec<i64> = slots.iter().map(|&slot| slot.into()).collect();
            let mut plan = cache.new_plan();
            plan.plan_tables(
                &self.layout,
                &RawTables {
                    block_table: &[0],
                    max_blocks: 1,
                    seq_lens: &[0],
                    cu_seqlens_q: Some(&[0, slots.len() as u32]),
                    slot_mapping: Some(&slot_mapping),
                },
            )?;
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let step = cache.begin_step(&gpu.queue, &mut encoder, &plan)?;
            {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                for layer in 0..self.layout.num_layers() {
                    cache.append(&mut pass, &step, layer, k.slice(..), v.slice(..))?;
                }
            }
            gpu.submit(encoder);
        }
        Ok(cache)
    }

    /// Runs the scene on a device.
    ///
    /// # Errors
    /// Any [`Verdict`] but those of [`judge`](Self::judge).
    pub fn run(&self, gpu: &Gpu, profile: &DeviceProfile, fault: Option<Fault>) -> Result<Outcome, Verdict> {
        let cache = self.upload(gpu, profile)?;
        let plan = self.plan(profile.split_tokens, fault)?;
        let mut spec = AttentionSpec::new(self.spec.num_q_heads);
        spec.lse = self.spec.lse;
        spec.scale = self.scale;
        let attention = cache.attention(spec)?;
        if self.q.is_empty() {
            return Ok(Outcome { out: Vec::new(), lse: Vec::new() });
        }
        let q = gpu.storage("q", &self.q);
        let out = gpu.storage("out", &vec![SENTINEL; self.q.len()]);
        let lse = gpu.storage("lse", &vec![SENTINEL; self.q.len() / self.spec.head_dim as usize]);
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&gpu.queue, &mut encoder, &plan)?;
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let lse = self.spec.lse.then(|| lse.slice(..));
            let io = AttentionIo { q: q.slice(..), out: out.slice(..), lse };
            cache.attend(&mut pass, &attention, &step, 0, io)?;
        }
        gpu.submit(encoder);
        let out = gpu.read(&out).ok_or(Verdict::Lost)?;
        let lse = if self.spec.lse { gpu.read(&lse).ok_or(Verdict::Lost)? } else { Vec::new() };
        Ok(Outcome { out, lse })
    }

    /// The oracle's answer.
    pub fn expected(&self) -> Attended {
        let rows = self.kv_lens();
        let heads = Heads {
            num_q_heads: self.spec.num_q_heads as usize,
            num_kv_heads: self.spec.num_kv_heads as usize,
            head_dim: self.spec.head_dim as usize,
        };
        let (k, v) = (self.stored(&self.k), self.stored(&self.v));
        let dim = heads.head_dim;
        let at = |row: usize, position: usize, head: usize| {
            let slot = slot_at(&self.layout, &self.tables[rows[row].0], position as u32) as usize;
            (slot * heads.num_kv_heads + head) * dim
        };
        let scale = self.scale.map_or(1.0 / f64::from(self.spec.head_dim).sqrt(), f64::from);
        let kv_lens: Vec<usize> = rows.iter().map(|&(_, len)| len).collect();
        attend_rows(
            &heads,
            scale,
            &self.q,
            &kv_lens,
            |row, position, head| &k[at(row, position, head)..][..dim],
            |row, position, head| &v[at(row, position, head)..][..dim],
        )
    }

    /// Compares an answer with the oracle's; returns the largest absolute error of the output.
    ///
    /// # Errors
    /// [`Verdict::Output`] or [`Verdict::Lse`], with the first element out of tolerance.
    pub fn judge(&self, outcome: &Outcome) -> Result<f64, Verdict> {
        let want = self.expected();
        let (atol, rtol) = self.tolerance();
        if self.spec.lse {
            compare(&outcome.lse, &want.lse, 2e-5, 2e-6).map_err(Verdict::Lse)?;
        }
        compare(&outcome.out, &want.output, atol, rtol).map_err(Verdict::Output)
    }

    /// The oracle sees K and V as they are stored, so only the device's own rounding in f32 is left: it grows with the
    /// largest value that is averaged, and a little with the size of the scores.
    fn tolerance(&self) -> (f64, f64) {
        let largest = self.v.iter().filter(|v| v.is_finite()).fold(1.0_f32, |top, v| top.max(v.abs()));
        (4e-6 * f64::from(largest), 2e-6)
    }

    /// K or V after a round trip through the storage format.
    fn stored(&self, values: &[f32]) -> Vec<f32> {
        let mut values = values.to_vec();
        if self.spec.kv_format == KvFormat::F16 {
            round_to_f16(&mut values);
        }
        values
    }
}

/// Nearly normal: twelve uniform values less their mean (Irwin–Hall), which is bounded and so reproducible anywhere.
fn normal(rng: &mut StdRng) -> f32 {
    (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0
}
