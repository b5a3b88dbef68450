//! The numbers of a benchmark run.

use std::collections::HashMap;

use super::{Better, Measure, Missing};
use crate::bench::measure::{between_runs, median_band};
use crate::bench::{CaseResult, Ceilings, Failure, Mode, Report, Timing};
use crate::report::Adapter;
use crate::report::fmt::number;

pub(super) fn noise(report: &Report) -> String {
    format!(
        "medians differ if their 95 % intervals, taken from the samples and wider by {} % on each side for what changes \
         from one run to the next, do not overlap",
        between_runs(report.adapter.software) * 100.0
    )
}

pub(super) fn settings(report: &Report) -> Vec<(String, String)> {
    let Adapter { name, backend, driver, software: _, device_type, wgpu_version } = &report.adapter;
    let Ceilings { read_gb_s, copy_gb_s, fma_gflop_s, dispatch_us, .. } = report.ceilings;
    let ceiling = |value: Option<f64>| value.map_or("not measured".to_owned(), number);
    [
        ("adapter", name.clone()),
        ("type", device_type.clone()),
        ("driver", driver.clone()),
        ("backend", backend.clone()),
        ("wgpu", wgpu_version.clone()),
        ("version", report.head.version.clone()),
        ("profile", report.profile.clone()),
        ("seed", report.head.seed.map(|seed| seed.to_string()).unwrap_or_default()),
        ("command", report.head.command.clone().unwrap_or_default()),
        ("ceiling of reading, GB/s", ceiling(read_gb_s)),
        ("ceiling of copying, GB/s", ceiling(copy_gb_s)),
        ("ceiling of multiply-adds, GFLOP/s", ceiling(fma_gflop_s)),
        ("empty dispatch, µs", ceiling(dispatch_us)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

pub(super) fn measures(report: &Report) -> Vec<Measure> {
    let results = report.results.iter().map(|result| {
        let clock = match result.timing {
            Timing::Gpu => "timestamps of the device",
            Timing::Wall => "the host's clock",
        };
        let band = median_band(&result.samples_us).map(|band| band.widened(between_runs(report.adapter.software)));
        measure(case(result), band, clock)
    });
    let failures = report.failures.iter().map(|failure| {
        let Failure { op, model, batch, context, mode, error } = failure;
        let case = format!("{op} {model} {batch} × {context} {}", mode.name());
        measure(case, Err(Missing::Failed(error.clone())), "")
    });
    let mut measures: Vec<_> = results.chain(failures).collect();
    let mut seen: HashMap<String, usize> = HashMap::new();
    for measure in &mut measures {
        let count = seen.entry(measure.case.clone()).or_default();
        *count += 1;
        if *count > 1 {
            measure.case = format!("{} #{count}", measure.case);
        }
    }
    measures
}

fn measure(case: String, outcome: Result<super::Band, Missing>, clock: &'static str) -> Measure {
    Measure { case, unit: "µs", better: Better::Faster, outcome, clock }
}

fn case(result: &CaseResult) -> String {
    let CaseResult { op, model, kv_dtype, block_size, batch, context, mode, workload, .. } = result;
    let mut words = vec![format!("{op} {model} {batch} × {context} {} {kv_dtype}", mode.name())];
    if *mode != Mode::Contiguous {
        words.push(format!("blocks of {block_size}"));
    }
    if workload != "uniform" {
        words.push(workload.clone());
    }
    if result.is_speculative() {
        words.push(format!("{} queries", result.queries));
    }
    words.extend(result.options().map(str::to_owned));
    if result.shared_prefix > 0 {
        words.push(format!("{} in common", result.shared_prefix));
    }
    words.join(", ")
}
