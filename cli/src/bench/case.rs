//! One case on a device, in one mode: a filled cache and the steps to time.

mod operands;
mod verify;

use std::collections::HashSet;

use rand::seq::SliceRandom;
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::ConfigError;
use wgpu_paged_attention::gpu::{
    AppendIo, AppendSpec, Appender, Attention, AttentionIo, DeviceError, DeviceProfile, GpuError, IoFormat, KvCache,
    Step,
};
use wgpu_paged_attention::layout::KvLayout;
use wgpu_paged_attention::plan::slot_at;
use wgpu_paged_attention::testkit::{Gpu, SENTINEL, Verdict, append_plan, attend_plan, slots_of};

use self::operands::{Contents, Operand, operands};
use super::inputs::Placement;
use super::{CaseInputs, Kind, Mode, Op, PassTimer, Sample, TimerError};
use crate::seed::rng_for;

#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    #[error(transparent)]
    Run(#[from] Verdict),
    #[error(transparent)]
    Timer(#[from] TimerError),
    #[error("sequence {sequence}, position {position}: {verdict}")]
    Wrong { sequence: usize, position: u32, verdict: Verdict },
}

#[derive(Debug)]
pub struct Case {
    gpu: Gpu,
    inputs: CaseInputs,
    cache: KvCache,
    appender: Appender,
    attention: Attention,
    /// `[sequences][blocks]`
    tables: Vec<Vec<u32>>,
}

#[derive(Debug)]
pub struct Work {
    op: Op,
    step: Step,
    /// q and the output; or K and V.
    operands: [Operand; 2],
    lse: Option<wgpu::Buffer>,
}

impl Case {
    /// Makes the cache, with shuffled tables, and writes every token's K and V through the append kernel.
    pub fn new(gpu: &Gpu, profile: &DeviceProfile, inputs: &CaseInputs, mode: Mode) -> Result<Self, Verdict> {
        let layout = layout(inputs, mode)?;
        let cache = KvCache::with_profile(&gpu.device, &layout, profile.clone())?;
        let terms = (inputs.slopes(), inputs.sinks());
        let spec = inputs.variant.attention_spec(inputs.shape.num_q_heads, (&terms.0, &terms.1), inputs.lse);
        let spec = if inputs.placement == Placement::Arena { spec.with_shared_buffers() } else { spec };
        let (appender, attention) = (cache.appender(AppendSpec::new())?, cache.attention(spec)?);
        let tables = tables_of(inputs, &layout, mode);
        let case = Self { gpu: gpu.clone(), inputs: inputs.clone(), cache, appender, attention, tables };

        let lens = inputs.lens.iter().enumerate();
        let mut all: Vec<_> = lens.flat_map(|(seq, &len)| (0..len).map(move |position| (seq, position))).collect();
        // A block that sequences share is written once.
        let mut written = HashSet::new();
        all.retain(|&(seq, position)| written.insert(slot_at(&layout, &case.tables[seq], position)));
        for tokens in all.chunks(inputs.append_limit() as usize) {
            let work = case.append(tokens)?;
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            case.record(&work, &mut encoder.begin_compute_pass(&Default::default()))?;
            gpu.submit(encoder);
        }
        Ok(case)
    }

    pub fn begin(&self, op: Op) -> Result<Work, Verdict> {
        match op {
            Op::Append => self.append(&self.inputs.appended()),
            Op::Decode | Op::Prefill | Op::Mixed => self.attend(op),
        }
    }

    fn append(&self, tokens: &[(usize, u32)]) -> Result<Work, Verdict> {
        let slots = slots_of(self.cache.layout(), &self.tables, tokens);
        let step = self.step(&append_plan(self.cache.layout(), self.cache.schedule(), &slots)?)?;
        let row = self.inputs.row_len();
        let contents = [Kind::K, Kind::V].map(|kind| {
            let token = |&(seq, position): &(usize, u32)| self.inputs.token(kind, seq, position);
            let column = Some(self.inputs.query_len() + kind as usize * row);
            Contents { values: tokens.iter().flat_map(token).collect(), row, column }
        });
        let operands = self.operands(IoFormat::F32, contents);
        Ok(Work { op: Op::Append, step, operands, lse: None })
    }

    fn attend(&self, op: Op) -> Result<Work, Verdict> {
        let (inputs, io_format) = (&self.inputs, self.inputs.variant.io_format);
        let queries = inputs.queries(op);
        let rows: usize = queries.iter().map(|&queries| queries as usize).sum();
        let heads = rows as u64 * u64::from(inputs.shape.num_q_heads);
        // Before the host makes up as many.
        let needed = 4 * heads * u64::from(inputs.shape.head_dim) / u64::from(io_format.per_word());
        let limit = self.gpu.device.limits().max_storage_buffer_binding_size;
        if needed > limit {
            return Err(GpuError::from(DeviceError::Limit { what: "q", needed, limit }).into());
        }
        let (layout, schedule) = (self.cache.layout(), self.cache.schedule());
        let step = self.step(&attend_plan(layout, schedule, &self.tables, &inputs.lens, &queries, false)?)?;
        let q = inputs.query_values(rows);
        let (row, out) = (inputs.query_len(), vec![SENTINEL; q.len()]);
        let contents = [(q, Some(0)), (out, None)].map(|(values, column)| Contents { values, row, column });
        let operands = self.operands(io_format, contents);
        let lse = inputs.lse.then(|| self.gpu.storage("lse", &vec![SENTINEL; heads as usize]));
        Ok(Work { op, step, operands, lse })
    }

    fn operands(&self, io_format: IoFormat, contents: [Contents; 2]) -> [Operand; 2] {
        operands(&self.gpu, self.inputs.placement, self.inputs.fused_len(), io_format, contents)
    }

    fn step(&self, plan: &wgpu_paged_attention::plan::StepPlan) -> Result<Step, Verdict> {
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let step = self.cache.begin_step(&mut encoder, plan)?;
        self.gpu.submit(encoder);
        Ok(step)
    }

    fn record(&self, work: &Work, pass: &mut wgpu::ComputePass<'_>) -> Result<(), GpuError> {
        let [first, second] = work.operands.each_ref().map(Operand::io);
        for layer in 0..self.inputs.layers {
            if work.op == Op::Append {
                self.cache.append(pass, &self.appender, &work.step, layer, AppendIo::new(first, second))?;
            } else {
                let io = AttentionIo::new(first, second);
                let io = work.lse.as_ref().map_or(io, |lse| io.with_lse(lse.slice(..)));
                self.cache.attend(pass, &self.attention, &work.step, layer, io)?;
            }
        }
        Ok(())
    }

    pub fn time(&self, work: &Work, timer: &mut PassTimer) -> Result<Sample, TimerError> {
        timer.measure(|pass| self.record(work, pass))
    }
}

fn layout(inputs: &CaseInputs, mode: Mode) -> Result<KvLayout, ConfigError> {
    let longest = inputs.longest().max(1);
    let paged = mode != Mode::Contiguous;
    let block_size = if paged { inputs.block_size } else { longest };
    // A contiguous sequence has its whole region, however short it is.
    let blocks = |len: u32| if paged { len.div_ceil(block_size) } else { 1 };
    let num_blocks: u64 = inputs.lens.iter().map(|&len| u64::from(blocks(len))).sum();
    // Too many for 32 bits are too many for the configuration, which says so.
    let num_blocks = u32::try_from(num_blocks).unwrap_or(u32::MAX);
    CacheConfig::new(inputs.layers, inputs.shape.num_kv_heads, inputs.shape.head_dim)
        .with_kv_dtype(inputs.kv_dtype)
        .with_paged(paged)
        .with_block_size(block_size)
        .with_num_blocks(num_blocks.max(1))
        .with_max_seq_len(longest)
        .with_max_sequences((inputs.lens.len() as u32).max(1))
        .layout()
}

/// Tables of blocks from all over the pool, unless they are asked for in order; in the shared mode, all begin with those of the
/// first sequence, as far as whole blocks of both hold nothing but the prefix.
fn tables_of(inputs: &CaseInputs, layout: &KvLayout, mode: Mode) -> Vec<Vec<u32>> {
    let mut ids: Vec<u32> = (0..layout.num_blocks()).collect();
    if mode != Mode::Ordered {
        ids.shuffle(&mut rng_for(&format!("table {}", inputs.label()), inputs.seed));
    }
    let mut ids = ids.into_iter();
    let blocks = |&len: &u32| ids.by_ref().take(layout.blocks_for(len) as usize).collect();
    let mut tables: Vec<Vec<u32>> = inputs.lens.iter().map(blocks).collect();
    if let (Mode::Shared, Some((first, others))) = (mode, tables.split_first_mut()) {
        for (table, &len) in others.iter_mut().zip(&inputs.lens[1..]) {
            let shared = (inputs.shared_prefix.min(len).min(inputs.lens[0]) / layout.block_size()) as usize;
            table[..shared].copy_from_slice(&first[..shared]);
        }
    }
    tables
}

#[cfg(test)]
impl Case {
    /// Overwrites K with numbers that are none: a fault that a check must notice.
    pub fn spoil(&self) {
        for head_shard in self.cache.head_shards(0).expect("a cache has a layer") {
            self.gpu.queue.write_buffer(&head_shard.k, 0, &vec![0xff; head_shard.k.size() as usize]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::models::ModelShape;

    #[test]
    fn tables_share_whole_blocks_of_the_prefix_and_nothing_else() {
        let shape = ModelShape::custom(2, 1, 8).unwrap();
        // Blocks of 16: the prefix fills two and a part of a third.
        let inputs = CaseInputs { shared_prefix: 40, ..CaseInputs::new(shape, vec![100, 90, 20, 0], 1) };
        let common = |mode| {
            let layout = layout(&inputs, mode).unwrap();
            let tables = tables_of(&inputs, &layout, mode);
            let equal = |table: &Vec<u32>| table.iter().filter(|id| tables[0].contains(id)).count();
            let mut all = tables.concat();
            all.sort_unstable();
            all.dedup();
            (tables.iter().map(equal).collect::<Vec<_>>(), all.len())
        };
        assert_eq!(common(Mode::Shared), (vec![7, 2, 1, 0], 7 + 4 + 1));
        assert_eq!(common(Mode::Paged), (vec![7, 0, 0, 0], 7 + 6 + 2));
        assert_eq!(common(Mode::Contiguous).1, 3);
        let ordered = tables_of(&inputs, &layout(&inputs, Mode::Ordered).unwrap(), Mode::Ordered);
        assert_eq!(ordered.concat(), (0..7 + 6 + 2).collect::<Vec<_>>());
    }
}
