use super::*;
use crate::bench::report::{CaseResult, Ceilings, Failure, Mode, Report, Timing};
use crate::report::Adapter;

fn report(results: Vec<CaseResult>) -> Report {
    let adapter = Adapter { name: "card".into(), driver: "driver 1".into(), ..Adapter::default() };
    let mut report = Report::new("paged-attention bench".into(), 1, adapter, Ceilings::default());
    report.results = results;
    report
}

/// A case whose samples lie within 2 % of `us`.
fn result(context: u32, us: f64) -> CaseResult {
    let samples_us: Vec<f64> = (0..21).map(|i| us * (1.0 + 0.002 * f64::from(i - 10))).collect();
    CaseResult { context, samples_us, median_us: us, p25_us: us, p75_us: us, ..CaseResult::sample() }
}

fn compared(a: Report, b: Report) -> Comparison {
    let recorded = |name: &str, report: &Report| Recorded::of_bench(name.into(), report);
    Comparison::of(&recorded("a.json", &a), &recorded("b.json", &b)).unwrap()
}

fn verdicts(comparison: &Comparison) -> Vec<Verdict> {
    comparison.rows.iter().map(|row| row.verdict).collect()
}

#[test]
fn what_lies_within_the_noise_is_the_same_and_what_does_not_is_flagged() {
    let a = report(vec![result(1, 100.0), result(2, 100.0), result(4, 100.0), result(8, 100.0)]);
    let b = report(vec![result(1, 101.0), result(2, 110.0), result(4, 90.0), result(16, 1.0)]);
    let comparison = compared(a, b);
    assert_eq!(
        verdicts(&comparison),
        [Verdict::Same, Verdict::Slower, Verdict::Faster, Verdict::OnlyInA, Verdict::OnlyInB]
    );
    let slower = &comparison.rows[1];
    assert_eq!((slower.ratio, slower.a, slower.b), (Some(1.1), Some(100.0), Some(110.0)));
    // Of 21 samples, five may be left out at each end: the sixth lies 1 % below the median. Another 1 % lies between runs.
    assert!((slower.ratio_low.unwrap() - 1.1 * 0.98 / 1.02).abs() < 1e-12, "{slower:?}");
    assert_eq!(comparison.slower_than(0.05).count(), 1);
    assert_eq!(comparison.slower_than(0.11).count(), 0);
    let text = comparison.page().to_text();
    for word in ["1 SLOWER", "1 faster", "1 only in A", "1 only in B", "1.100", "same"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn runs_on_a_cpu_lie_further_apart() {
    let run = |us, software| {
        let mut report = report(vec![result(1, us)]);
        report.adapter.software = software;
        report
    };
    for (us, software, verdict) in [
        (109.0, false, Verdict::Slower),
        (109.0, true, Verdict::Same),
        (120.0, true, Verdict::Slower),
        (80.0, true, Verdict::Faster),
    ] {
        let comparison = compared(run(100.0, software), run(us, software));
        assert_eq!(verdicts(&comparison), [verdict], "{us} {software}");
    }
    assert!(compared(run(1.0, true), run(1.0, true)).noise.contains("wider by 5 % on each side"));
}

#[test]
fn a_case_that_failed_is_never_fast() {
    let failure = |context| Failure {
        op: "decode".into(),
        model: "m".into(),
        batch: 1,
        context,
        mode: Mode::Paged,
        error: "element 5: got NaN".into(),
    };
    let (mut a, mut b) = (report(vec![result(1, 100.0)]), report(vec![result(2, 1.0)]));
    b.failures = vec![failure(1), failure(4)];
    a.failures = vec![failure(2), failure(4)];
    let comparison = compared(a, b);
    assert_eq!(verdicts(&comparison), [Verdict::FailedInB, Verdict::FailedInBoth, Verdict::FailedInA]);
    assert!(comparison.rows.iter().all(|row| row.ratio.is_none() && row.note == "element 5: got NaN"));
    assert_eq!(comparison.rows[0].case, "decode m 1 × 1 paged f16, blocks of 16", "the name that says more");
    assert_eq!(comparison.slower_than(1000.0).count(), 1, "to fail is worse than to be slow");
}

#[test]
fn other_clocks_and_few_samples_leave_it_open() {
    let (mut wall, mut few) = (result(1, 100.0), result(2, 100.0));
    wall.timing = Timing::Wall;
    few.samples_us = vec![100.0; 3];
    let comparison = compared(report(vec![result(1, 50.0), result(2, 50.0)]), report(vec![wall, few]));
    assert_eq!(verdicts(&comparison), [Verdict::Unclear, Verdict::Unclear]);
    assert!(comparison.rows[0].note.contains("the host's clock"), "{comparison:?}");
    assert!(comparison.rows[1].note.contains("only 3 samples"), "{comparison:?}");
}

#[test]
fn only_settings_that_differ_are_listed() {
    let (a, mut b) = (report(vec![]), report(vec![]));
    b.adapter.driver = "driver 2".into();
    b.head.seed = Some(2);
    let comparison = compared(a, b);
    let names: Vec<_> = comparison.settings.iter().map(|setting| setting.name.as_str()).collect();
    assert_eq!(names, ["driver", "seed"]);
    assert_eq!((&*comparison.settings[0].a, &*comparison.settings[0].b), ("driver 1", "driver 2"));
}

#[test]
fn cases_of_one_name_are_paired_in_their_order() {
    let twice = |first, second| report(vec![result(1, first), result(1, second)]);
    let comparison = compared(twice(100.0, 200.0), twice(100.0, 100.0));
    assert_eq!(verdicts(&comparison), [Verdict::Same, Verdict::Faster]);
}

#[test]
fn a_comparison_is_json_and_csv() {
    let comparison = compared(report(vec![result(1, 100.0)]), report(vec![result(1, 50.0)]));
    let json: Comparison = serde_json::from_str(&comparison.to_json().unwrap()).unwrap();
    assert_eq!(json, comparison);
    let csv = comparison.to_csv().unwrap();
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines[0], "case,unit,a,b,ratio,ratio_low,ratio_high,verdict,loss,note");
    assert!(lines[1].starts_with("\"decode m 1 × 1 paged f16, blocks of 16\",µs,100.0,50.0,0.5,"), "{csv}");
    assert!(lines[1].contains(",faster,-0.5,"), "{csv}");
}
