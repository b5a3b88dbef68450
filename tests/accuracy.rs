//! What storage costs: the error of every format against the oracle on inputs that no storage has rounded.

mod common;

use common::{gpu, profiles, run};
use wgpu_paged_attention::formats::KvFormat;
use wgpu_paged_attention::reference::max_error;
use wgpu_paged_attention::testkit::{Scene, SceneSpec};

/// Largest error of a format, relative to the largest |V|, for inputs from N(0, 1).
const BOUNDS: [(KvFormat, f64); 6] = [
    (KvFormat::F32, 2e-6),
    (KvFormat::F16, 1e-3),
    (KvFormat::Bf16, 8e-3),
    (KvFormat::Int8, 1e-2),
    (KvFormat::Fp8, 5e-2),
    (KvFormat::Int4, 1e-1),
];

/// The error of a format, relative to the largest |V|.
fn relative_error(kv_format: KvFormat, stored: KvFormat) -> Vec<f64> {
    let Some(gpu) = gpu() else { return Vec::new() };
    // Long rows, and short ones, where no average hides the error of a single value.
    let spec = SceneSpec { kv_format, ..SceneSpec::decode(4, 2, 64, &[1, 2, 17, 300, 1024]) };
    let mut scene = Scene::random(&spec, 11).unwrap();
    let largest = scene.v.iter().filter(|v| v.is_finite()).fold(0.0_f32, |top, v| top.max(v.abs()));
    scene.spec.kv_format = KvFormat::F32;
    let exact = scene.expected();
    scene.spec.kv_format = stored;
    let scene = Scene { layout: Scene::random(&scene.spec, 11).unwrap().layout, ..scene };
    let errors = profiles(&gpu).into_iter().map(|profile| {
        let outcome = run(&gpu, &profile, &scene);
        max_error(&outcome.out, &exact.output) / f64::from(largest)
    });
    errors.collect()
}

#[test]
fn every_format_is_as_accurate_as_promised() {
    for (format, bound) in BOUNDS {
        for error in relative_error(format, format) {
            println!("{format}: {error:.1e} of the largest |V|, {bound:.0e} allowed");
            assert!(error <= bound, "{format}: {error:e}");
        }
    }
    assert_eq!(BOUNDS.map(|(format, _)| format), KvFormat::ALL);
}

#[test]
fn a_coarser_format_misses_the_bound_of_a_finer_one() {
    for pair in BOUNDS.windows(2) {
        let [(_, bound), (coarser, _)] = pair else { unreachable!() };
        for error in relative_error(pair[0].0, *coarser) {
            // Int8 is no coarser than bf16 by much; every other step loses bits.
            assert!(error > bound / 8.0, "{coarser} would pass for {}: {error:e}", pair[0].0);
        }
    }
}
