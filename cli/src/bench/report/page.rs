//! A benchmark run as CSV and as a page.

use std::fmt::Write;

use serde::Serialize;

use crate::bench::{CaseResult, Ceilings, Figure, Limit, Mode, Op, Report, Timing};
use crate::common::files;
use crate::html::plot::{Axis, Level, MAX_SERIES, Scale, Series};
use crate::html::{Page, Plot, Section};
use crate::report::fmt::{count, duration, error, number, percent, ratio};
use crate::report::{Table, select_csv};

const COLUMNS: &str = "adapter,driver,op,model,num_q_heads,num_kv_heads,head_dim,kv_dtype,block_size,batch,context,\
    tokens,queries,variant,shared_prefix,mode,workload,timing,samples,median_us,p25_us,p75_us,wall_median_us,cold_us,\
    bytes,gb_s,fraction_of_read,flops,gflop_s,fraction_of_fma,paged_over_contiguous,max_abs_error";

impl files::Report for Report {
    const KIND: &'static str = "bench";

    /// A row for each case without its samples, and what it was measured on: rows of several files may be put into one
    /// table. Without any result there is no header either.
    fn to_csv(&self) -> Result<String, csv::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            adapter: &'a str,
            driver: &'a str,
            samples: usize,
            paged_over_contiguous: Option<f64>,
            #[serde(flatten)]
            result: &'a CaseResult,
        }
        let rows = self.results.iter().map(|result| Row {
            adapter: &self.adapter.name,
            driver: &self.adapter.driver,
            samples: result.samples_us.len(),
            paged_over_contiguous: self.pair(result).map(|pair| pair.paged_over_contiguous),
            result,
        });
        select_csv(COLUMNS, rows)
    }

    fn page(&self) -> Page {
        let failed = (!self.failures.is_empty())
            .then(|| format!("failed cases, which have no numbers: {}; they are listed below", self.failures.len()));
        let profile = (self.profile != super::default_profile()).then(|| ("profile", self.profile.clone()));
        let ceilings = [("ceilings", ceilings(&self.ceilings))];
        Page {
            head: self.head.clone(),
            title: format!("Paged attention measured on {}", self.adapter.name),
            facts: [self.adapter.fact()].into_iter().chain(profile).chain(ceilings).collect(),
            notices: self.adapter.notice().into_iter().chain(failed).chain(self.notes.clone()).collect(),
            sections: sections(self),
            summary: Vec::new(),
        }
    }
}

fn ceilings(ceilings: &Ceilings) -> String {
    let Ceilings { read_gb_s, host_read_gb_s, host_fma_gflop_s, copy_gb_s, fma_gflop_s, dispatch_us } = *ceilings;
    let rate = |rate: Option<f64>, unit: &str| rate.map(|rate| format!("{} {unit}", number(rate)));
    let parts = [
        ("read", rate(read_gb_s, "GB/s")),
        ("copy", rate(copy_gb_s, "GB/s")),
        ("multiply-add", rate(fma_gflop_s, "GFLOP/s")),
        ("empty dispatch", dispatch_us.map(duration)),
    ];
    let parts = parts.map(|(what, best)| format!("{what} {}", best.as_deref().unwrap_or("not measured")));
    let host = [("read", rate(host_read_gb_s, "GB/s")), ("multiply-add", rate(host_fma_gflop_s, "GFLOP/s"))];
    let host = host.into_iter().filter_map(|(what, rate)| Some(format!("host {what} {}", rate?)));
    parts.into_iter().chain(host).collect::<Vec<_>>().join(" | ")
}

fn sections(report: &Report) -> Vec<Section> {
    let Ceilings { read_gb_s, fma_gflop_s, .. } = report.ceilings;
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
    let plots = [("Decode rate and context", decode), ("Prefill rate and context", prefill)].map(|(heading, rate)| {
        let text = "Medians. The ceiling is the one measured at the start of the run; shares in the table below are of \
                    the ceiling measured beside each case.";
        let plots = rate.plots(&report.results);
        Section { heading: heading.to_owned(), text: text.to_owned(), plots, tables: Vec::new() }
    });
    let tables = [
        ("All results", results(report)),
        ("Measured in alternation", figures(&report.figures)),
        ("Failed cases", failures(report)),
    ];
    let tables = tables.map(|(heading, table)| Section::table(heading, table));
    plots.into_iter().chain(tables).collect()
}

pub(super) fn results(report: &Report) -> Table {
    let caption = "Every case that agrees with the reference: median and quartiles of its runs";
    Table::of(
        "results",
        caption,
        5,
        &report.results,
        &[
            ("op", &|result| Some(op(result))),
            ("model", &|result| Some(result.model.clone())),
            ("kv", &|result| {
                Some(match result.mode {
                    Mode::Paged | Mode::Shared | Mode::Ordered => {
                        format!("{}, blocks of {}", result.kv_dtype, result.block_size)
                    }
                    Mode::Contiguous => result.kv_dtype.clone(),
                })
            }),
            ("batch × context", &|result| Some(lengths(result))),
            ("mode", &|result| Some(result.mode.name().to_owned())),
            ("median", &|result| {
                // No comparison with device timestamps: submission and wake-up are in it.
                let clock = if result.timing == Timing::Wall { " wall" } else { "" };
                Some(format!("{}{clock}", duration(result.median_us)))
            }),
            ("p25–p75", &|result| Some(format!("{}–{}", duration(result.p25_us), duration(result.p75_us)))),
            ("tokens/s", &|result| Some(number(tokens_per_s(result)))),
            ("rate", &|result| Some(rate(result).0)),
            ("of ceiling", &|result| rate(result).1.map(percent)),
            ("paged÷contig", &|result| report.pair(result).map(|pair| ratio(pair.paged_over_contiguous))),
            ("max err", &|result| Some(error(result.max_abs_error))),
        ],
    )
}

pub(super) fn rate(result: &CaseResult) -> (String, Option<f64>) {
    match (result.gflop_s, result.fraction_of_fma) {
        (Some(gflop_s), Some(fraction)) => (format!("{} GFLOP/s", number(gflop_s)), Some(fraction)),
        _ => (format!("{} GB/s", number(result.gb_s)), result.fraction_of_read),
    }
}

pub(super) fn lengths(result: &CaseResult) -> String {
    let (batch, context) = (count(result.batch), count(result.context));
    match result.workload.as_str() {
        "uniform" => format!("{batch} × {context}"),
        list if list.starts_with(|c: char| c.is_ascii_digit()) => list.to_owned(),
        workload => format!("{batch} × ≤{context} {workload}"),
    }
}

fn op(result: &CaseResult) -> String {
    let mut text = result.op.clone();
    // Writing to a string cannot fail.
    if result.is_speculative() {
        let _ = write!(text, " of {} queries", result.queries);
    }
    if let Some(options) = result.options() {
        let _ = write!(text, ", {options}");
    }
    text
}

fn tokens_per_s(result: &CaseResult) -> f64 {
    let tokens = if result.op == "append" { result.tokens } else { result.queries };
    tokens as f64 / result.median_us * 1e6
}

pub(super) fn figures(figures: &[Figure]) -> Table {
    Table::of(
        "figures",
        "Numbers made of runs that alternated",
        3,
        figures,
        &[
            ("what", &|figure| Some(figure.what.clone())),
            ("asked for", &|figure| {
                figure.limit.map(|limit| match limit {
                    Limit::AtMost(most) => format!("at most {}", number(most)),
                    Limit::AtLeast(least) => format!("at least {}", number(least)),
                })
            }),
            ("verdict", &|figure| figure.met().map(|met| if met { "met" } else { "MISSED" }.to_owned())),
            ("measured", &|figure| {
                Some(if figure.measured < 0.01 { error(figure.measured) } else { ratio(figure.measured) })
            }),
            ("samples", &|figure| Some(count(figure.samples))),
        ],
    )
}

fn failures(report: &Report) -> Table {
    Table::of(
        "failures",
        "Cases without a result",
        3,
        &report.failures,
        &[
            ("failed", &|failure| {
                Some(format!("{} {} {} × {}", failure.op, failure.model, failure.batch, count(failure.context)))
            }),
            ("mode", &|failure| Some(failure.mode.name().to_owned())),
            ("what went wrong", &|failure| Some(failure.error.clone())),
        ],
    )
}

struct Rate {
    ops: &'static [Op],
    id: &'static str,
    title: &'static str,
    y: &'static str,
    value: fn(&CaseResult) -> Option<f64>,
    ceiling: Option<(String, f64)>,
}

type Parts = [String; 6];
type Line = (Parts, Vec<(f64, f64)>);

impl Rate {
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

fn entry<'a, K: Clone + PartialEq, V: Default>(entries: &'a mut Vec<(K, V)>, key: &K) -> &'a mut V {
    let at = entries.iter().position(|entry| entry.0 == *key).unwrap_or_else(|| {
        entries.push((key.clone(), V::default()));
        entries.len() - 1
    });
    &mut entries[at].1
}

fn parts(result: &CaseResult) -> Parts {
    let CaseResult { kv_dtype, block_size, batch, queries, shared_prefix, mode, workload, .. } = result;
    let unless = |usual: bool, text: String| if usual { String::new() } else { text };
    let speculative = result.is_speculative();
    [
        kv_dtype.clone(),
        match mode {
            Mode::Contiguous => mode.name().to_owned(),
            Mode::Paged | Mode::Shared | Mode::Ordered => format!("{} in blocks of {block_size}", mode.name()),
        },
        if *batch == 1 { "1 sequence".to_owned() } else { format!("{batch} sequences") },
        unless(workload == "uniform", workload.clone()),
        unless(!speculative, format!("{queries} queries")),
        [
            result.options().unwrap_or_default().to_owned(),
            unless(*shared_prefix == 0, format!("{shared_prefix} tokens in common")),
        ]
        .join(" "),
    ]
}

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
