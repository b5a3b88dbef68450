//! Results as CSV: one row per case.

use serde::Serialize;

use super::{CaseResult, Mode, Report, ReportError, Timing};
use crate::report::to_csv;

/// A result without its samples, and what it was measured on: rows of several files may be put into one table.
#[derive(Serialize)]
struct Row<'a> {
    adapter: &'a str,
    driver: &'a str,
    op: &'a str,
    model: &'a str,
    num_q_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    kv_dtype: &'a str,
    block_size: u32,
    batch: u32,
    context: u32,
    tokens: u64,
    queries: u64,
    variant: &'a str,
    shared_prefix: u32,
    mode: Mode,
    workload: &'a str,
    timing: Timing,
    samples: usize,
    median_us: f64,
    p25_us: f64,
    p75_us: f64,
    wall_median_us: Option<f64>,
    cold_us: Option<f64>,
    bytes: u64,
    gb_s: f64,
    fraction_of_read: Option<f64>,
    flops: u64,
    gflop_s: Option<f64>,
    fraction_of_fma: Option<f64>,
    paged_over_contiguous: Option<f64>,
    max_abs_error: f64,
}

impl<'a> Row<'a> {
    fn of(report: &'a Report, result: &'a CaseResult) -> Self {
        let pair = report.pairs.iter().find(|pair| result.mode == Mode::Paged && pair.is_of(result));
        Self {
            adapter: &report.adapter.name,
            driver: &report.adapter.driver,
            op: &result.op,
            model: &result.model,
            num_q_heads: result.num_q_heads,
            num_kv_heads: result.num_kv_heads,
            head_dim: result.head_dim,
            kv_dtype: &result.kv_dtype,
            block_size: result.block_size,
            batch: result.batch,
            context: result.context,
            tokens: result.tokens,
            queries: result.queries,
            variant: &result.variant,
            shared_prefix: result.shared_prefix,
            mode: result.mode,
            workload: &result.workload,
            timing: result.timing,
            samples: result.samples_us.len(),
            median_us: result.median_us,
            p25_us: result.p25_us,
            p75_us: result.p75_us,
            wall_median_us: result.wall_median_us,
            cold_us: result.cold_us,
            bytes: result.bytes,
            gb_s: result.gb_s,
            fraction_of_read: result.fraction_of_read,
            flops: result.flops,
            gflop_s: result.gflop_s,
            fraction_of_fma: result.fraction_of_fma,
            paged_over_contiguous: pair.map(|pair| pair.paged_over_contiguous),
            max_abs_error: result.max_abs_error,
        }
    }
}

impl Report {
    /// The results as CSV, one row per case, samples left out. Without any result there is no header either.
    ///
    /// # Errors
    /// [`ReportError::NotCsv`] if a row cannot be written.
    pub fn to_csv(&self) -> Result<String, ReportError> {
        Ok(to_csv(self.results.iter().map(|result| Row::of(self, result)))?)
    }
}
