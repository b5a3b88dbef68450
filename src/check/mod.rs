//! Every form of the kernels against the f64 oracle, on one adapter.
//!
//! Nothing is printed: [`run`] returns a [`CheckReport`]. A check that cannot fail proves nothing, so planted faults
//! come first, and the check has failed if one of them is taken for a right answer.

mod job;
mod report;
mod scenes;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{available_parallelism, scope};
use std::time::Instant;

use crate::config::KvFormat;
use crate::gpu::{DeviceProfile, Exchange};
use crate::harness::{Fault, Gpu};

use job::{Answer, Job};

pub use report::{CheckReport, GroupReport, PlantedFault, SCHEMA, SceneFailure};
pub use scenes::{CheckScene, scenes};

/// Every fault that is planted.
const FAULTS: [Fault; 2] = [Fault::SkipLastBlock, Fault::StrayBlock];
/// More threads would only hold more memory.
const MAX_THREADS: usize = 16;

/// What to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Two shapes instead of all.
    pub quick: bool,
    /// Seed of all inputs.
    pub seed: u64,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { quick: false, seed: 1 }
    }
}

/// What a check reports while it runs.
#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    /// Before the first scene.
    Started {
        /// Scenes to come, those with a planted fault included.
        total: usize,
    },
    /// After a scene.
    Done {
        /// The form of the kernel, and the scene.
        label: &'a str,
    },
}

/// A form of the decode kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variant {
    format: KvFormat,
    paged: bool,
    exchange: Exchange,
}

impl Variant {
    /// All forms that a device with this profile can run.
    fn all(profile: &DeviceProfile) -> Vec<Self> {
        let mut exchanges = vec![profile.exchange];
        // The form that needs nothing from the device is what other devices run.
        let fallback = profile.clone().without_subgroups().exchange;
        if fallback != profile.exchange {
            exchanges.push(fallback);
        }
        let mut all = Vec::new();
        for exchange in exchanges {
            for format in KvFormat::ALL {
                all.extend([true, false].map(|paged| Self { format, paged, exchange }));
            }
        }
        all
    }

    fn mode(&self) -> &'static str {
        if self.paged { "paged" } else { "contiguous" }
    }

    fn label(&self) -> String {
        format!("{} {} {}", self.format, self.mode(), self.exchange)
    }
}

/// Runs the check; a scene that fails is in the report, and the others go on.
///
/// Scenes are run on several threads: a software adapter compiles its kernels on the thread that asks for them, and that
/// takes far longer than to run them.
pub fn run(gpu: &Gpu, options: &CheckOptions, progress: &mut dyn FnMut(Progress<'_>)) -> CheckReport {
    let start = Instant::now();
    let profile = DeviceProfile::of(&gpu.device);
    let variants = Variant::all(&profile);
    let scenes = scenes(options.quick);
    let planted = CheckScene::for_faults();
    // By scene rather than by variant: the slow ones stand first, and are shared out before the threads run dry.
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for scene in &scenes {
        jobs.extend(variants.iter().map(|&variant| Job { variant, scene, fault: None }));
    }
    for fault in FAULTS {
        jobs.extend(variants.iter().map(|&variant| Job { variant, scene: &planted, fault: Some(fault) }));
    }
    let answers = run_all(gpu, &profile, options.seed, &jobs, progress);

    let mut report = CheckReport::new(report::adapter(gpu), options);
    for variant in variants {
        let mut group = GroupReport::new(&variant);
        for (job, answer) in jobs.iter().zip(&answers).filter(|(job, _)| job.variant == variant) {
            match job.fault {
                None => group.add(job.scene, &variant, answer),
                Some(fault) => report.self_test.push(PlantedFault::new(fault, &variant, answer)),
            }
        }
        report.groups.push(group);
    }
    report.seconds = start.elapsed().as_secs_f64();
    report
}

/// The answers, in the order of the jobs.
fn run_all(
    gpu: &Gpu,
    profile: &DeviceProfile,
    seed: u64,
    jobs: &[Job<'_>],
    progress: &mut dyn FnMut(Progress<'_>),
) -> Vec<Answer> {
    progress(Progress::Started { total: jobs.len() });
    let threads = available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let (next, turn) = (AtomicUsize::new(0), Mutex::new(()));
    let (sender, receiver) = channel();
    let mut answers: Vec<(usize, Answer)> = Vec::new();
    scope(|scope| {
        for _ in 0..threads {
            let (sender, next, turn) = (sender.clone(), &next, &turn);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(at) else { break };
                    // The receiver is gone only if the thread that owns it has panicked.
                    let _ = sender.send((at, job.run(gpu, profile, seed, turn)));
                }
            });
        }
        drop(sender);
        for (at, answer) in receiver {
            progress(Progress::Done { label: &jobs[at].label() });
            answers.push((at, answer));
        }
    });
    answers.sort_by_key(|&(at, _)| at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::Adapter;
    use crate::harness::Verdict;
    use crate::reference::Mismatch;

    fn variant() -> Variant {
        Variant { format: KvFormat::F16, paged: true, exchange: Exchange::Workgroup { lanes: 64 } }
    }

    fn wrong() -> Answer {
        Err(Verdict::Output(Mismatch::Value { index: 3, got: f32::NAN, want: 0.5, tolerance: 4e-6 }))
    }

    fn report() -> CheckReport {
        let adapter = Adapter {
            name: "card".into(),
            backend: "Vulkan".into(),
            driver: "driver".into(),
            software: false,
            device_type: "DiscreteGpu".into(),
            wgpu_version: "30.0".into(),
        };
        let mut report = CheckReport::new(adapter, &CheckOptions::default());
        let variant = variant();
        let mut group = GroupReport::new(&variant);
        group.add(&scenes(true)[0], &variant, &Ok(1e-7));
        report.groups.push(group);
        report.self_test.push(PlantedFault::new(Fault::StrayBlock, &variant, &wrong()));
        report
    }

    #[test]
    fn a_mismatch_fails_the_check_and_survives_json() {
        let mut report = report();
        assert!(report.passed());
        report.groups[0].add(&scenes(true)[1], &variant(), &wrong());
        let failure = &report.groups[0].failures[0];
        assert_eq!((failure.index, failure.got, failure.want), (Some(3), None, Some(0.5)));
        assert_eq!((report.groups[0].scenes, report.groups[0].worst_error), (2, 1e-7));
        assert!(!report.passed());
        assert_eq!(serde_json::from_str::<CheckReport>(&report.to_json().unwrap()).unwrap(), report);
    }

    #[test]
    fn a_blind_check_fails() {
        let mut blind = report();
        for unnoticed in [Ok(0.0), Err(Verdict::Lost)] {
            blind.self_test = vec![PlantedFault::new(Fault::StrayBlock, &variant(), &unnoticed)];
            assert!(!blind.passed(), "{unnoticed:?}");
        }
        blind.self_test.clear();
        assert!(!blind.passed(), "nothing planted, nothing proved");
        let mut empty = report();
        empty.groups.clear();
        assert!(!empty.passed(), "nothing checked, nothing proved");
    }
}
