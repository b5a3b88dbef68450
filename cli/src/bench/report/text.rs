//! Reports for the terminal.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use super::{Adapter, CaseResult, Ceilings, Figure, Limit, Mode, Report, Timing};

/// Stands in every text report of a software adapter.
pub const SOFTWARE_NOTICE: &str = "SOFTWARE ADAPTER: these are CPU numbers, not a GPU's";

/// The whole report.
pub fn render(report: &Report) -> String {
    let mut parts = vec![render_banner(&report.adapter), render_ceilings(&report.ceilings)];
    if !report.results.is_empty() {
        parts.push(render_table(report));
    }
    if !report.figures.is_empty() {
        parts.push(render_figures(&report.figures));
    }
    if !report.failures.is_empty() {
        parts.push(render_failures(report));
    }
    parts.join("\n")
}

/// What was measured on, and a warning where that is no GPU.
pub fn render_banner(adapter: &Adapter) -> String {
    let Adapter { name, backend, driver, device_type, wgpu_version, software } = adapter;
    let mut text =
        format!("adapter: {name} ({device_type}) | backend: {backend} | driver: {driver} | wgpu {wgpu_version}");
    if *software {
        text.push('\n');
        text.push_str(SOFTWARE_NOTICE);
    }
    text
}

/// What the device does at best, as far as measured.
pub fn render_ceilings(ceilings: &Ceilings) -> String {
    let value = |value: Option<f64>, unit: &str| match value {
        Some(value) => format!("{} {unit}", significant(value)),
        None => "not measured".to_owned(),
    };
    format!(
        "ceilings: read {} | copy {} | multiply-add {} | empty dispatch {}",
        value(ceilings.read_gb_s, "GB/s"),
        value(ceilings.copy_gb_s, "GB/s"),
        value(ceilings.fma_gflop_s, "GFLOP/s"),
        ceilings.dispatch_us.map_or_else(|| "not measured".to_owned(), duration),
    )
}

/// One row per result, as a Markdown table: what is measured is often pasted somewhere.
pub fn render_table(report: &Report) -> String {
    /// Columns before this one are words, the others numbers.
    const FIRST_NUMBER: usize = 5;

    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let (header, rows) = results_table(report);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(FIRST_NUMBER) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// Names of the columns, and one row per result.
pub(crate) fn results_table(report: &Report) -> ([&'static str; 12], Vec<[String; 12]>) {
    let header = [
        "op",
        "model",
        "kv",
        "batch × context",
        "mode",
        "median",
        "p25–p75",
        "tokens/s",
        "rate",
        "% of ceiling",
        "paged÷contig",
        "max err",
    ];
    (header, report.results.iter().map(|result| row(report, result)).collect())
}

fn row(report: &Report, result: &CaseResult) -> [String; 12] {
    let pair = report.pairs.iter().find(|pair| result.mode == Mode::Paged && pair.is_of(result));
    let absent = || "–".to_owned();
    // The rate that bounds it, and what that is a share of.
    let (rate, fraction) = match (result.gflop_s, result.fraction_of_fma) {
        (Some(gflop_s), Some(fraction)) => (format!("{} GFLOP/s", significant(gflop_s)), Some(fraction)),
        _ => (format!("{} GB/s", significant(result.gb_s)), result.fraction_of_read),
    };
    [
        op(result),
        result.model.clone(),
        match result.mode {
            Mode::Paged | Mode::Shared => format!("{}, blocks of {}", result.kv_dtype, result.block_size),
            Mode::Contiguous => result.kv_dtype.clone(),
        },
        match result.workload.as_str() {
            "uniform" => format!("{} × {}", result.batch, result.context),
            list if list.starts_with(|c: char| c.is_ascii_digit()) => list.to_owned(),
            workload => format!("{} × ≤{} {workload}", result.batch, result.context),
        },
        result.mode.name().to_owned(),
        match result.timing {
            Timing::Gpu => duration(result.median_us),
            // No comparison with device timestamps: submission and wake-up are in it.
            Timing::Wall => format!("{} wall", duration(result.median_us)),
        },
        format!("{}–{}", duration(result.p25_us), duration(result.p75_us)),
        significant(tokens_per_s(result)),
        rate,
        fraction.map_or_else(absent, |fraction| format!("{:.1}", fraction * 100.0)),
        pair.map_or_else(absent, |pair| format!("{:.3}", pair.paged_over_contiguous)),
        format!("{:.1e}", result.max_abs_error),
    ]
}

/// The operation, with what is not as usual about it.
fn op(result: &CaseResult) -> String {
    let mut text = result.op.clone();
    // Writing to a string cannot fail.
    if result.op == "decode" && result.queries > result.batch.into() {
        let _ = write!(text, " of {} queries", result.queries);
    }
    if !matches!(result.variant.as_str(), "" | "plain") {
        let _ = write!(text, ", {}", result.variant);
    }
    text
}

/// What was made of several runs: numbers, and what they should be.
pub fn render_figures(figures: &[Figure]) -> String {
    let mut text = "in alternation:".to_owned();
    for figure in figures {
        let asked = match (figure.limit, figure.met()) {
            (Some(limit), Some(met)) => {
                let asked = match limit {
                    Limit::AtMost(most) => format!("at most {most}"),
                    Limit::AtLeast(least) => format!("at least {least}"),
                };
                format!(" (asked: {asked}; {})", if met { "met" } else { "MISSED" })
            }
            _ => String::new(),
        };
        let measured =
            if figure.measured < 0.01 { format!("{:.1e}", figure.measured) } else { format!("{:.3}", figure.measured) };
        let _ = write!(text, "\n  {}: {measured}{asked}", figure.what);
    }
    text
}

/// Cases without a result, and why.
pub fn render_failures(report: &Report) -> String {
    let mut text = format!("failed: {}", report.failures.len());
    for failure in &report.failures {
        let (op, model, mode) = (&failure.op, &failure.model, failure.mode.name());
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {op} {model} {} × {} {mode}: {}", failure.batch, failure.context, failure.error);
    }
    text
}

/// Tokens that one run brings forward: those that it appends, or its queries.
fn tokens_per_s(result: &CaseResult) -> f64 {
    let tokens = if result.op == "append" { result.tokens } else { result.queries };
    tokens as f64 / result.median_us * 1e6
}

/// Microseconds in the unit that leaves one to three digits before the point.
fn duration(us: f64) -> String {
    if us < 999.5 {
        format!("{} µs", significant(us))
    } else if us < 999.5e3 {
        format!("{} ms", significant(us / 1e3))
    } else {
        format!("{} s", significant(us / 1e6))
    }
}

/// Three significant digits, without an exponent.
fn significant(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_fitting_unit() {
        for (us, expected) in [
            (0.5, "0.50 µs"),
            (9.994, "9.99 µs"),
            (9.996, "10.0 µs"),
            (99.96, "100 µs"),
            (999.4, "999 µs"),
            (999.6, "1.00 ms"),
            (15_000.0, "15.0 ms"),
            (999_600.0, "1.00 s"),
            (14_600_000.0, "14.6 s"),
        ] {
            assert_eq!(duration(us), expected);
        }
    }

    #[test]
    fn unmeasured_ceilings_are_called_that() {
        let ceilings = Ceilings { read_gb_s: Some(8.5), dispatch_us: Some(12.34), ..Ceilings::default() };
        assert_eq!(
            render_ceilings(&ceilings),
            "ceilings: read 8.50 GB/s | copy not measured | multiply-add not measured | empty dispatch 12.3 µs"
        );
    }
}
