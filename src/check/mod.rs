//! Every form of the kernels against the f64 oracle, on one adapter.
//!
//! Nothing is printed: [`run`] returns a [`CheckReport`]. A check that cannot fail proves nothing, so planted faults
//! come first, and the check has failed if one of them is taken for a right answer.

mod report;
mod scenes;

use std::time::Instant;

use rand::Rng;

use crate::bench::report::Adapter;
use crate::bench::seed::rng_for;
use crate::config::KvFormat;
use crate::gpu::{DeviceProfile, Exchange};
use crate::harness::{Fault, Gpu, Scene, Verdict};

pub use report::{CheckReport, GroupReport, PlantedFault, SCHEMA, SceneFailure};
pub use scenes::{CheckScene, scenes};

/// Every fault that is planted.
const FAULTS: [Fault; 2] = [Fault::SkipLastBlock, Fault::StrayBlock];

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
/// One scene after the other, on purpose: lavapipe compiles kernels on its queue's one thread, where nearly all the time
/// of a check is spent, so that more threads of ours would only wait for it.
pub fn run(gpu: &Gpu, options: &CheckOptions, progress: &mut dyn FnMut(Progress<'_>)) -> CheckReport {
    let start = Instant::now();
    let profile = DeviceProfile::of(&gpu.device);
    let variants = Variant::all(&profile);
    let (scenes, planted) = (scenes(options.quick), CheckScene::for_faults());
    let faults = |variant: &Variant| if variant.paged { &FAULTS[..] } else { &[] };
    let total = variants.iter().map(|variant| scenes.len() + faults(variant).len()).sum();
    progress(Progress::Started { total });

    let mut report = CheckReport::new(Adapter::of(gpu), options);
    for variant in variants {
        let mut answer = |scene: &CheckScene, fault: Option<Fault>| {
            let answer = judge(gpu, &profile, &variant, scene, options.seed, fault);
            let planted = if fault.is_some() { ", planted fault" } else { "" };
            progress(Progress::Done { label: &format!("{}: {}{planted}", variant.label(), scene.label()) });
            answer
        };
        // They are faults of paging, and it is the same comparison that must notice them in all forms.
        for &fault in faults(&variant) {
            report.self_test.push(PlantedFault::new(fault, &variant, &answer(&planted, Some(fault))));
        }
        let mut group = GroupReport::new(&variant);
        for scene in &scenes {
            group.add(scene, &variant, &answer(scene, None));
        }
        report.groups.push(group);
    }
    report.seconds = start.elapsed().as_secs_f64();
    report
}

/// The largest error, or what is wrong.
type Answer = Result<f64, Verdict>;

fn judge(
    gpu: &Gpu,
    profile: &DeviceProfile,
    variant: &Variant,
    scene: &CheckScene,
    seed: u64,
    fault: Option<Fault>,
) -> Answer {
    let mut spec = scene.spec.clone();
    (spec.kv_format, spec.paged) = (variant.format, variant.paged);
    let mut profile = DeviceProfile { exchange: variant.exchange, ..profile.clone() };
    if let Some(split_tokens) = scene.split_tokens {
        profile.split_tokens = split_tokens;
    }
    // By its own name, so that a scene has the same data whichever others are run.
    let seed = rng_for(&scene.label(), seed).next_u64();
    let scene = Scene::random(&spec, seed)?;
    scene.judge(&scene.run(gpu, &profile, fault)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::Adapter;
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
