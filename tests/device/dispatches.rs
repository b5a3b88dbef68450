//! How work is dealt out to dispatches changes no bit of a result.

use crate::common::{bits, gpu, profiles, run};
use wgpu_paged_attention::testkit::{Scenario, ScenarioSpec, ScenarioVariant, changed};

#[test]
fn a_step_in_one_dispatch_equals_the_same_in_many() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        for window in [None, Some(19)] {
            let variant = ScenarioVariant { window, ..ScenarioVariant::default() };
            let spec = ScenarioSpec {
                query_lens: Some(vec![70, 1, 3, 0, 40]),
                lse: true,
                variant,
                ..ScenarioSpec::decode(4, 2, 16, &[90, 300, 77, 5, 40])
            };
            let scenario = Scenario::random(&spec, 3).unwrap();
            let whole = run(&gpu, &profile, &scenario);
            scenario.judge(&whole).unwrap();
            // One workgroup to a dispatch, a few, and many.
            for max_dispatch_work in [1, 5000, 100_000] {
                let pieces = run(&gpu, &changed(&profile, |it| it.max_dispatch_work = max_dispatch_work), &scenario);
                assert_eq!(bits(&pieces.out), bits(&whole.out), "{max_dispatch_work}");
                assert_eq!(bits(&pieces.lse), bits(&whole.lse), "{max_dispatch_work}");
            }
        }
    }
}
