//! Comparisons for the terminal.

use std::fmt::Write;

use comfy_table::{CellAlignment, Table, presets};

use super::{Comparison, Row, Verdict};
use crate::html::number;

/// The whole comparison.
pub fn render(comparison: &Comparison) -> String {
    let Comparison { compared, a, b, noise, settings, rows, .. } = comparison;
    let mut text = format!("A: {a}\nB: {b}\n{compared} reports; noise: {noise}\n");
    // Writing to a string cannot fail.
    if settings.is_empty() {
        text.push_str("settings, versions and machine are the same\n");
    } else {
        let mut table = table(&["differs", "A", "B"]);
        table.add_rows(settings.iter().map(|setting| [&setting.name, &setting.a, &setting.b]));
        let _ = writeln!(text, "{table}\n");
    }
    let mut table = table(&["case", "A", "B", "B÷A", "within", "verdict"]);
    table.add_rows(rows.iter().map(cells));
    for column in table.column_iter_mut().skip(1).take(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let _ = writeln!(text, "{table}");
    let _ = write!(text, "{}", summary(rows));
    for Row { case, note, .. } in rows.iter().filter(|row| !row.note.is_empty()) {
        let _ = write!(text, "\n  {case}: {note}");
    }
    text
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header);
    table
}

fn cells(row: &Row) -> [String; 6] {
    let absent = || "–".to_owned();
    let value = |value: Option<f64>| match value {
        Some(value) => format!("{} {}", number(value), row.unit).trim_end().to_owned(),
        None => absent(),
    };
    let within = match (row.ratio_low, row.ratio_high) {
        (Some(low), Some(high)) if low != high => format!("{low:.3}–{high:.3}"),
        (Some(_), Some(_)) => "exact".to_owned(),
        _ => absent(),
    };
    let ratio = row.ratio.map_or_else(absent, |ratio| format!("{ratio:.3}"));
    [row.case.clone(), value(row.a), value(row.b), ratio, within, row.verdict.name().to_owned()]
}

/// How many cases got which verdict.
fn summary(rows: &[Row]) -> String {
    let mut counts: Vec<(Verdict, usize)> = Vec::new();
    for row in rows {
        match counts.iter_mut().find(|(verdict, _)| *verdict == row.verdict) {
            Some((_, count)) => *count += 1,
            None => counts.push((row.verdict, 1)),
        }
    }
    let counts: Vec<_> = counts.into_iter().map(|(verdict, count)| format!("{count} {}", verdict.name())).collect();
    if counts.is_empty() { "no cases".to_owned() } else { counts.join(", ") }
}
