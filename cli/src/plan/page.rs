//! A plan as CSV and as a page.

use super::{LimitRecord, Scenario, SizingReport, WindowRecord};
use crate::common::Report;
use crate::html::plot::{Axis, Scale, Series};
use crate::html::{Page, Plot, Section};
use crate::report::fmt::{binary, count, decimal, number, percent};
use crate::report::{Table, select_csv};

type Curve = fn(&Scenario) -> f64;

impl Report for SizingReport {
    const KIND: &'static str = "plan";

    fn to_csv(&self) -> Result<String, csv::Error> {
        const COLUMNS: &str = "scenario=name,requests,mean_tokens,contiguous_bytes,paged_bytes,saved,\
            contiguous_utilisation,paged_utilisation,contiguous_fit,paged_fit,\
            published_contiguous_gb=published.contiguous_gb,published_paged_gb=published.paged_gb,\
            published_saved_percent=published.saved_percent";
        select_csv(COLUMNS, &self.scenarios)
    }

    fn page(&self) -> Page {
        let mut page = without_devices(self);
        match self.limits.get(1..) {
            None | Some([]) => page.summary.push("no adapter here; other devices have other limits".to_owned()),
            Some(devices) => {
                let table = limits("devices", devices, self);
                page.sections.push(Section::table("Limits of devices", table));
            }
        }
        page
    }
}

pub(super) fn without_devices(report: &SizingReport) -> Page {
    let SizingReport { model, kv_dtype, block_size, max_seq_len, budget_bytes, num_blocks, .. } = report;
    let weights = model
        .num_weights
        .map_or_else(|| "unknown".to_owned(), |weights| format!("{:.2} billion", weights as f64 / 1e9));
    let shape = format!(
        "{}, {} layers, {} query heads, {} KV heads of {}, made for {} tokens, {weights} weights",
        model.name,
        model.num_layers,
        model.num_q_heads,
        model.num_kv_heads,
        model.head_dim,
        count(model.max_seq_len)
    );
    let (block_size, longest) = (count(block_size), count(max_seq_len));
    let cache = format!("{kv_dtype}, blocks of {block_size} tokens, sequences of up to {longest} tokens");
    let (in_1000s, in_1024s) = (decimal(*budget_bytes), binary(*budget_bytes));
    let budget = format!("{} bytes ({in_1000s}, {in_1024s}), {} blocks", count(budget_bytes), count(num_blocks));
    let defaults = limits("limits", &report.limits[..report.limits.len().min(1)], report);
    let mut sections =
        vec![Section::table("Sizes", sizes(report)), savings(report), Section::table("Page tables", tables(report))];
    sections.extend(report.window.as_ref().map(|record| Section::table("Sliding windows", window(record, report))));
    sections.push(Section::table("Limits of WebGPU", defaults));
    Page {
        head: report.head.clone(),
        title: format!("What a cache for {} takes, and what paging saves", model.name),
        facts: vec![("model", shape), ("cache", cache), ("budget", budget)],
        sections,
        ..Page::default()
    }
}

fn sizes(report: &SizingReport) -> Table {
    let (bytes, longest) = (&report.bytes, count(report.max_seq_len));
    let rows = [
        ("K and V of one token in one layer".to_owned(), bytes.token_in_layer),
        ("K and V of one token".to_owned(), bytes.token),
        (format!("K and V of one block of {} tokens", count(report.block_size)), bytes.block),
        (format!("K of {longest} tokens in one layer"), bytes.sequence_k_in_layer),
        (format!("V of {longest} tokens in one layer"), bytes.sequence_v_in_layer),
        (format!("K and V of {longest} tokens"), bytes.sequence),
    ];
    Table::of(
        "sizes",
        "Exact sizes",
        1,
        &rows,
        &[
            ("what", &|row| Some(row.0.clone())),
            ("bytes", &|row| Some(count(row.1))),
            ("powers of 1,000", &|row| Some(decimal(row.1))),
            ("powers of 1,024", &|row| Some(binary(row.1))),
        ],
    )
}

fn savings(report: &SizingReport) -> Section {
    // Bytes grow with tokens, a straight line on even axes; requests are their inverse, a straight one by logarithm.
    let [even, inverse] = [Scale::Linear, Scale::Log2].map(|scale| Axis { label: "tokens of a request".into(), scale });
    let none_fits = report.scenarios.iter().any(|scenario| scenario.contiguous_fit.min(scenario.paged_fit) == 0);
    let fits = Axis { label: "requests".into(), scale: if none_fits { Scale::Linear } else { Scale::Log10 } };
    let plot = |id: &str, title: &str, x: Axis, y: Axis, sides: [Curve; 2]| Plot {
        id: id.to_owned(),
        title: title.to_owned(),
        x,
        y,
        series: ["contiguous", "paged"]
            .into_iter()
            .zip(sides)
            .map(|(name, y)| Series { name: name.to_owned(), points: by_tokens(&report.scenarios, y) })
            .collect(),
        levels: Vec::new(),
    };
    let memory: [Curve; 2] = [
        |scenario| scenario.contiguous_bytes as f64 / scenario.requests as f64 / 1e6,
        |scenario| scenario.paged_bytes as f64 / scenario.requests as f64 / 1e6,
    ];
    let requests: [Curve; 2] = [|scenario| scenario.contiguous_fit as f64, |scenario| scenario.paged_fit as f64];
    let plots = vec![
        plot("plan-memory", "Memory of a request", even, Axis::linear("MB (powers of 1,000)"), memory),
        plot("plan-requests", "Requests in the budget", inverse, fits, requests),
    ];
    let is_published = report.scenarios.iter().any(|scenario| scenario.published.is_some());
    let caption =
        if is_published { "Contiguous against paged; a published GB is 1,000 MiB" } else { "Contiguous against paged" };
    let table = Table::of(
        "savings",
        caption,
        1,
        &report.scenarios,
        &[
            ("requests", &|row| {
                Some(match row.mean_tokens.fract() == 0.0 {
                    true => row.name.clone(),
                    false => format!("{}, {} tokens on average", row.name, number(row.mean_tokens)),
                })
            }),
            ("contiguous, bytes", &|row| Some(count(row.contiguous_bytes))),
            ("paged, bytes", &|row| Some(count(row.paged_bytes))),
            ("contiguous", &|row| Some(binary(row.contiguous_bytes))),
            ("paged", &|row| Some(binary(row.paged_bytes))),
            ("saved", &|row| Some(percent(row.saved))),
            ("filled, contiguous", &|row| Some(percent(row.contiguous_utilisation))),
            ("filled, paged", &|row| Some(percent(row.paged_utilisation))),
            ("fit, contiguous", &|row| Some(count(row.contiguous_fit))),
            ("fit, paged", &|row| Some(count(row.paged_fit))),
            ("published", &|row| {
                let published = row.published?;
                let (contiguous, paged) = (published.contiguous_gb, published.paged_gb);
                Some(format!("{contiguous:.1} GB, {paged:.1} GB, {:.0} %", published.saved_percent))
            }),
        ],
    );
    let text = "Contiguous, each request reserves the longest sequence; paged, it takes whole blocks.";
    Section { heading: "What paging saves".to_owned(), text: text.to_owned(), plots, tables: vec![table] }
}

fn by_tokens(scenarios: &[Scenario], y: Curve) -> Vec<(f64, f64)> {
    let mut points: Vec<_> = scenarios.iter().map(|scenario| (scenario.mean_tokens, y(scenario))).collect();
    points.retain(|point| point.0 > 0.0);
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup_by(|a, b| a.0 == b.0);
    points
}

fn tables(report: &SizingReport) -> Table {
    let tables = &report.tables;
    let own = "one per sequence, 4 bytes an entry (this cache)";
    let per_head = "one per layer, KV head, and K or V, 8 bytes an entry";
    let rows = [
        (own, [1, tables.bytes, tables.bytes]),
        (per_head, [tables.per_head_tables, tables.per_head_table_bytes, tables.per_head_bytes]),
    ];
    Table::of(
        "tables",
        "Page tables of the longest sequence",
        1,
        &rows,
        &[
            ("page tables of a sequence", &|row| Some(row.0.to_owned())),
            ("entries", &|_| Some(count(tables.entries))),
            ("tables", &|row| Some(count(row.1[0]))),
            ("bytes of each", &|row| Some(count(row.1[1]))),
            ("bytes of all", &|row| Some(count(row.1[2]))),
            ("in all", &|row| Some(binary(row.1[2]))),
        ],
    )
}

fn window(window: &WindowRecord, report: &SizingReport) -> Table {
    let (windowed, all, tokens) = (window.windowed_layers, report.model.num_layers, count(window.window));
    let caption = format!("window: {windowed} of {all} layers see the last {tokens} tokens");
    let rows = [
        ("every block is kept", window.kept_bytes),
        ("blocks return that left the windows of all layers", window.one_cache_bytes),
        ("the same, layers with a window in a cache of their own", window.own_cache_bytes),
    ];
    let sequence = format!("a sequence of {} tokens", count(window.seq_len));
    Table::of(
        "window",
        caption,
        1,
        &rows,
        &[
            (&sequence, &|row| Some(row.0.to_owned())),
            ("bytes, at most", &|row| Some(count(row.1))),
            ("in short", &|row| Some(binary(row.1))),
            ("saved", &|row| Some(percent(1.0 - row.1 as f64 / window.kept_bytes as f64))),
        ],
    )
}

fn limits(id: &str, limits: &[LimitRecord], report: &SizingReport) -> Table {
    let head_shards = format!("head shards of {} blocks", count(report.num_blocks));
    Table::of(
        id,
        "What devices make of the pool",
        1,
        limits,
        &[
            ("limits", &|row| {
                let software = if row.device.software { " (SOFTWARE ADAPTER)" } else { "" };
                Some(format!("{}{software}", row.device.name))
            }),
            ("binding", &|row| Some(binary(row.device.binding_bytes))),
            ("buffer", &|row| Some(binary(row.device.buffer_bytes))),
            (&head_shards, &|row| Some(row.head_shards.map_or_else(|| "none fits".to_owned(), count))),
            ("KV heads in each", &|row| row.heads_per_shard.map(count)),
            ("K or V of each", &|row| row.shard_bytes.map(binary)),
            ("blocks at most", &|row| Some(count(row.max_blocks))),
            ("pool at most", &|row| Some(binary(row.max_pool_bytes))),
        ],
    )
}
