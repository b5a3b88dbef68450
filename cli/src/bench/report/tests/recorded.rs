//! The JSON of a benchmark run that has just ended, named by the environment variable `BENCH_JSON`.

use std::fs;

use crate::bench::options::Op;
use crate::bench::report::{CaseResult, Mode, Report};
use crate::report::SCHEMA;
use wgpu_paged_attention::testkit::skip;

fn check_number(what: &str, value: f64) {
    assert!(value.is_finite() && value > 0.0, "{what} is {value}");
}

fn check_result(result: &CaseResult) {
    let CaseResult { op, model, batch, context, mode, .. } = result;
    let case = format!("{op} {model} {batch} x {context} {}", mode.name());
    assert!(!result.samples_us.is_empty(), "{case} has no samples");
    for &sample in &result.samples_us {
        check_number(&format!("a sample of {case}"), sample);
    }
    for (name, value) in [("p25_us", result.p25_us), ("median_us", result.median_us), ("gb_s", result.gb_s)] {
        check_number(&format!("{name} of {case}"), value);
    }
    assert!(result.p25_us <= result.median_us && result.median_us <= result.p75_us, "{case}: quartiles out of order");
    assert!(result.bytes > 0 && result.tokens > 0, "{case} moved nothing");
    // gb_s is what its definition says it is.
    let gb_s = result.bytes as f64 / result.median_us / 1e3;
    assert!((result.gb_s - gb_s).abs() <= 1e-6 * gb_s, "{case}: {} GB/s instead of {gb_s}", result.gb_s);
    let share = result.fraction_of_read.expect("the ceiling for reading was measured");
    check_number(&format!("fraction_of_read of {case}"), share);
    if op == "append" {
        assert_eq!((result.flops, result.gflop_s, result.queries), (0, None, 0), "{case} computes nothing");
    } else {
        let gflop_s = result.flops as f64 / result.median_us / 1e3;
        let given = result.gflop_s.unwrap_or(f64::NAN);
        assert!((given - gflop_s).abs() <= 1e-6 * gflop_s, "{case}: {given} GFLOP/s instead of {gflop_s}");
        assert!(result.queries > 0 && !result.variant.is_empty(), "{case} asked nothing");
    }
    if matches!(op.as_str(), "prefill" | "mixed") {
        check_number(&format!("fraction_of_fma of {case}"), result.fraction_of_fma.unwrap_or(f64::NAN));
    }
    assert!((0.0..1e-2).contains(&result.max_abs_error), "{case} is off by {}", result.max_abs_error);
}

#[test]
fn the_json_of_a_benchmark_run_is_complete_and_its_numbers_are_possible() {
    let Some(path) = std::env::var_os("BENCH_JSON") else {
        return skip(None, "BENCH_JSON names no file; write one with `make bench ARGS=\"--json FILE\"`");
    };
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let report: Report = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));

    assert_eq!(report.head.schema, SCHEMA);
    assert!(!report.adapter.name.is_empty() && !report.adapter.backend.is_empty() && report.head.command.is_some());
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    let ceilings = report.ceilings;
    for (name, value) in [
        ("read_gb_s", ceilings.read_gb_s),
        ("copy_gb_s", ceilings.copy_gb_s),
        ("fma_gflop_s", ceilings.fma_gflop_s),
        ("dispatch_us", ceilings.dispatch_us),
    ] {
        check_number(name, value.unwrap_or_else(|| panic!("{name} was not measured")));
    }

    report.results.iter().for_each(check_result);
    for op in Op::ALL {
        assert!(report.results.iter().any(|result| result.op == op.name()), "no {op} result");
    }
    for mode in [Mode::Paged, Mode::Contiguous] {
        assert!(report.results.iter().any(|result| result.mode == mode), "no {} result", mode.name());
    }
    assert!(!report.pairs.is_empty(), "no pair of a paged and a contiguous run");
    for pair in &report.pairs {
        check_number(&format!("paged_over_contiguous of {} {}", pair.op, pair.model), pair.paged_over_contiguous);
        assert!(pair.samples > 0);
    }
}
