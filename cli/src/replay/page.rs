//! A replay as CSV and as a page: paged and contiguous side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde_json::Value;

use super::{ExecuteRecord, ReplayReport, ServeRecord, Spread, TimelinePoint};
use crate::common::Report;
use crate::html::plot::{Axis, Scale, Series};
use crate::html::{Page, Plot, Section};
use crate::plan::ByteSize;
use crate::report::fmt::{count, duration, error, number, percent};
use crate::report::{Adapter, Table, records_csv};
use crate::trace::count as counted;

/// Points of one line over time; more are averaged, since a plot is not wider.
const MAX_POINTS: usize = 120;

impl Report for ReplayReport {
    const KIND: &'static str = "replay";

    fn to_csv(&self) -> Result<String, csv::Error> {
        let flat = |side: &Option<ServeRecord>| -> Result<BTreeMap<String, String>, csv::Error> {
            let mut numbers = BTreeMap::new();
            flatten(&mut numbers, "", &serde_json::to_value(side).map_err(io::Error::from)?);
            Ok(numbers)
        };
        let sides = [flat(&self.contiguous)?, flat(&self.paged)?];
        let metrics: BTreeSet<_> = sides.iter().flat_map(BTreeMap::keys).collect();
        let row = |metric: &String| {
            let cells = sides.iter().map(|side| side.get(metric).cloned().unwrap_or_default());
            std::iter::once(metric.clone()).chain(cells).collect::<Vec<_>>()
        };
        let header = ["metric", "contiguous", "paged"].map(str::to_owned).to_vec();
        records_csv(std::iter::once(header).chain(metrics.into_iter().map(row)))
    }

    fn page(&self) -> Page {
        let ReplayReport { log, model, cache, clock, executed, .. } = self;
        let skipped = match log.skipped {
            0 => String::new(),
            skipped => format!(", {} left out", counted(skipped, "bad row")),
        };
        let time = match (log.time_unit, &log.time_unit_by) {
            (Some(unit), Some(by)) => format!(", times in {} ({by})", unit.name()),
            _ => String::new(),
        };
        let per_token = count(self.bytes_per_token);
        let (kv_dtype, block_size) = (cache.kv_dtype(), count(cache.block_size()));
        let room = budget(self);
        let room =
            format!("{model}, {per_token} bytes per token in {kv_dtype}, blocks of {block_size} tokens, budget {room}");
        let (longest, step) = (count(cache.max_seq_len()), count(self.step_tokens));
        let facts = vec![
            ("log", format!("{}, {}{skipped}{time}", log.name, counted(log.requests as u64, "request"))),
            ("cache", room),
            ("lengths", format!("sequences of up to {longest} tokens, steps of up to {step}")),
            ("clock", format!("{}{}", clock.description, fit(self))),
        ];
        let gains = self.gains().map(|(concurrency, throughput)| {
            format!(
                "paged over contiguous: {concurrency:.2} × the concurrent requests, {throughput:.2} × the generated tokens per \
                 second"
            )
        });
        let interrupted = self.interrupted.then(|| "interrupted: the numbers are those so far".to_owned());
        let wrong = executed.as_ref().filter(|executed| executed.wrong_rows > 0);
        let wrong = wrong.map(|executed| format!("WRONG rows computed by the device: {}", count(executed.wrong_rows)));
        Page {
            head: self.head.clone(),
            title: format!("What paging saves on {}", log.name),
            facts,
            notices: executed.iter().filter_map(|executed| executed.adapter.notice()).collect(),
            sections: sections(self),
            summary: gains.into_iter().chain(wrong).chain(interrupted).collect(),
        }
    }
}

fn flatten(numbers: &mut BTreeMap<String, String>, path: &str, value: &Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(numbers, &path, value);
            }
        }
        Value::Number(number) => {
            numbers.insert(path.to_owned(), number.to_string());
        }
        _ => {}
    }
}

fn sections(report: &ReplayReport) -> Vec<Section> {
    let sides: Vec<&ServeRecord> = report.contiguous.iter().chain(&report.paged).collect();
    let span = sides.iter().flat_map(|side| &side.timeline).map(|point| point.time_s).fold(0.0, f64::max);
    let over_time = |id: &str, title: &str, y: &str, of: Curve| {
        let series = sides
            .iter()
            .map(|side| Series { name: side.name().to_owned(), points: averaged(&side.timeline, span, of) });
        plot(id, title, Axis::linear("time since the first arrival, s"), Axis::linear(y), series.collect())
    };
    let memory = Section {
        heading: "Memory and concurrency".to_owned(),
        text: format!("Long runs are averaged over {MAX_POINTS} spans of equal length."),
        plots: vec![
            over_time("utilisation", "Utilisation over time", "filled ÷ reserved tokens, %", |point| {
                point.utilisation * 100.0
            }),
            over_time("concurrency", "Concurrent requests", "requests", |point| point.running.into()),
            over_time("waiting", "Requests that wait", "requests", |point| point.waiting.into()),
        ],
        tables: Vec::new(),
    };
    let latency = Section {
        heading: "Latency".to_owned(),
        text: "By the clock named above; arrivals are those of the log, bursts included.".to_owned(),
        plots: vec![
            latencies("time-to-first-token", "Time to the first token", &sides, |side| side.time_to_first_token_s),
            latencies("time-per-token", "Time per output token", &sides, |side| side.time_per_output_token_s),
        ],
        tables: Vec::new(),
    };
    let header: Vec<_> = std::iter::once("what").chain(sides.iter().map(|side| side.name())).collect();
    let mut table = Table::new("numbers", "The replay in numbers", &header, 1);
    table.rows = numbers(&sides);
    let mut sections = vec![memory, latency, Section::table("All numbers", table)];
    if let Some(record) = &report.executed {
        sections.push(Section::table("Executed", executed(record)));
        sections.push(Section::table("Wrong rows", wrong(record)));
    }
    for section in &mut sections {
        section.plots.retain(|plot| plot.series.iter().any(|series| !series.points.is_empty()));
    }
    sections
}

fn executed(executed: &ExecuteRecord) -> Table {
    let ExecuteRecord { adapter, layers, steps, tokens, copied_blocks, checked_rows, wrong_rows, .. } = executed;
    let Adapter { name, driver, .. } = adapter;
    let mut table = Table::new("executed", "The same schedule through the kernels", &["executed", "value"], 1);
    let rows = [
        ("adapter", format!("{name}, {driver}")),
        ("layers", count(layers)),
        ("steps", count(steps)),
        ("tokens", count(tokens)),
        ("blocks copied", count(copied_blocks)),
        ("rows compared with the reference", count(checked_rows)),
        ("rows that are wrong", count(wrong_rows)),
        ("largest error of the others", error(executed.max_abs_error)),
    ];
    table.rows = rows.map(|(what, value)| vec![what.to_owned(), value]).into();
    table
}

fn wrong(executed: &ExecuteRecord) -> Table {
    let place = "request, token, layer, KV head";
    Table::of(
        "wrong",
        "The first rows that are wrong",
        3,
        &executed.wrong,
        &[
            ("WRONG step", &|row| Some(count(row.step))),
            (place, &|row| Some(format!("{}, {}, {}, {}", row.request, row.position, row.layer, row.kv_head))),
            ("what differs", &|row| Some(row.error.clone())),
        ],
    )
}

type Curve = fn(&TimelinePoint) -> f64;

fn plot(id: &str, title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Plot {
    Plot { id: id.to_owned(), title: title.to_owned(), x, y, series, levels: Vec::new() }
}

fn numbers(sides: &[&ServeRecord]) -> Vec<Vec<String>> {
    let row = |label: &str, cell: Cell| {
        std::iter::once(label.to_owned()).chain(sides.iter().map(|side| cell(side))).collect::<Vec<_>>()
    };
    let mut rows: Vec<_> = ROWS.iter().map(|(label, cell)| row(label, *cell)).collect();
    if sides.iter().any(|side| side.prefix.is_some()) {
        rows.push(row("prefix hits", |side| {
            side.prefix.as_ref().map_or("–".to_owned(), |prefix| {
                format!("{} of {} tokens", percent(prefix.hit_share), count(prefix.prompt_tokens))
            })
        }));
        rows.push(row("of an infinite cache", |side| {
            side.prefix.as_ref().map_or("–".to_owned(), |prefix| percent(prefix.infinite_share))
        }));
    }
    rows
}

type Cell = fn(&ServeRecord) -> String;

const ROWS: &[(&str, Cell)] = &[
    ("room, tokens", |side| count(side.capacity_tokens)),
    ("finished (cut at the longest sequence)", |side| format!("{} ({})", count(side.finished), count(side.cut))),
    ("refused / empty / unfinished", |side| [side.refused, side.empty, side.unfinished].map(count).join(" / ")),
    ("utilisation, mean (p50, p95)", |side| shares(side.utilisation)),
    ("internal fragmentation, mean (p50, p95)", |side| shares(side.internal_fragmentation)),
    ("concurrent requests, mean (p50, max)", |side| counts(side.concurrency)),
    ("waiting, mean (p50, max)", |side| counts(side.waiting)),
    ("requests per second", |side| number(side.requests_per_s)),
    ("generated tokens per second", |side| number(side.output_tokens_per_s)),
    ("prompt and generated tokens per second", |side| number(side.total_tokens_per_s)),
    ("queueing, p50 / p95 / p99", |side| times(side.queueing_s)),
    ("time to first token, p50 / p95 / p99", |side| times(side.time_to_first_token_s)),
    ("time between tokens, p50 / p95 / p99", |side| times(side.time_between_tokens_s)),
    ("time per output token, p50 / p95 / p99", |side| times(side.time_per_output_token_s)),
    ("whole request, p50 / p95 / p99", |side| times(side.latency_s)),
    ("preemptions (tokens computed again)", |side| {
        format!("{} ({})", count(side.preemptions), count(side.recomputed_tokens))
    }),
    ("steps", |side| count(side.steps)),
    ("seconds, of these in steps", |side| format!("{}, {}", number(side.elapsed_s), number(side.busy_s))),
];

fn budget(report: &ReplayReport) -> String {
    match (report.cache.memory_budget_bytes(), report.cache.num_blocks()) {
        (Some(bytes), _) => ByteSize(bytes).to_string(),
        (None, blocks) => format!("{} blocks", count(blocks.unwrap_or(0))),
    }
}

fn fit(report: &ReplayReport) -> String {
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

fn shares(spread: Option<Spread>) -> String {
    spread.map_or("–".to_owned(), |spread| {
        format!("{} ({}, {})", percent(spread.mean), percent(spread.p50), percent(spread.p95))
    })
}

fn counts(spread: Option<Spread>) -> String {
    spread.map_or("–".to_owned(), |spread| {
        format!("{} ({}, {})", number(spread.mean), number(spread.p50), number(spread.max))
    })
}

fn times(spread: Option<Spread>) -> String {
    let times = spread.map(|spread| [spread.p50, spread.p95, spread.p99].map(|seconds| duration(seconds * 1e6)));
    times.map_or("–".to_owned(), |times| times.join(" / "))
}

fn latencies(id: &str, title: &str, sides: &[&ServeRecord], of: fn(&ServeRecord) -> Option<Spread>) -> Plot {
    let spreads: Vec<_> = sides.iter().filter_map(|side| Some((side.name(), of(side)?))).collect();
    // A logarithm cannot show 0, the time per token where there is but one.
    let positive = spreads.iter().all(|(_, spread)| spread.p50 > 0.0);
    let scale = if positive { Scale::Log10 } else { Scale::Linear };
    let series = spreads.into_iter().map(|(name, Spread { p50, p95, p99, max, .. })| Series {
        name: name.to_owned(),
        points: (0..4).map(f64::from).zip([p50, p95, p99, max]).collect(),
    });
    let names = Scale::Names(["median", "p95", "p99", "longest"].map(str::to_owned).into());
    let x = Axis { label: "percentile of requests".to_owned(), scale: names };
    plot(id, title, x, Axis { label: "seconds".to_owned(), scale }, series.collect())
}

/// At most [`MAX_POINTS`] means over spans of equal length, each at the middle of its span; few points stay as they are.
fn averaged(timeline: &[TimelinePoint], span: f64, of: Curve) -> Vec<(f64, f64)> {
    if timeline.len() <= MAX_POINTS || span <= 0.0 {
        return timeline.iter().map(|point| (point.time_s, of(point))).collect();
    }
    let width = span / MAX_POINTS as f64;
    let mut sums = vec![(0.0, 0u32); MAX_POINTS];
    for point in timeline {
        let (sum, count) = &mut sums[((point.time_s / width) as usize).min(MAX_POINTS - 1)];
        *sum += of(point);
        *count += 1;
    }
    let spans = sums.into_iter().enumerate().filter(|(_, (_, count))| *count > 0);
    spans.map(|(i, (sum, count))| ((i as f64 + 0.5) * width, sum / f64::from(count))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_courses_are_averaged_and_short_ones_are_not() {
        let point = |i: u32| TimelinePoint { time_s: i.into(), running: i % 10, ..TimelinePoint::default() };
        let running: Curve = |point| point.running.into();
        assert_eq!(averaged(&[point(0), point(9)], 9.0, running), [(0.0, 0.0), (9.0, 9.0)]);
        let long: Vec<_> = (0..1200).map(point).collect();
        let short = averaged(&long, 1200.0, running);
        assert_eq!(short.len(), MAX_POINTS);
        assert!(short.iter().all(|point| point.1 == 4.5), "the mean of 0 to 9: {short:?}");
        assert_eq!((short[0].0, short[119].0), (5.0, 1195.0));
    }
}
