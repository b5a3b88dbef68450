//! The page of a benchmark run.

use super::plot::{Axis, Level, MAX_SERIES, Plot, Scale, Series, number};
use super::{Page, Section, Table};
use crate::bench::options::Op;
use crate::bench::report::{Adapter, CaseResult, Ceilings, Limit, Mode, Report, SOFTWARE_NOTICE, results_table};

impl From<&Report> for Page {
    fn from(report: &Report) -> Self {
        let mut facts = vec![
            ("Version".to_owned(), format!("wgpu-paged-attention {}", report.version)),
            ("Seed".to_owned(), report.seed.to_string()),
        ];
        facts.splice(0..0, adapter_facts(&report.adapter));
        Self {
            title: format!("Paged attention measured on {}", report.adapter.name),
            notices: notices(report),
            facts,
            command: report.command.clone(),
            sections: sections(report),
        }
    }
}

/// What was measured on, for the head of a page.
pub(super) fn adapter_facts(adapter: &Adapter) -> Vec<(String, String)> {
    let Adapter { name, backend, driver, device_type, wgpu_version, software: _ } = adapter;
    [
        ("Adapter", format!("{name} ({device_type})")),
        ("Driver", driver.clone()),
        ("Backend", format!("{backend}, wgpu {wgpu_version}")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

fn notices(report: &Report) -> Vec<String> {
    let mut notices = Vec::new();
    if report.adapter.software {
        notices.push(SOFTWARE_NOTICE.to_owned());
    }
    if !report.failures.is_empty() {
        notices.push(format!("Failed cases, which have no numbers: {}. They are listed below.", report.failures.len()));
    }
    notices
}

fn sections(report: &Report) -> Vec<Section> {
    let Ceilings { read_gb_s, fma_gflop_s, .. } = report.ceilings;
    let mut sections = vec![Section {
        heading: "What the device does at best".to_owned(),
        text: "Rates of trivial kernels: what paged attention is compared with.".to_owned(),
        plots: Vec::new(),
        tables: vec![ceilings_table(&report.ceilings)],
    }];
    let decode = Rate {
        ops: &[Op::Decode],
        id: "decode-rate",
        title: "Decode",
        y: "bytes that must move, GB/s",
        value: |result| Some(result.gb_s),
        ceiling: read_gb_s.map(|rate| (format!("reading at best: {} GB/s", number(rate)), rate)),
    };
    let prefill = Rate {
        ops: &[Op::Prefill],
        id: "prefill-rate",
        title: "Prefill",
        y: "multiplies and adds, GFLOP/s",
        value: |result| result.gflop_s,
        ceiling: fma_gflop_s.map(|rate| (format!("multiply-adds at best: {} GFLOP/s", number(rate)), rate)),
    };
    for (heading, rate) in [("Decode rate and context", decode), ("Prefill rate and context", prefill)] {
        let plots = rate.plots(&report.results);
        if !plots.is_empty() {
            let text = "Medians. The ceiling is the one measured at the start of the run; shares in the table below are \
                        of the ceiling measured beside each case.";
            sections.push(Section { heading: heading.to_owned(), text: text.to_owned(), plots, tables: Vec::new() });
        }
    }
    if !report.results.is_empty() {
        let (header, rows) = results_table(report);
        let caption = "Every case that agrees with the reference: median and quartiles of its runs";
        let mut table = Table::new("results", caption, &header, 5);
        table.rows = rows.into_iter().map(Vec::from).collect();
        sections.push(Section { heading: "All results".to_owned(), tables: vec![table], ..Section::default() });
    }
    if !report.figures.is_empty() {
        sections.push(Section {
            heading: "Measured in alternation".to_owned(),
            tables: vec![figures_table(report)],
            ..Section::default()
        });
    }
    if !report.failures.is_empty() {
        let tables = vec![failures_table(report)];
        sections.push(Section { heading: "Failed cases".to_owned(), tables, ..Section::default() });
    }
    sections
}

fn ceilings_table(ceilings: &Ceilings) -> Table {
    let Ceilings { read_gb_s, copy_gb_s, fma_gflop_s, dispatch_us } = *ceilings;
    let mut table = Table::new("ceilings", "Ceilings of this device", &["what", "unit", "best"], 2);
    for (what, value, unit) in [
        ("reading a large buffer", read_gb_s, "GB/s"),
        ("copying one, read and written together", copy_gb_s, "GB/s"),
        ("multiply-adds, two operations each", fma_gflop_s, "GFLOP/s"),
        ("an empty dispatch", dispatch_us, "µs"),
    ] {
        table.rows.push(vec![what.into(), unit.into(), value.map_or("not measured".into(), number)]);
    }
    table
}

fn figures_table(report: &Report) -> Table {
    let header = ["what", "asked for", "verdict", "measured", "samples"];
    let mut table = Table::new("figures", "Numbers made of runs that alternated", &header, 3);
    for figure in &report.figures {
        let asked = match figure.limit {
            None => "–".to_owned(),
            Some(Limit::AtMost(most)) => format!("at most {}", number(most)),
            Some(Limit::AtLeast(least)) => format!("at least {}", number(least)),
        };
        let verdict = figure.met().map_or("–", |met| if met { "met" } else { "MISSED" });
        let samples = figure.samples.to_string();
        table.rows.push(vec![figure.what.clone(), asked, verdict.into(), number(figure.measured), samples]);
    }
    table
}

fn failures_table(report: &Report) -> Table {
    let header = ["case", "mode", "what went wrong"];
    let mut table = Table::new("failures", "Cases without a result", &header, 3);
    for failure in &report.failures {
        let case = format!("{} {} {} × {}", failure.op, failure.model, failure.batch, failure.context);
        table.rows.push(vec![case, failure.mode.name().to_owned(), failure.error.clone()]);
    }
    table
}

/// Plots of a rate against the context.
struct Rate {
    ops: &'static [Op],
    id: &'static str,
    title: &'static str,
    y: &'static str,
    value: fn(&CaseResult) -> Option<f64>,
    ceiling: Option<(String, f64)>,
}

/// What tells the lines of one plot apart, in words.
type Parts = [String; 6];
/// A line, context and rate.
type Line = (Parts, Vec<(f64, f64)>);

impl Rate {
    /// A plot for each model, and several where it has more lines than can be told apart.
    fn plots(&self, results: &[CaseResult]) -> Vec<Plot> {
        let mut models: Vec<(&str, Vec<Line>)> = Vec::new();
        for result in results.iter().filter(|result| self.ops.iter().any(|op| op.name() == result.op)) {
            let Some(y) = (self.value)(result) else { continue };
            let lines = entry(&mut models, &result.model.as_str());
            entry(lines, &parts(result)).push((f64::from(result.context), y));
        }
        let mut plots = Vec::new();
        for (model, lines) in &mut models {
            for (_, points) in lines.iter_mut() {
                points.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
            let chunks = lines.chunks(MAX_SERIES);
            let several = chunks.len() > 1;
            for (part, chunk) in chunks.enumerate() {
                let (common, names) = names(chunk.iter().map(|line| &line.0));
                let number = if several { format!(", part {}", part + 1) } else { String::new() };
                plots.push(Plot {
                    id: format!("{}-{}", self.id, plots.len() + 1),
                    title: [format!("{} of {model}{number}", self.title), common]
                        .join(", ")
                        .trim_end_matches(", ")
                        .into(),
                    x: Axis { label: "context, tokens".to_owned(), scale: Scale::Log2 },
                    y: Axis::linear(self.y),
                    series: names
                        .into_iter()
                        .zip(chunk)
                        .map(|(name, (_, points))| Series { name, points: points.clone() })
                        .collect(),
                    levels: self.ceiling.iter().cloned().map(|(name, value)| Level { name, value }).collect(),
                });
            }
        }
        plots
    }
}

/// The value of a key, in the order in which keys came first.
fn entry<'a, K: Clone + PartialEq, V: Default>(entries: &'a mut Vec<(K, V)>, key: &K) -> &'a mut V {
    let at = entries.iter().position(|entry| entry.0 == *key).unwrap_or_else(|| {
        entries.push((key.clone(), V::default()));
        entries.len() - 1
    });
    &mut entries[at].1
}

fn parts(result: &CaseResult) -> Parts {
    let CaseResult { kv_dtype, block_size, batch, queries, variant, shared_prefix, mode, workload, op, .. } = result;
    let unless = |usual: bool, text: String| if usual { String::new() } else { text };
    [
        kv_dtype.clone(),
        match mode {
            Mode::Contiguous => mode.name().to_owned(),
            Mode::Paged | Mode::Shared => format!("{} in blocks of {block_size}", mode.name()),
        },
        if *batch == 1 { "1 sequence".to_owned() } else { format!("{batch} sequences") },
        unless(workload == "uniform", workload.clone()),
        unless(op != Op::Decode.name() || *queries <= u64::from(*batch), format!("{queries} queries")),
        [
            unless(matches!(variant.as_str(), "" | "plain"), variant.clone()),
            unless(*shared_prefix == 0, format!("{shared_prefix} tokens in common")),
        ]
        .join(" "),
    ]
}

/// What all lines have in common, and a name for each made of the rest.
fn names<'a>(lines: impl Iterator<Item = &'a Parts> + Clone) -> (String, Vec<String>) {
    let first = lines.clone().next();
    let common: Vec<bool> = (0..first.map_or(0, |parts| parts.len()))
        .map(|i| lines.clone().all(|parts| Some(&parts[i]) == first.map(|first| &first[i])))
        .collect();
    let join = |parts: &Parts, of_all: bool| {
        let chosen = parts.iter().zip(&common).filter(|(part, common)| **common == of_all && !part.trim().is_empty());
        chosen.map(|(part, _)| part.trim()).collect::<Vec<_>>().join(", ")
    };
    let names: Vec<String> = lines.clone().map(|parts| join(parts, false)).collect();
    match first {
        // A single line is named by what it is.
        Some(only) if names.len() == 1 => (String::new(), vec![join(only, true)]),
        Some(first) => (join(first, true), names),
        None => (String::new(), names),
    }
}
