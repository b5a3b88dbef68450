//! The steps of a schedule through the real kernels, on few layers, with sampled rows held against the oracle.
//!
//! K, V and q are functions of a token, its layer and the seed. So nothing is kept on the host: whatever a row should have
//! seen is made up again when the row is looked at, and blocks that sequences share hold what each of them expects.

mod record;

use rand::{RngExt, SeedableRng};
use twox_hash::XxHash3_64;
use wgpu_paged_attention::blocks::BlockId;
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::error::ConfigError;
use wgpu_paged_attention::formats::round_rows;
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, ClearValue, GpuError, KvCache,
};
use wgpu_paged_attention::plan::{Schedule, StepPlan, TableUpdate};
use wgpu_paged_attention::reference::{Heads, Mismatch, QueryRow, Scoring, attend, compare};
use wgpu_paged_attention::testkit::{Gpu, SENTINEL, ScenarioVariant, Tolerances, plant_table_update};

use super::{ObservedStep, ObserverError, StepObserver};
use crate::bench::ModelShape;
use crate::report::Adapter;
use crate::seed::{CaseRng, rng_for};
use record::{Row, rows_of};

pub use record::{ExecuteRecord, WrongRow};

/// Wrong rows that are described; all are counted.
const DESCRIBED: usize = 8;

#[derive(Clone, Debug)]
pub struct ExecuteOptions {
    pub shape: ModelShape,
    pub window: Option<u32>,
    pub steps: u64,
    /// Rows of a step that are compared, each for one KV head and its queries, in one layer. The last token of the longest
    /// sequence is always among them.
    pub rows_per_step: u32,
    pub seed: u64,
    /// Plants a fault that has to be noticed: from this step on, counted from 1, the table of the longest sequence begins
    /// with a wrong block.
    pub wrong_block_at: Option<u64>,
}

impl ExecuteOptions {
    pub fn new(shape: ModelShape) -> Self {
        Self { shape, window: None, steps: 64, rows_per_step: 16, seed: 1, wrong_block_at: None }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("the device was lost while it worked")]
    Lost,
    #[error("the sequences grow by {tokens} tokens, but the plan has {rows} rows")]
    Rows { tokens: u64, rows: u32 },
}

/// The same cache with fewer layers and as many blocks: a schedule over it takes the same steps.
pub fn with_layers(cache: &CacheConfig, layers: u32) -> Result<CacheConfig, ConfigError> {
    let blocks = cache.layout()?.num_blocks();
    let fewer = cache.clone().with_num_layers(layers).with_num_blocks(blocks);
    fewer.layout().map(|_| fewer)
}

#[derive(Clone, Copy)]
enum Kind {
    K,
    V,
    Q,
}

pub struct Executor {
    gpu: Gpu,
    cache: KvCache,
    appender: Appender,
    attention: Attention,
    options: ExecuteOptions,
    pub record: ExecuteRecord,
}

impl Executor {
    /// Makes the cache, whose every block is filled with NaN: what was never written reaches no output unseen.
    pub fn new(gpu: &Gpu, cache: &CacheConfig, options: ExecuteOptions) -> Result<Self, ExecuteError> {
        let layout = cache.layout()?;
        let cache = KvCache::new(&gpu.device, &layout)?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let blocks: Vec<_> = (0..layout.num_blocks()).filter_map(BlockId::new).collect();
        cache.clear_blocks(&mut encoder, &blocks, ClearValue::Poison)?;
        gpu.submit(encoder);
        let spec = AttentionSpec::new(options.shape.num_q_heads);
        let spec = if let Some(window) = options.window { spec.with_window(window) } else { spec };
        let (appender, attention) = (cache.appender(AppendSpec::new())?, cache.attention(spec)?);
        let (adapter, layers) = (Adapter::of(gpu), layout.num_layers());
        let record = ExecuteRecord { adapter, layers, ..ExecuteRecord::default() };
        Ok(Self { gpu: gpu.clone(), cache, appender, attention, options, record })
    }

    pub fn schedule(&self) -> Schedule {
        self.cache.schedule()
    }

    fn execute(&mut self, step: &ObservedStep<'_>) -> Result<(), ExecuteError> {
        let tokens = step.growth.iter().map(|growth| u64::from(growth.new_tokens)).sum();
        if tokens != u64::from(step.plan.num_rows()) {
            return Err(ExecuteError::Rows { tokens, rows: step.plan.num_rows() });
        }
        self.record.steps += 1;
        self.record.tokens += tokens;
        self.record.copied_blocks += step.plan.copies().len() as u64;
        let rows = rows_of(step);
        let outputs = match self.faulty(step) {
            Some(plan) => self.run(&plan, &rows)?,
            None => self.run(step.plan, &rows)?,
        };
        self.judge(step, &rows, &outputs);
        Ok(())
    }

    fn run(&self, plan: &StepPlan, rows: &[Row]) -> Result<Vec<Vec<f32>>, ExecuteError> {
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let step = self.cache.begin_step(&mut encoder, plan)?;
        let mut outputs = Vec::new();
        for layer in 0..self.record.layers {
            let all = |kind: Kind| -> Vec<f32> {
                let heads = (0..self.options.shape.num_kv_heads).collect::<Vec<_>>();
                rows.iter()
                    .flat_map(|row| heads.iter().flat_map(|&head| self.values(kind, layer, head, row.token)))
                    .collect()
            };
            let (k, v, q) = (all(Kind::K), all(Kind::V), all(Kind::Q));
            let [k, v, q, out] = [("k", &k), ("v", &v), ("q", &q), ("out", &vec![SENTINEL; q.len()])]
                .map(|(label, values)| self.gpu.storage(label, values));
            let mut pass = encoder.begin_compute_pass(&Default::default());
            self.cache.append(&mut pass, &self.appender, &step, layer, AppendIo::new(k.slice(..), v.slice(..)))?;
            let io = AttentionIo::new(q.slice(..), out.slice(..));
            self.cache.attend(&mut pass, &self.attention, &step, layer, io)?;
            outputs.push(out);
        }
        self.gpu.submit(encoder);
        outputs.iter().map(|out| self.gpu.read(out).ok_or(ExecuteError::Lost)).collect()
    }

    fn judge(&mut self, step: &ObservedStep<'_>, rows: &[Row], outputs: &[Vec<f32>]) {
        let Some(longest) = (0..rows.len()).max_by_key(|&row| rows[row].position) else { return };
        let mut rng = rng_for(&format!("rows of step {}", self.record.steps), self.options.seed);
        for sample in 0..self.options.rows_per_step {
            let row = if sample == 0 { longest } else { rng.random_range(0..rows.len()) };
            let layer = rng.random_range(0..self.record.layers);
            let kv_head = rng.random_range(0..self.options.shape.num_kv_heads);
            self.record.checked_rows += 1;
            match self.compare(step, &rows[row], row, layer, kv_head, &outputs[layer as usize]) {
                Ok(error) => self.record.max_abs_error = self.record.max_abs_error.max(error),
                Err(mismatch) => {
                    self.record.wrong_rows += 1;
                    if self.record.wrong.len() < DESCRIBED {
                        let Row { request, position, .. } = rows[row];
                        let (step, error) = (self.record.steps, mismatch.to_string());
                        self.record.wrong.push(WrongRow { step, request, position, layer, kv_head, error });
                    }
                }
            }
        }
    }

    fn compare(
        &self,
        step: &ObservedStep<'_>,
        row: &Row,
        index: usize,
        layer: u32,
        kv_head: u32,
        output: &[f32],
    ) -> Result<f64, Mismatch> {
        let (shape, window) = (&self.options.shape, self.options.window);
        let (group, dim) = (shape.group() as usize, shape.head_dim as usize);
        // Nothing in front of the window is seen.
        let first = window.map_or(0, |window| (row.position + 1).saturating_sub(window));
        let mut tokens = Vec::new();
        let request = &step.log.requests[row.request];
        step.tokens.extend(&mut tokens, row.request as u64, request, first, row.position + 1 - first);
        let stored = |kind: Kind| -> Vec<f32> {
            let mut values: Vec<f32> =
                tokens.iter().flat_map(|&token| self.values(kind, layer, kv_head, token)).collect();
            round_rows(self.format(), dim, &mut values);
            values
        };
        let (k, v) = (stored(Kind::K), stored(Kind::V));
        let q: Vec<f32> = self.values(Kind::Q, layer, kv_head, row.token).collect();
        let place = QueryRow { position: row.position.into(), seq_len: row.position as usize + 1 };
        let scoring = Scoring { window, ..Scoring::new(1.0 / f64::from(shape.head_dim).sqrt()) };
        let at = |position: usize| (position - first as usize) * dim..(position - first as usize + 1) * dim;
        let heads = Heads::new(group, 1, dim);
        let want = attend(&heads, &scoring, &q, place, |position, _| &k[at(position)], |position, _| &v[at(position)]);
        let begin = (index * shape.num_q_heads as usize + kv_head as usize * group) * dim;
        let (atol, rtol) = Tolerances::new(&ScenarioVariant::PLAIN, 1.0, row.position + 1, 0.0).output;
        compare(&output[begin..begin + group * dim], &want.output, atol, rtol)
    }

    fn format(&self) -> KvDtype {
        self.cache.layout().kv_dtype()
    }

    fn values(&self, kind: Kind, layer: u32, kv_head: u32, token: u32) -> impl Iterator<Item = f32> + use<> {
        let place = [kind as u32, layer, kv_head, token];
        let hash = XxHash3_64::oneshot_with_seed(self.options.seed, bytemuck::cast_slice(&place));
        let mut rng = CaseRng::seed_from_u64(hash);
        let ModelShape { head_dim, .. } = self.options.shape;
        let (count, most) = match kind {
            Kind::K | Kind::V => (head_dim, 1.0),
            Kind::Q => (head_dim * self.options.shape.group(), 2.0),
        };
        (0..count).map(move |_| rng.random_range(-most..most))
    }

    fn faulty(&self, step: &ObservedStep<'_>) -> Option<StepPlan> {
        let planted = self.options.wrong_block_at.is_some_and(|at| self.record.steps >= at);
        let longest = step.growth.iter().max_by_key(|growth| growth.len).filter(|_| planted)?;
        let index = step.manager.tables().base(longest.seq.index());
        let right = *step.manager.block_table(longest.seq).ok()?.first()?;
        // Two changes of one entry would race.
        let changed = step.plan.updates().iter().any(|update| update.index == index);
        let mut plan = step.plan.clone();
        let block = BlockId::new((right.get() + 1) % step.manager.num_blocks())?;
        plant_table_update(&mut plan, TableUpdate { index, block });
        (!changed && longest.len > 0).then_some(plan)
    }
}

impl StepObserver for Executor {
    fn step(&mut self, step: &ObservedStep<'_>) -> Result<(), ObserverError> {
        if self.record.steps >= self.options.steps {
            return Ok(());
        }
        Ok(self.execute(step)?)
    }
}

#[cfg(test)]
mod tests;
