//! Comparisons as CSV and as a page.

use super::{Comparison, Row, Verdict};
use crate::common::Report;
use crate::html::{Page, Section};
use crate::report::fmt::{number, ratio};
use crate::report::{Table, to_csv};

impl Report for Comparison {
    const KIND: &'static str = "compare";

    fn to_csv(&self) -> Result<String, csv::Error> {
        to_csv(&self.rows)
    }

    fn page(&self) -> Page {
        let Comparison { compared, a, b, noise, settings, rows, .. } = self;
        let differs = Table::of(
            "settings",
            "What differs",
            3,
            settings,
            &[
                ("differs", &|setting| Some(setting.name.clone())),
                ("A", &|setting| Some(setting.a.clone())),
                ("B", &|setting| Some(setting.b.clone())),
            ],
        );
        let same = settings.is_empty().then(|| "settings, versions and machine are the same".to_owned());
        let notes =
            rows.iter().filter(|row| !row.note.is_empty()).map(|Row { case, note, .. }| format!("  {case}: {note}"));
        Page {
            head: self.head.clone(),
            title: format!("Two reports of {compared}"),
            facts: vec![("A", a.clone()), ("B", b.clone()), ("noise", noise.clone())],
            notices: same.into_iter().collect(),
            sections: vec![Section::table("Settings", differs), Section::table("Cases", cases(rows))],
            summary: std::iter::once(summary(rows)).chain(notes).collect(),
        }
    }
}

fn cases(rows: &[Row]) -> Table {
    let value = |value: Option<f64>, unit: &str| Some(format!("{} {unit}", number(value?)).trim_end().to_owned());
    Table::of(
        "cases",
        "B against A",
        2,
        rows,
        &[
            ("case", &|row| Some(row.case.clone())),
            ("verdict", &|row| Some(row.verdict.name().to_owned())),
            ("A", &|row| value(row.a, &row.unit)),
            ("B", &|row| value(row.b, &row.unit)),
            ("B÷A", &|row| row.ratio.map(ratio)),
            ("within", &|row| {
                let (low, high) = row.ratio_low.zip(row.ratio_high)?;
                Some(if low == high { "exact".to_owned() } else { format!("{}–{}", ratio(low), ratio(high)) })
            }),
        ],
    )
}

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
