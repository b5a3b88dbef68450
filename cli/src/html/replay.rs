//! The page of a replayed request log: paged and contiguous side by side.

use super::plot::{Axis, Plot, Scale, Series, number};
use super::{Page, Section, Table};
use crate::bench::report::SOFTWARE_NOTICE;
use crate::replay::{ExecuteRecord, ReplayReport, ServeRecord, Spread, TimelinePoint, budget, fit, numbers};

/// Points of one line over time; more are averaged, since a plot is not wider.
const MAX_POINTS: usize = 120;

impl From<&ReplayReport> for Page {
    fn from(report: &ReplayReport) -> Self {
        let ReplayReport { log, model, cache, seed, version, step_tokens, .. } = report;
        let facts = [
            ("Request log", format!("{}, {} requests", log.name, number(log.requests as f64))),
            ("Bad rows left out", log.skipped.to_string()),
            (
                "Model",
                format!("{model}, {} bytes per token in {}", number(report.bytes_per_token as f64), cache.kv_dtype),
            ),
            ("Cache", format!("{}, blocks of {} tokens", budget(report), cache.block_size)),
            ("Longest sequence", format!("{} tokens", number(cache.max_seq_len.into()))),
            ("Tokens per step", format!("up to {}", number((*step_tokens).into()))),
            ("Clock", format!("{}{}", report.clock.description, fit(report))),
            ("Version", format!("wgpu-paged-attention {version}")),
            ("Seed", seed.to_string()),
        ];
        let interrupted =
            report.interrupted.then(|| "The replay was interrupted: these are the numbers so far.".to_owned());
        Self {
            title: format!("What paging saves on {}", log.name),
            notices: interrupted.into_iter().chain(report.executed.iter().flat_map(notices)).collect(),
            facts: facts.map(|(name, value)| (name.to_owned(), value)).into(),
            command: report.command.clone(),
            sections: sections(report),
        }
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
        text: gains(report),
        plots: vec![
            over_time("utilisation", "Utilisation over time", "filled ÷ reserved tokens, %", |point| {
                point.utilisation * 100.0
            }),
            over_time("concurrency", "Requests at a time", "requests", |point| point.running.into()),
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
    let all = Section { heading: "All numbers".to_owned(), tables: vec![table], ..Section::default() };
    let mut sections = vec![memory, latency, all];
    sections.extend(report.executed.as_ref().map(executed));
    for section in &mut sections {
        section.plots.retain(|plot| plot.series.iter().any(|series| !series.points.is_empty()));
    }
    sections.retain(|section| !section.plots.is_empty() || !section.tables.is_empty());
    sections
}

/// What to know of a schedule that ran on a device.
fn notices(executed: &ExecuteRecord) -> impl Iterator<Item = String> {
    let software = executed.adapter.software.then(|| SOFTWARE_NOTICE.to_owned());
    let wrong = executed.wrong_rows;
    software.into_iter().chain((wrong > 0).then(|| format!("Rows that the device computed wrongly: {wrong}.")))
}

fn executed(executed: &ExecuteRecord) -> Section {
    let ExecuteRecord { adapter, layers, steps, tokens, copied_blocks, checked_rows, wrong_rows, .. } = executed;
    let mut table = Table::new("executed", "The same schedule through the kernels", &["what", "value"], 1);
    for (what, value) in [
        ("adapter", adapter.name.clone()),
        ("driver", adapter.driver.clone()),
        ("layers", layers.to_string()),
        ("steps", number(*steps as f64)),
        ("tokens", number(*tokens as f64)),
        ("blocks copied", number(*copied_blocks as f64)),
        ("rows compared with the oracle", number(*checked_rows as f64)),
        ("rows that are wrong", number(*wrong_rows as f64)),
        ("largest error of the others", format!("{:.1e}", executed.max_abs_error)),
    ] {
        table.rows.push(vec![what.to_owned(), value]);
    }
    Section { heading: "Executed".to_owned(), tables: vec![table], ..Section::default() }
}

/// What a line shows of each moment.
type Curve = fn(&TimelinePoint) -> f64;

fn plot(id: &str, title: &str, x: Axis, y: Axis, series: Vec<Series>) -> Plot {
    Plot { id: id.to_owned(), title: title.to_owned(), x, y, series, levels: Vec::new() }
}

fn gains(report: &ReplayReport) -> String {
    let averaged = format!("Long runs are averaged over {MAX_POINTS} spans of equal length.");
    match report.gains() {
        Some((concurrency, throughput)) => format!(
            "Paged over contiguous: {concurrency:.2} × the requests at a time, {throughput:.2} × the generated tokens \
             per second. {averaged}"
        ),
        None => averaged,
    }
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
