//! One scene in one form of the kernel, from its data to its verdict.

use std::sync::{Mutex, PoisonError};

use rand::Rng;

use super::{CheckScene, Variant};
use crate::bench::seed::rng_for;
use crate::gpu::{Attention, AttentionIo, AttentionSpec, DeviceProfile, KvCache};
use crate::harness::{Fault, Gpu, Outcome, Scene, Verdict};

/// What the output holds before a run, so that a row that is not written shows.
const SENTINEL: f32 = 123.0;

/// The largest error, or what is wrong.
pub(super) type Answer = Result<f64, Verdict>;

/// One scene in one form of the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) variant: Variant,
    pub(super) scene: &'a CheckScene,
    pub(super) fault: Option<Fault>,
}

impl Job<'_> {
    pub(super) fn label(&self) -> String {
        let fault = if self.fault.is_some() { ", planted fault" } else { "" };
        format!("{}: {}{fault}", self.variant.label(), self.scene.label())
    }

    /// Runs the scene; whoever has the `turn` may submit to the device and wait for it.
    ///
    /// What [`Gpu::read`] waits for may be handed out by another thread's wait, and then it is not there yet: reading is
    /// for one thread at a time. Compiling and judging, which take the time, are not.
    pub(super) fn run(&self, gpu: &Gpu, profile: &DeviceProfile, seed: u64, turn: &Mutex<()>) -> Answer {
        let mut spec = self.scene.spec.clone();
        (spec.kv_format, spec.paged) = (self.variant.format, self.variant.paged);
        let mut profile = DeviceProfile { exchange: self.variant.exchange, ..profile.clone() };
        if let Some(split_tokens) = self.scene.split_tokens {
            profile.split_tokens = split_tokens;
        }
        // By its own name, so that a scene has the same data whichever others are run.
        let seed = rng_for(&self.scene.label(), seed).next_u64();
        let scene = Scene::random(&spec, seed)?;
        let take_turn = || turn.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = {
            let _turn = take_turn();
            scene.upload(gpu, &profile)?
        };
        let mut wanted = AttentionSpec::new(spec.num_q_heads);
        wanted.lse = spec.lse;
        let attention = cache.attention(wanted)?;
        let outcome = {
            let _turn = take_turn();
            attend(gpu, &scene, &cache, &attention, self.fault)?
        };
        scene.judge(&outcome)
    }
}

/// [`Scene::run`], with the cache filled and the kernels compiled.
fn attend(
    gpu: &Gpu,
    scene: &Scene,
    cache: &KvCache,
    attention: &Attention,
    fault: Option<Fault>,
) -> Result<Outcome, Verdict> {
    let plan = scene.plan(cache.profile().split_tokens, fault)?;
    let q = gpu.storage("q", &scene.q);
    let out = gpu.storage("out", &vec![SENTINEL; scene.q.len()]);
    let lse = gpu.storage("lse", &vec![SENTINEL; scene.q.len() / scene.spec.head_dim as usize]);
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    let step = cache.begin_step(&gpu.queue, &mut encoder, &plan)?;
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let lse = scene.spec.lse.then(|| lse.slice(..));
        cache.attend(&mut pass, attention, &step, 0, AttentionIo { q: q.slice(..), out: out.slice(..), lse })?;
    }
    gpu.submit(encoder);
    let out = gpu.read(&out).ok_or(Verdict::Lost)?;
    let lse = if scene.spec.lse { gpu.read(&lse).ok_or(Verdict::Lost)? } else { Vec::new() };
    Ok(Outcome { out, lse })
}
