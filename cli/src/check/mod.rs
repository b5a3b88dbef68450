//! Every form of the kernels against the f64 oracle, on one adapter.
//!
//! Nothing is printed: [`run`] returns a [`CheckReport`]. A check that cannot fail proves nothing, so planted faults
//! come first, and the check has failed if one of them is taken for a right answer.

pub mod command;
mod report;
mod rotations;
mod scenarios;

use std::convert::Infallible;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rand::Rng;
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{ChunkForm, DeviceProfile, LaneComm};
use wgpu_paged_attention::testkit::{
    Fault, Gpu, LayerEngine, LayerFault, RotationFault, RotationScenario, Scenario, Verdict, changed, in_parallel,
    layer_config, layer_kinds, layer_story,
};

use crate::report::Adapter;
use crate::seed::rng_for;

pub use report::{CheckReport, GroupReport, PlantedFault};
pub use rotations::{planted_rotations, rotations};
pub use scenarios::{CheckScene, scenarios};

/// Queries of the chunks that a software device serves like a GPU.
const CHUNK_QUERIES: u32 = 9;
/// What a scenario of such layers is called.
const LAYERS: &str = "layers of unlike kinds";
/// Splits so short that these have some to merge.
const LAYER_SPLIT: u32 = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    pub quick: bool,
    /// Also the forms of the kernels that the device could run and does not.
    pub every_form: bool,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug)]
pub enum Progress<'a> {
    Started { total: usize },
    At { done: usize, label: &'a str },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Variant {
    format: KvDtype,
    paged: bool,
    profile: DeviceProfile,
    /// Whether the device has no form with other lanes.
    alone: bool,
}

fn has_matrices(form: &DeviceProfile) -> bool {
    matches!(form.chunk_form, ChunkForm::MatrixTiles { .. })
}

impl Variant {
    fn all(gpu: &Gpu, own: &DeviceProfile, options: &CheckOptions) -> Vec<Self> {
        let mut forms = own.forms(&gpu.device);
        let alone = forms.iter().all(|form| form.lane_comm == own.lane_comm);
        if !options.every_form {
            // The form that needs nothing from the device is what other devices run.
            forms.retain(|form| form == own || form.lane_comm != own.lane_comm || has_matrices(form));
        }
        // What GPUs have for chunks needs no subgroups either. The device's own form stays as it is.
        let with_chunks = |form: &DeviceProfile| {
            let chunk_form = ChunkForm::WorkgroupTiles { rows: 64 };
            changed(form, |it| (it.chunk_form, it.chunk_queries) = (chunk_form, CHUNK_QUERIES))
        };
        let plain = |form: &DeviceProfile| form.software && matches!(form.lane_comm, LaneComm::Workgroup { .. });
        for form in forms.iter_mut().filter(|form| plain(form) && *form != own) {
            *form = with_chunks(form);
        }
        if plain(own) && !forms.contains(&with_chunks(own)) {
            forms.push(with_chunks(own));
        }
        let variant = |profile: &DeviceProfile, format, paged| Self { format, paged, profile: profile.clone(), alone };
        let formats = |profile| KvDtype::ALL.map(|format| [true, false].map(|paged| variant(profile, format, paged)));
        // Matrix units serve caches in f16.
        let is_served = |it: &Self| it.format == KvDtype::F16 || !has_matrices(&it.profile) || it.profile == *own;
        forms.iter().flat_map(formats).flatten().filter(is_served).collect()
    }

    fn scenarios(&self, options: &CheckOptions) -> Vec<CheckScene> {
        let subgroups = matches!(self.profile.lane_comm, LaneComm::Subgroup { .. });
        scenarios(options, self.format, self.paged, subgroups, self.alone)
    }

    /// The faults that are planted in it: all of them, in one format. It is the same comparison that must notice them
    /// everywhere.
    fn faults(&self) -> Vec<Fault> {
        let planted = self.paged && self.format == KvDtype::F16;
        let spec = CheckScene::for_faults(self.format, self.paged, self.has_chunks()).spec;
        Fault::ALL.into_iter().filter(|fault| planted && fault.shows_in(&spec)).collect()
    }

    /// Layers of unlike kinds in one cache: a model without a fault, and one for each of these. In f16, and where time is no
    /// matter in a form of other lanes and in a format with scales.
    fn layers(&self, own: bool, options: &CheckOptions) -> Vec<Option<LayerFault>> {
        let planted = own && self.format == KvDtype::F16;
        let more = !options.quick && (self.format == KvDtype::F16 || own && self.format == KvDtype::Int8);
        let faults = LayerFault::ALL.into_iter().filter(|_| planted).map(Some);
        if self.paged && (planted || more) { faults.chain([None]).collect() } else { Vec::new() }
    }

    /// Whether chunks have a kernel of their own.
    fn has_chunks(&self) -> bool {
        self.profile.chunk_form != ChunkForm::QueryTiles
    }

    fn mode(&self) -> &'static str {
        if self.paged { "paged" } else { "contiguous" }
    }

    /// A software driver compiles the widest query tiles for seconds: only one format has them there, and the next seed
    /// gives them to another.
    fn profile(&self, seed: u64) -> DeviceProfile {
        let mut profile = self.profile.clone();
        if profile.software && KvDtype::ALL[(seed % KvDtype::ALL.len() as u64) as usize] != self.format {
            (profile.tile_tokens, profile.tile_rows) = (profile.tile_tokens.min(4), profile.tile_rows.min(8));
        }
        profile
    }

    fn label(&self) -> String {
        format!("{} {} {}", self.format, self.mode(), self.profile.form_name())
    }
}

/// What is checked of a variant.
struct Work {
    variant: Variant,
    scenarios: Vec<CheckScene>,
    faults: Vec<Fault>,
    rotations: Vec<RotationScenario>,
    planted_rotations: Vec<(RotationFault, RotationScenario)>,
    layers: Vec<Option<LayerFault>>,
}

impl Work {
    fn all(gpu: &Gpu, profile: &DeviceProfile, options: &CheckOptions) -> Vec<Self> {
        let work = |variant: Variant| {
            let (scenarios, faults) = (variant.scenarios(options), variant.faults());
            let rotates = variant.paged && variant.profile == *profile;
            let rotations = if rotates { rotations(options, variant.format) } else { Vec::new() };
            let planted = rotates && variant.format == KvDtype::F16;
            let planted_rotations = if planted { planted_rotations().collect() } else { Vec::new() };
            let layers = variant.layers(variant.profile == *profile, options);
            Self { variant, scenarios, faults, rotations, planted_rotations, layers }
        };
        Variant::all(gpu, profile, options).into_iter().map(work).collect()
    }

    fn len(&self) -> usize {
        let planted = self.faults.len() + self.planted_rotations.len();
        self.scenarios.len() + self.rotations.len() + self.layers.len() + planted
    }

    fn run(&self, gpu: &Gpu, seed: u64, begin: &dyn Fn(&str)) -> (GroupReport, Vec<PlantedFault>) {
        let variant = &self.variant;
        let answer = |scenario: &CheckScene, fault: Option<Fault>| {
            let planted = if fault.is_some() { ", planted fault" } else { "" };
            begin(&format!("{}: {}{planted}", variant.label(), scenario.label()));
            judge(gpu, variant, scenario, seed, fault)
        };
        let planted = CheckScene::for_faults(variant.format, variant.paged, variant.has_chunks());
        let plant = |&fault: &Fault| PlantedFault::new(fault.name(), variant, &answer(&planted, Some(fault)));
        let mut self_test: Vec<_> = self.faults.iter().map(plant).collect();
        let rotate = |scenario: &RotationScenario, fault: Option<RotationFault>| {
            let planted = if fault.is_some() { ", planted fault" } else { "" };
            begin(&format!("{scenario}{planted}"));
            scenario.run(gpu, rng_for(&scenario.to_string(), seed).next_u64(), fault)
        };
        let plant = |(fault, scenario): &(RotationFault, _)| {
            PlantedFault::new(fault.name(), variant, &rotate(scenario, Some(*fault)))
        };
        self_test.extend(self.planted_rotations.iter().map(plant));
        let mut group = GroupReport::new(variant);
        for scenario in &self.scenarios {
            group.add(scenario.label(), &scenario.spec.seq_lens, variant, &answer(scenario, None));
        }
        for scenario in &self.rotations {
            group.add(scenario.to_string(), &scenario.seq_lens, variant, &rotate(scenario, None));
        }
        let mut engine = None;
        for &fault in &self.layers {
            let planted = if fault.is_some() { ", planted fault" } else { "" };
            begin(&format!("{}: {LAYERS}{planted}", variant.label()));
            let answer = judge_layers(gpu, variant, seed, &mut engine, fault);
            match fault {
                Some(fault) => self_test.push(PlantedFault::new(fault.name(), variant, &answer)),
                None => group.add(LAYERS.to_owned(), &[], variant, &answer),
            }
        }
        (group, self_test)
    }
}

/// Runs the check on devices of one adapter; a scenario that fails is in the report, and the others go on.
///
/// lavapipe compiles kernels on the one thread of a device's queue, where nearly all the time of a check is spent, so that
/// every further device serves a further core.
pub fn run(
    gpus: &[Gpu],
    profile: &DeviceProfile,
    options: &CheckOptions,
    progress: &(dyn Fn(Progress<'_>) + Sync),
) -> CheckReport {
    let start = Instant::now();
    let work = Work::all(&gpus[0], profile, options);
    progress(Progress::Started { total: work.iter().map(Work::len).sum() });

    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let found: Vec<OnceLock<_>> = work.iter().map(|_| OnceLock::new()).collect();
    let begin = |label: &str| progress(Progress::At { done: done.fetch_add(1, Ordering::Relaxed), label });
    let serve = |gpu: &Gpu| {
        while let Some(number) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&number| number < work.len()) {
            found[number].get_or_init(|| work[number].run(gpu, options.seed, &begin));
        }
        Ok::<_, Infallible>(())
    };
    in_parallel(gpus, serve).unwrap_or_else(|never| match never {});

    let mut report = CheckReport::new(Adapter::of(&gpus[0]), options);
    for (group, self_test) in found.into_iter().filter_map(OnceLock::into_inner) {
        report.groups.push(group);
        report.self_test.extend(self_test);
    }
    report.seconds = start.elapsed().as_secs_f64();
    report
}

type Answer = Result<f64, Verdict>;

/// Layers of unlike kinds in one cache, with the tables of each group and their windows. The kernels are made once.
fn judge_layers(
    gpu: &Gpu,
    variant: &Variant,
    seed: u64,
    kept: &mut Option<LayerEngine>,
    fault: Option<LayerFault>,
) -> Answer {
    let engine = match kept {
        Some(engine) => engine,
        None => {
            let profile = changed(&variant.profile(seed), |it| it.split_tokens = LAYER_SPLIT);
            let numbers: Vec<u32> = (0..layer_kinds(variant.format).len() as u32).collect();
            kept.insert(LayerEngine::new(gpu, &profile, &layer_config(variant.format), &numbers)?)
        }
    };
    engine.reset()?;
    let steps = layer_story(engine, fault)?;
    Ok(steps.iter().map(|step| step.worst).fold(0.0, f64::max))
}

fn judge(gpu: &Gpu, variant: &Variant, scenario: &CheckScene, seed: u64, fault: Option<Fault>) -> Answer {
    let mut profile = variant.profile(seed);
    if let Some(split_tokens) = scenario.split_tokens {
        profile.split_tokens = split_tokens;
    }
    // By its own name, so that a scenario has the same data whichever others are run.
    let seed = rng_for(&scenario.label(), seed).next_u64();
    let scenario = Scenario::random(&scenario.spec, seed)?;
    scenario.judge(&scenario.run(gpu, &profile, fault)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::files::Report;
    use crate::report::Adapter;
    use wgpu_paged_attention::reference::Mismatch;

    fn variant() -> Variant {
        let info = wgpu::AdapterInfo::new(wgpu::DeviceType::Other, wgpu::Backend::Noop);
        let profile = DeviceProfile::new(&info, wgpu::Features::empty(), &wgpu::Limits::default());
        Variant { format: KvDtype::F16, paged: true, profile, alone: true }
    }

    fn wrong() -> Answer {
        Err(Verdict::Output(Mismatch::Value { index: 3, got: f32::NAN, want: 0.5, tolerance: 4e-6 }))
    }

    fn report() -> CheckReport {
        let adapter = Adapter { name: "card".into(), driver: "driver".into(), ..Adapter::default() };
        let mut report = CheckReport::new(adapter, &CheckOptions { quick: false, every_form: false, seed: 1 });
        let variant = variant();
        let mut group = GroupReport::new(&variant);
        group.add("a scene".into(), &[3], &variant, &Ok(1e-7));
        report.groups.push(group);
        report.self_test.push(PlantedFault::new(Fault::StrayBlock.name(), &variant, &wrong()));
        report
    }

    #[test]
    fn a_mismatch_fails_the_check_and_survives_json() {
        let mut report = report();
        assert!(report.passed());
        report.groups[0].add("another".into(), &[3], &variant(), &wrong());
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
            blind.self_test = vec![PlantedFault::new(Fault::StrayBlock.name(), &variant(), &unnoticed)];
            assert!(!blind.passed(), "{unnoticed:?}");
        }
        blind.self_test.clear();
        assert!(!blind.passed(), "nothing planted, nothing proved");
        let mut empty = report();
        empty.groups.clear();
        assert!(!empty.passed(), "nothing checked, nothing proved");
    }
}
