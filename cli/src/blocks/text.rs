//! A study as tables for people.

use comfy_table::{CellAlignment, Table, presets};

use super::measure::reference;
use super::report::{BlockSizeRow, BlockSizeStudy, BlockSizesReport};
use crate::bench::report::render_banner;

/// The whole report.
pub fn render(report: &BlockSizesReport) -> String {
    let mut parts: Vec<String> = report.adapter.iter().map(render_banner).collect();
    parts.extend(report.workloads.iter().map(|study| render_study(study, report.max_seq_len)));
    if report.adapter.is_some() {
        parts.push(format!(
            "decode: one layer of {} in {}, a batch drawn from the requests; ÷ is the median over neighbouring runs",
            report.model, report.kv_dtype
        ));
    }
    if let Some(recommendation) = &report.recommendation {
        parts.push(format!("recommended: blocks of {}: {}", recommendation.block_size, recommendation.reason));
    }
    if report.interrupted {
        parts.push("interrupted: not everything was measured".to_owned());
    }
    parts.join("\n\n")
}

/// A column: its head, and what it says of a row.
type Column = (String, fn(&BlockSizeRow) -> Option<String>);

fn render_study(study: &BlockSizeStudy, max_seq_len: u32) -> String {
    let sizes: Vec<u32> = study.rows.iter().map(|row| row.block_size).collect();
    let against = sizes.get(reference(&sizes)).copied().unwrap_or_default();
    let columns: [Column; 11] = [
        ("block".to_owned(), |row| Some(row.block_size.to_string())),
        (format!("entries at {max_seq_len}"), |row| Some(row.entries_at_max_len.to_string())),
        ("table bytes".to_owned(), |row| Some(row.table_bytes_per_seq.to_string())),
        ("blocks per sequence".to_owned(), |row| Some(format!("{:.1}", row.mean_blocks))),
        ("fragmentation".to_owned(), |row| Some(share(row.fragmentation))),
        ("by half a block".to_owned(), |row| Some(share(row.half_block_fragmentation))),
        ("published".to_owned(), |row| row.published.map(|published| whole(published.fragmentation))),
        ("utilisation".to_owned(), |row| Some(share(row.utilisation))),
        ("published".to_owned(), |row| row.published.map(|published| whole(published.utilisation))),
        ("prefix hits".to_owned(), |row| row.prefix_hit_share.map(share)),
        (format!("decode, ÷ {against}"), |row| {
            row.decode.map(|decode| format!("{:.3} ms, {:.3}", decode.median_us / 1e3, decode.relative))
        }),
    ];
    let known = |(_, cell): &&Column| study.rows.iter().any(|row| cell(row).is_some());
    let columns: Vec<&Column> = columns.iter().filter(known).collect();
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(columns.iter().map(|(head, _)| head.clone()));
    for row in &study.rows {
        table.add_row(columns.iter().map(|(_, cell)| cell(row).unwrap_or_else(|| "–".to_owned())));
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    let count = |count: u64, what: &str| if count == 0 { String::new() } else { format!(", {count} {what}") };
    format!(
        "{}: {} requests{}{}{}; sequences of {:.0} tokens on average, {} of what a contiguous cache reserves\n{table}",
        study.name,
        study.requests,
        count(study.cut, "cut at the longest sequence"),
        count(study.refused, "refused or without an answer"),
        count(study.skipped, "bad rows left out"),
        study.mean_tokens,
        share(study.contiguous_utilisation),
    )
}

fn share(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn whole(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
