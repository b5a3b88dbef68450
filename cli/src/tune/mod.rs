//! `paged-attention tune`: the form of the kernels and its numbers that are the fastest on this device, measured.
//!
//! The search goes setting by setting. Neighbours of the best profile so far are compared with the oracle, then timed in
//! alternation with that profile and the device's own. Those that lose leave after a few rounds, the last one needs rounds
//! of its own to take the lead, and what leads at the end is held against the device's own profile once more.

mod candidates;
pub mod command;
mod device;
mod entrant;
mod found;
mod judge;
mod report;
mod search;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::DeviceProfile;
use wgpu_paged_attention::testkit::Gpu;

use crate::bench::measure::between_runs;
use crate::bench::{CaseError, ModelShape, Op};
use candidates::AXES;
use device::Device;
use found::{Found, Progress};
use search::{Search, SearchOptions};

pub use command::for_bench;

/// The operations that are timed: what differs between them is what a profile decides.
const OPS: [Op; 2] = [Op::Decode, Op::Prefill];
/// The settings that a quick search tries.
const QUICK_AXES: usize = 2;
/// Sequences that decode, tokens of each, and tokens of a prompt: what a software driver's kernels need not be waited for.
const SOFTWARE_SIZES: (u32, u32, u32) = (8, 1024, 256);
const GPU_SIZES: (u32, u32, u32) = (8, 2048, 2048);
const QUICK_SIZES: (u32, u32, u32) = (2, 256, 64);
const SOFTWARE_TIME: Duration = Duration::from_secs(300);
const GPU_TIME: Duration = Duration::from_secs(60);

/// What a device is tuned for.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    pub shape: ModelShape,
    pub kv_dtype: KvDtype,
    pub block_size: u32,
    /// Sequences of the decode step, and tokens of each.
    pub batch: u32,
    pub context: u32,
    /// Tokens of the prompt.
    pub prompt: u32,
    pub seed: u64,
    pub time_budget: Duration,
    pub quick: bool,
}

impl TuneOptions {
    /// With the sizes and the time that suit the adapter.
    pub fn new(shape: ModelShape, software: bool, quick: bool) -> Self {
        let (batch, context, prompt) = match (quick, software) {
            (true, _) => QUICK_SIZES,
            (false, true) => SOFTWARE_SIZES,
            (false, false) => GPU_SIZES,
        };
        let time_budget = if software { SOFTWARE_TIME } else { GPU_TIME };
        Self { shape, kv_dtype: KvDtype::F16, block_size: 16, batch, context, prompt, seed: 1, time_budget, quick }
    }

    fn lens(&self, op: Op) -> Vec<u32> {
        if op == Op::Prefill { vec![self.prompt] } else { vec![self.context; self.batch as usize] }
    }

    fn label(&self, op: Op) -> String {
        let lens = self.lens(op);
        format!("{op} {} × {}", lens.len(), lens[0])
    }

    /// The cache, in words.
    fn subject(&self) -> String {
        let Self { shape, kv_dtype, block_size, .. } = self;
        format!("{shape} {kv_dtype}, blocks of {block_size}")
    }
}

/// Searches for the profile that is the fastest on a device. `None` if `cancel` was set before anything was measured.
///
/// # Errors
/// Where the device's own profile cannot be measured.
fn tune(
    gpu: &Gpu,
    options: &TuneOptions,
    cancel: &AtomicBool,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Option<Found>, CaseError> {
    let mut device = Device::new(gpu, options)?;
    let axes = if options.quick { &AXES[..QUICK_AXES] } else { AXES };
    let (noise, time_budget) = (between_runs(gpu.is_software()), options.time_budget);
    let options = SearchOptions { axes, around: device.surroundings(), noise, time_budget };
    Search::new(&mut device, DeviceProfile::of(&gpu.device), &options, cancel, progress).run()
}
