//! What storage costs: the error of every format against the oracle on inputs that no storage has rounded.

use crate::common::{gpu, profiles, run};
use wgpu_paged_attention::formats::KvDtype;
use wgpu_paged_attention::reference::max_error;
use wgpu_paged_attention::testkit::{ACCURACY, Scenario, ScenarioSpec};

/// The error of a format, relative to the largest |V|.
fn relative_errors(stored: KvDtype) -> Vec<f64> {
    let Some(gpu) = gpu() else { return Vec::new() };
    // Long rows, and short ones, where no average hides the error of a single value.
    let spec = ScenarioSpec { kv_dtype: KvDtype::F32, ..ScenarioSpec::decode(4, 2, 64, &[1, 2, 17, 300, 1024]) };
    let mut scenario = Scenario::random(&spec, 11).unwrap();
    let largest = scenario.v.iter().filter(|v| v.is_finite()).fold(0.0_f32, |top, v| top.max(v.abs()));
    let exact = scenario.expected();
    scenario.spec.kv_dtype = stored;
    let scenario = Scenario { layout: Scenario::random(&scenario.spec, 11).unwrap().layout, ..scenario };
    let errors = profiles(&gpu).into_iter().map(|profile| {
        let outcome = run(&gpu, &profile, &scenario);
        max_error(&outcome.out, &exact.output) / f64::from(largest)
    });
    errors.collect()
}

#[test]
fn every_format_is_as_accurate_as_promised_and_misses_the_bound_of_a_finer_one() {
    let mut finer = None;
    for (format, bound) in ACCURACY {
        for error in relative_errors(format) {
            println!("{format}: {error:.1e} of the largest |V|, {bound:.0e} allowed");
            assert!(error <= bound, "{format}: {error:e}");
            if let Some((finer, its_bound)) = finer {
                // Int8 is no coarser than bf16 by much; every other step loses bits.
                assert!(error > its_bound / 8.0, "{format} would pass for {finer}: {error:e}");
            }
        }
        finer = Some((format, bound));
    }
    assert_eq!(ACCURACY.map(|(format, _)| format), KvDtype::ALL);
}
