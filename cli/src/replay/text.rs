//! A replay as a table for people.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use super::execute::ExecuteRecord;
use super::record::ServeRecord;
use super::report::ReplayReport;
use super::spread::Spread;
use crate::plan::ByteSize;
use crate::trace::count;

/// The report as text: what was served, on what clock, and both caches side by side.
pub fn render(report: &ReplayReport) -> String {
    let sides: Vec<&ServeRecord> = report.contiguous.iter().chain(&report.paged).collect();
    let log = &report.log;
    let skipped = match log.skipped {
        0 => String::new(),
        skipped => format!(", {} left out", count(skipped, "bad row")),
    };
    let time = match (log.time_unit, &log.time_unit_by) {
        (Some(unit), Some(by)) => format!(", times in {} ({by})", unit.name()),
        _ => String::new(),
    };
    let mut lines = vec![
        format!("log: {}, {}{skipped}{time}", log.name, count(log.requests as u64, "request")),
        format!(
            "cache: {}, {} bytes per token in {}, blocks of {} tokens, budget {}",
            report.model,
            report.bytes_per_token,
            report.cache.kv_dtype,
            report.cache.block_size,
            budget(report)
        ),
        format!("clock: {}{}", report.clock.description, fit(report)),
    ];

    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(std::iter::once("").chain(sides.iter().map(|side| side.name())));
    table.add_rows(numbers(&sides));
    table.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    lines.push(table.to_string());

    if let Some((concurrency, throughput)) = report.gains() {
        lines.push(format!(
            "paged over contiguous: {concurrency:.2} × the requests at a time, {throughput:.2} × the generated tokens per second"
        ));
    }
    if let Some(executed) = &report.executed {
        lines.push(execution(executed));
    }
    if report.interrupted {
        lines.push("interrupted: the numbers are those so far".to_owned());
    }
    lines.join("\n")
}

/// What a table shows of the sides: a row for each number, its name first.
pub(crate) fn numbers(sides: &[&ServeRecord]) -> Vec<Vec<String>> {
    let row = |label: &str, cell: Cell| {
        std::iter::once(label.to_owned()).chain(sides.iter().map(|side| cell(side))).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> = ROWS.iter().map(|(label, cell)| row(label, *cell)).collect();
    if sides.iter().any(|side| side.prefix.is_some()) {
        rows.push(row("prefix hits", |side| {
            side.prefix.as_ref().map_or("–".to_owned(), |prefix| {
                format!("{} of {} tokens", share(prefix.hit_share), prefix.prompt_tokens)
            })
        }));
        rows.push(row("of an infinite cache", |side| {
            side.prefix.as_ref().map_or("–".to_owned(), |prefix| share(prefix.infinite_share))
        }));
    }
    rows
}

fn execution(executed: &ExecuteRecord) -> String {
    let software = if executed.adapter.software { " (SOFTWARE ADAPTER)" } else { "" };
    let mut text = format!(
        "executed on {}{software}: {} steps with {} tokens in {} layers, {} blocks copied; of {} rows compared with the \
         reference {} were wrong, the largest error of the others is {:.1e}",
        executed.adapter.name,
        executed.steps,
        executed.tokens,
        executed.layers,
        executed.copied_blocks,
        executed.checked_rows,
        executed.wrong_rows,
        executed.max_abs_error
    );
    for row in &executed.wrong {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n  WRONG step {}, request {}, token {}, layer {}, KV head {}: {}",
            row.step, row.request, row.position, row.layer, row.kv_head, row.error
        );
    }
    text
}

type Cell = fn(&ServeRecord) -> String;

/// What a table shows of each side.
const ROWS: &[(&str, Cell)] = &[
    ("room, tokens", |side| side.capacity_tokens.to_string()),
    ("finished (cut at the longest sequence)", |side| format!("{} ({})", side.finished, side.cut)),
    ("refused / empty / unfinished", |side| format!("{} / {} / {}", side.refused, side.empty, side.unfinished)),
    ("utilisation, mean (p50, p95)", |side| shares(side.utilisation)),
    ("internal fragmentation, mean (p50, p95)", |side| shares(side.internal_fragmentation)),
    ("requests at a time, mean (p50, max)", |side| counts(side.concurrency)),
    ("waiting, mean (p50, max)", |side| counts(side.waiting)),
    ("requests per second", |side| format!("{:.3}", side.requests_per_s)),
    ("generated tokens per second", |side| format!("{:.1}", side.output_tokens_per_s)),
    ("prompt and generated tokens per second", |side| format!("{:.1}", side.total_tokens_per_s)),
    ("queueing, p50 / p95 / p99", |side| times(side.queueing_s)),
    ("time to first token, p50 / p95 / p99", |side| times(side.time_to_first_token_s)),
    ("time between tokens, p50 / p95 / p99", |side| times(side.time_between_tokens_s)),
    ("time per output token, p50 / p95 / p99", |side| times(side.time_per_output_token_s)),
    ("whole request, p50 / p95 / p99", |side| times(side.latency_s)),
    ("preemptions (tokens computed again)", |side| format!("{} ({})", side.preemptions, side.recomputed_tokens)),
    ("steps", |side| side.steps.to_string()),
    ("seconds, of these in steps", |side| format!("{:.1}, {:.1}", side.elapsed_s, side.busy_s)),
];

/// The size of the cache, as it was given.
pub(crate) fn budget(report: &ReplayReport) -> String {
    match (report.cache.memory_budget_bytes, report.cache.num_blocks) {
        (Some(bytes), _) => ByteSize(bytes).to_string(),
        (None, blocks) => format!("{} blocks", blocks.unwrap_or(0)),
    }
}

/// What the clock was calibrated on, and its error.
pub(crate) fn fit(report: &ReplayReport) -> String {
    let clock = &report.clock;
    let adapter = clock.adapter.as_ref().map_or(String::new(), |adapter| format!(", calibrated on {adapter}"));
    match clock.fit_error_mean.zip(clock.fit_error_max) {
        Some((mean, max)) => format!(
            "{adapter}; error at points kept out of the fit: mean {:.1} %, largest {:.1} %",
            mean * 100.0,
            max * 100.0
        ),
        None => adapter,
    }
}

fn share(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn shares(spread: Option<Spread>) -> String {
    spread.map_or("–".to_owned(), |spread| {
        format!("{} ({}, {})", share(spread.mean), share(spread.p50), share(spread.p95))
    })
}

fn counts(spread: Option<Spread>) -> String {
    spread.map_or("–".to_owned(), |spread| format!("{:.2} ({:.0}, {:.0})", spread.mean, spread.p50, spread.max))
}

fn times(spread: Option<Spread>) -> String {
    let time = |seconds: f64| match seconds {
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 99.95 => format!("{s:.2} s"),
        s => format!("{s:.0} s"),
    };
    spread.map_or("–".to_owned(), |spread| {
        format!("{} / {} / {}", time(spread.p50), time(spread.p95), time(spread.p99))
    })
}
