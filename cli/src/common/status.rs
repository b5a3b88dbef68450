//! How the program ends.

use std::process::ExitCode;

use crate::bench::report::Report;
use crate::check::CheckReport;

/// Exit statuses; the help lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All that was asked for was done, and is right.
    Ok = 0,
    /// A wrong result, a measurement that failed, or a report that could not be written.
    Failed = 1,
    /// Wrong usage, or a file that cannot be read or written.
    Usage = 2,
    /// No adapter as asked for.
    NoAdapter = 3,
    /// Ended by Ctrl-C.
    Interrupted = 130,
}

impl Status {
    /// How a benchmark ends. A case that failed is one too many, and so is a run without any case.
    pub fn of_bench(report: &Report, interrupted: bool) -> Self {
        if interrupted {
            Self::Interrupted
        } else if !report.failures.is_empty() || report.results.is_empty() {
            Self::Failed
        } else {
            Self::Ok
        }
    }

    /// How a check ends.
    pub fn of_check(report: &CheckReport) -> Self {
        if report.passed() { Self::Ok } else { Self::Failed }
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status as u8)
    }
}

/// Why the program ends early.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The exit status.
    pub status: Status,
    /// What to print after `error: `, remedy included.
    pub message: String,
}

impl Failure {
    /// Ends with this status and these words.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::{Adapter, CaseResult, Ceilings, Mode, Timing};

    fn adapter() -> Adapter {
        Adapter { name: "card".into(), driver: "driver".into(), ..Adapter::default() }
    }

    fn report() -> Report {
        let mut report = Report::new("paged-attention bench".into(), 1, adapter(), Ceilings::default());
        report.results.push(CaseResult {
            op: "decode".into(),
            model: "1/1x8".into(),
            num_q_heads: 1,
            num_kv_heads: 1,
            head_dim: 8,
            kv_dtype: "f16".into(),
            block_size: 16,
            batch: 1,
            context: 1,
            tokens: 1,
            queries: 1,
            variant: "plain".into(),
            shared_prefix: 0,
            mode: Mode::Paged,
            workload: "uniform".into(),
            input_hash: "0".into(),
            timing: Timing::Gpu,
            samples_us: vec![1.0],
            median_us: 1.0,
            p25_us: 1.0,
            p75_us: 1.0,
            wall_median_us: None,
            cold_us: None,
            bytes: 1,
            gb_s: 1.0,
            fraction_of_read: None,
            flops: 0,
            gflop_s: None,
            fraction_of_fma: None,
            max_abs_error: 0.0,
        });
        report
    }

    #[test]
    fn a_failed_case_is_a_failed_run_however_many_passed() {
        use crate::bench::report::Failure;
        let mut report = report();
        assert_eq!(Status::of_bench(&report, false), Status::Ok);
        for error in ["the kernel was refused", "element 0: got NaN", "element 0: got 1, want 2", "the device was lost"]
        {
            report.failures = vec![Failure {
                op: "decode".into(),
                model: "1/1x8".into(),
                batch: 1,
                context: 1,
                mode: Mode::Contiguous,
                error: error.into(),
            }];
            assert_eq!(Status::of_bench(&report, false), Status::Failed, "{error}");
        }
    }

    #[test]
    fn a_run_that_measured_nothing_has_failed() {
        let mut report = report();
        report.results.clear();
        assert_eq!(Status::of_bench(&report, false), Status::Failed);
        assert_eq!(Status::of_bench(&report, true), Status::Interrupted);
    }
}
