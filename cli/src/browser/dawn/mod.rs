//! What the library asks of a device, done by Dawn, Chromium's WebGPU: its compiler takes every kernel, its validation every
//! binding and dispatch, and the answers are the oracle's.

mod trace;

use half::f16;
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::gpu::{AppendSpec, DeviceProfile, IoFormat, KvCache};
use wgpu_paged_attention::testkit::{Fault, Gpu, Outcome, Scenario, ScenarioSpec, ScenarioVariant, Verdict, changed};

use crate::browser::Browser;
use trace::{Replayed, Trace};

/// Of a model, at the least.
const KERNELS: u32 = 6;
/// Every option of attention, in one kernel.
const RICH: ScenarioVariant = ScenarioVariant {
    causal: true,
    window: Some(30),
    soft_cap: Some(2.0),
    alibi: true,
    sinks: true,
    io_format: IoFormat::F16,
};

fn profile(gpu: &Gpu) -> DeviceProfile {
    DeviceProfile::new(&gpu.info, gpu.device.features(), &gpu.device.limits())
}

/// Compiles what a model with this attention can need.
fn compile(gpu: &Gpu, spec: &ScenarioSpec) {
    let scenario = Scenario::random(spec, 1).expect("a possible cache");
    let cache = KvCache::with_profile(&gpu.device, &scenario.layout, profile(gpu)).expect("a small cache");
    let attention = cache.attention(scenario.attention_spec(None)).expect("a possible attention");
    cache.appender(AppendSpec::new()).expect("it compiles");
    attention.warm_up(&cache, u32::MAX).expect("it compiles");
    cache.warm_up().expect("it compiles");
}

/// The scenario as Dawn computes it, and the largest error.
fn answer(browser: &Browser, name: &str, spec: &ScenarioSpec, fault: Option<Fault>) -> Result<f64, Verdict> {
    let scenario = Scenario::random(spec, 7)?;
    let trace = Trace::of(browser, name, false, |gpu| {
        let profile = changed(&profile(gpu), |profile| profile.split_tokens = 64);
        scenario.run(gpu, &profile, fault).expect("it is recorded");
    });
    let replayed = trace.replay(browser, name);
    assert_eq!(replayed.errors, [""; 0], "{name}");
    scenario.judge(&outcome(&scenario, &replayed))
}

fn outcome(scenario: &Scenario, replayed: &Replayed) -> Outcome {
    let words = |bytes: &[u8]| bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let halves = |bytes: &[u8]| bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
    let out = match scenario.spec.variant.io_format {
        IoFormat::F32 => words(&replayed.read[0]),
        IoFormat::F16 => halves(&replayed.read[0]),
    };
    Outcome { out, lse: replayed.read.get(1).map_or_else(Vec::new, |bytes| words(bytes)) }
}

/// The traces of all formats: of a plain attention, and where `rich` says so of one with all options on a contiguous cache.
fn all_kernels(browser: &Browser, subgroups: bool, rich: fn(KvDtype) -> bool) -> impl Iterator<Item = (&str, Trace)> {
    KvDtype::ALL.into_iter().map(move |format| {
        let mut specs = vec![changed(&ScenarioSpec::decode(8, 2, 128, &[20]), |spec| spec.kv_dtype = format)];
        if rich(format) {
            specs.push(changed(&specs[0], |spec| (spec.variant, spec.lse, spec.paged) = (RICH, true, false)));
        }
        let work = |gpu: &Gpu| specs.iter().for_each(|spec| compile(gpu, spec));
        (format.name(), Trace::of(browser, format.name(), subgroups, work))
    })
}

#[test]
fn dawn_takes_every_kernel() {
    let Some(browser) = Browser::find("dawn_takes_every_kernel") else { return };
    // Its pipelines take SwiftShader seconds, and formats and options are different parts of a text.
    for (name, trace) in all_kernels(&browser, false, |format| format == KvDtype::F16) {
        let replayed = trace.replay(&browser, name);
        assert_eq!(replayed.errors, [""; 0], "{name}");
        assert!(replayed.modules >= KERNELS && replayed.pipelines == replayed.modules, "{name}: {replayed:?}");
    }
}

/// SwiftShader, behind Dawn, takes minutes to compile a kernel with subgroups, so that this is Dawn's own half.
#[test]
fn dawn_takes_texts_with_subgroups() {
    let Some(browser) = Browser::find("dawn_takes_texts_with_subgroups") else { return };
    for (name, mut trace) in all_kernels(&browser, true, |_| true) {
        trace.pipelines = false;
        assert!(trace.texts().any(|text| text.contains("subgroupShuffle")), "{name}");
        let replayed = trace.replay(&browser, name);
        assert_eq!(replayed.errors, [""; 0], "{name}");
        assert!(replayed.modules >= KERNELS, "{name}: {replayed:?}");
    }
}

#[test]
fn dawn_notices_a_broken_text() {
    let Some(browser) = Browser::find("dawn_notices_a_broken_text") else { return };
    let spec = ScenarioSpec::decode(2, 1, 16, &[20]);
    let mut trace = Trace::of(&browser, "broken", false, |gpu| compile(gpu, &spec));
    let text = trace.texts().next().expect("there are kernels");
    text.push_str("fn planted() -> u32 { return 1.5; }\n");
    let replayed = trace.replay(&browser, "broken");
    assert!(replayed.errors.iter().any(|error| error.contains("return")), "{replayed:?}");
    assert!(replayed.pipelines < replayed.modules, "{replayed:?}");
}

#[test]
fn dawn_answers_as_the_oracle() {
    let Some(browser) = Browser::find("dawn_answers_as_the_oracle") else { return };
    let decode = changed(&ScenarioSpec::decode(4, 2, 64, &[1, 17, 0, 150]), |spec| spec.lse = true);
    let prefill = changed(&ScenarioSpec::decode(4, 1, 32, &[33, 80]), |spec| {
        (spec.query_lens, spec.kv_dtype, spec.variant) = (Some(vec![33, 5]), KvDtype::Int8, RICH);
    });
    for (name, spec) in [("decode", &decode), ("prefill", &prefill)] {
        let error = answer(&browser, name, spec, None).unwrap_or_else(|verdict| panic!("{name}: {verdict}"));
        assert!(error > 0.0, "{name}: an answer without any rounding is the oracle's own");
    }
    let verdict = answer(&browser, "planted", &decode, Some(Fault::SkipLastBlock));
    assert!(matches!(verdict, Err(Verdict::Output(_) | Verdict::Lse(_))), "{verdict:?}");
}
