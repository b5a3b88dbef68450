//! A scenario on a device.

use std::sync::{Mutex, PoisonError};

use super::{Fault, Scenario, Verdict};
use crate::gpu::texts::are_changed;
use crate::gpu::{AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, DeviceProfile, KvCache};
use crate::plan::{Schedule, StepPlan};
use crate::testkit::{Gpu, SENTINEL, append_plan, attend_plan, io_buffer, read_io};

/// What unwritten memory may hold: a NaN in f32, and two of them in packed f16.
const POISON: u32 = 0xffff_ffff;

/// What a device answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// `[rows, num_q_heads, v_head_dim]`
    pub out: Vec<f32>,
    /// `[rows, num_q_heads]`, empty unless asked for.
    pub lse: Vec<f32>,
}

/// A cache and an attention that scenarios of one shape use one after the other, because kernels take long to compile.
struct Kept {
    device: wgpu::Device,
    shape: String,
    cache: KvCache,
    appender: Appender,
    attention: Attention,
}

/// Those that are not in use, the latest last.
static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// Tests go from one shape to the next, each thread on its own.
const MAX_KEPT: usize = 8;

impl Kept {
    fn take(gpu: &Gpu, scenario: &Scenario, profile: &DeviceProfile, spec: AttentionSpec) -> Result<Self, Verdict> {
        // Devices of different backends may be called the same.
        let shape = format!("{} {:?} {profile:?} {spec:?}", gpu.info.backend, scenario.layout);
        if !are_changed() {
            let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = kept.iter().position(|kept| kept.device == gpu.device && kept.shape == shape) {
                return Ok(kept.remove(at));
            }
        }
        let cache = KvCache::with_profile(&gpu.device, &scenario.layout, profile.clone())?;
        let (appender, attention) = (cache.appender(AppendSpec::new())?, cache.attention(spec)?);
        Ok(Self { device: gpu.device.clone(), shape, cache, appender, attention })
    }

    fn give_back(self) {
        if are_changed() {
            return;
        }
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == MAX_KEPT {
            kept.remove(0);
        }
        kept.push(self);
    }
}

impl Scenario {
    /// What the device computes, with the fault planted.
    pub fn attention_spec(&self, fault: Option<Fault>) -> AttentionSpec {
        let (spec, variant) = (&self.spec, &self.spec.variant);
        let terms = (self.alibi_slopes.as_slice(), self.sinks.as_slice());
        let mut planted = variant.attention_spec(spec.num_q_heads, terms, spec.lse);
        planted.scale = self.scale;
        match fault {
            Some(Fault::CausalFlipped) => planted.causal = !planted.causal,
            Some(Fault::WindowOffByOne) => planted.window = planted.window.map(|window| window.saturating_add(1)),
            Some(Fault::SoftCapDropped) => planted.soft_cap = None,
            Some(Fault::NeighbourSlope) => {
                if let Some(slopes) = &mut planted.alibi_slopes {
                    slopes.rotate_left(1);
                }
            }
            Some(Fault::SinkTwice) => {
                if let Some(sinks) = &mut planted.sinks {
                    // e^(sink + ln 2) is 2·e^sink.
                    sinks.iter_mut().for_each(|sink| *sink += std::f32::consts::LN_2);
                }
            }
            Some(Fault::SkipLastBlock | Fault::StrayBlock) | None => {}
        }
        planted
    }

    /// The plan of the scenario's attention; no K or V is appended by it.
    ///
    /// # Errors
    /// [`Verdict::Tables`].
    pub fn plan(&self, schedule: Schedule, fault: Option<Fault>) -> Result<StepPlan, Verdict> {
        let mut seq_lens = self.spec.seq_lens.clone();
        if fault == Some(Fault::SkipLastBlock) {
            for len in &mut seq_lens {
                *len = len.saturating_sub(1) / self.spec.block_size * self.spec.block_size;
            }
        }
        let mut tables = self.tables.clone();
        if fault == Some(Fault::StrayBlock) {
            let used: Vec<u32> = tables.concat();
            let stray = (0..self.layout.num_blocks()).find(|id| !used.contains(id));
            if let (Some(stray), Some(first)) = (stray, tables.first_mut().and_then(|table| table.first_mut())) {
                *first = stray;
            }
        }
        let queries: Vec<u32> = (0..seq_lens.len()).map(|seq| self.spec.queries(seq)).collect();
        Ok(attend_plan(&self.layout, schedule, &tables, &seq_lens, &queries, self.spec.csr)?)
    }

    /// A cache on the device whose memory is poison, but for the scenario's tokens, written by the append kernel.
    ///
    /// # Errors
    /// [`Verdict::Gpu`] or [`Verdict::Tables`].
    pub fn upload(&self, gpu: &Gpu, profile: &DeviceProfile) -> Result<KvCache, Verdict> {
        let cache = KvCache::with_profile(&gpu.device, &self.layout, profile.clone())?;
        self.write_to(gpu, &cache, &cache.appender(AppendSpec::new())?)?;
        Ok(cache)
    }

    fn write_to(&self, gpu: &Gpu, cache: &KvCache, appender: &Appender) -> Result<(), Verdict> {
        for layer in 0..self.layout.num_layers() {
            for head_shard in cache.head_shards(layer)? {
                for pool in [&head_shard.k, &head_shard.v] {
                    gpu.queue.write_buffer(pool, 0, bytemuck::cast_slice(&vec![POISON; (pool.size() / 4) as usize]));
                }
            }
        }
        // In pieces, as an engine would, and so that no binding grows beyond its limit.
        for slots in self.owned_slots().chunks(16_384) {
            let gather = |source: &[f32], row: usize| -> Vec<f32> {
                slots.iter().flat_map(|&slot| &source[slot as usize * row..][..row]).copied().collect()
            };
            let k = gpu.storage("k", &gather(&self.k, self.spec.k_row()));
            let v = gpu.storage("v", &gather(&self.v, self.spec.v_row()));
            let plan = append_plan(&self.layout, cache.schedule(), slots)?;
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            let step = cache.begin_step(&mut encoder, &plan)?;
            {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                for layer in 0..self.layout.num_layers() {
                    cache.append(&mut pass, appender, &step, layer, AppendIo::new(k.slice(..), v.slice(..)))?;
                }
            }
            gpu.submit(encoder);
        }
        Ok(())
    }

    /// Runs the scenario on a device.
    ///
    /// # Errors
    /// Any [`Verdict`] but those of [`judge`](Self::judge).
    pub fn run(&self, gpu: &Gpu, profile: &DeviceProfile, fault: Option<Fault>) -> Result<Outcome, Verdict> {
        let kept = Kept::take(gpu, self, profile, self.attention_spec(fault))?;
        let (cache, attention) = (&kept.cache, &kept.attention);
        self.write_to(gpu, cache, &kept.appender)?;
        let plan = self.plan(cache.schedule(), fault)?;
        let heads = self.spec.rows().len() * self.spec.num_q_heads as usize;
        if heads == 0 {
            return Ok(Outcome { out: Vec::new(), lse: Vec::new() });
        }
        let out_elements = heads * self.spec.v_dim() as usize;
        let io_format = self.spec.variant.io_format;
        let q = io_buffer(gpu, "q", &self.q, io_format);
        let out = io_buffer(gpu, "out", &vec![SENTINEL; out_elements], io_format);
        let lse = gpu.storage("lse", &vec![SENTINEL; heads]);
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&mut encoder, &plan)?;
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let io = AttentionIo::new(q.slice(..), out.slice(..));
            let io = if self.spec.lse { io.with_lse(lse.slice(..)) } else { io };
            cache.attend(&mut pass, attention, &step, 0, io)?;
        }
        gpu.submit(encoder);
        let out = read_io(gpu, &out, out_elements, io_format).ok_or(Verdict::Lost)?;
        let lse = if self.spec.lse { gpu.read(&lse).ok_or(Verdict::Lost)? } else { Vec::new() };
        kept.give_back();
        Ok(Outcome { out, lse })
    }
}
