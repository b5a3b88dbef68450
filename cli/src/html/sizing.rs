//! The page of a plan: what a cache takes and what paging saves.

use super::plot::{Axis, Plot, Scale, Series, number};
use super::{Page, Section, Table};
use crate::plan::{LimitRecord, Scenario, SizingReport};

impl From<&SizingReport> for Page {
    fn from(report: &SizingReport) -> Self {
        let SizingReport { model, kv_dtype, block_size, max_seq_len, budget_bytes, num_blocks, .. } = report;
        let heads = format!("{} query and {} KV heads of {}", model.num_q_heads, model.num_kv_heads, model.head_dim);
        let facts = [
            ("Model", format!("{}, {} layers, {heads}", model.name, model.num_layers)),
            ("Cache", format!("{kv_dtype} in blocks of {block_size} tokens")),
            ("Longest sequence", format!("{} tokens", exact(u64::from(*max_seq_len)))),
            ("Budget", format!("{} bytes, {} blocks", exact(*budget_bytes), exact(u64::from(*num_blocks)))),
            ("Version", format!("wgpu-paged-attention {}", report.version)),
        ];
        Self {
            title: format!("What a cache for {} takes, and what paging saves", model.name),
            notices: Vec::new(),
            facts: facts.map(|(name, value)| (name.to_owned(), value)).into(),
            command: report.command.clone(),
            sections: vec![savings(report), sizes(report), limits(report)],
        }
    }
}

/// What a line shows of each scenario.
type Curve = fn(&Scenario) -> f64;

/// A whole number with all its digits.
fn exact(value: u64) -> String {
    number(value as f64)
}

fn percent(share: f64) -> String {
    number((share * 1000.0).round() / 10.0)
}

fn savings(report: &SizingReport) -> Section {
    // Bytes grow with tokens, a straight line on even axes; requests are their inverse, a straight one by logarithm.
    let [even, inverse] = [Scale::Linear, Scale::Log2].map(|scale| Axis { label: "tokens of a request".into(), scale });
    let none_fits = report.scenarios.iter().any(|scenario| scenario.contiguous_fit.min(scenario.paged_fit) == 0);
    let fits = Axis { label: "requests".into(), scale: if none_fits { Scale::Linear } else { Scale::Log10 } };
    let plot = |id: &str, title: &str, x: Axis, y: Axis, sides: [(&str, Curve); 2]| Plot {
        id: id.to_owned(),
        title: title.to_owned(),
        x,
        y,
        series: sides.map(|(name, y)| Series { name: name.to_owned(), points: by_tokens(&report.scenarios, y) }).into(),
        levels: Vec::new(),
    };
    let plots = vec![
        plot(
            "plan-memory",
            "Memory of a request",
            even,
            Axis::linear("MB (powers of 1,000)"),
            [
                ("contiguous", |scenario| scenario.contiguous_bytes as f64 / scenario.requests as f64 / 1e6),
                ("paged", |scenario| scenario.paged_bytes as f64 / scenario.requests as f64 / 1e6),
            ],
        ),
        plot(
            "plan-requests",
            "Requests in the budget",
            inverse,
            fits,
            [
                ("contiguous", |scenario| scenario.contiguous_fit as f64),
                ("paged", |scenario| scenario.paged_fit as f64),
            ],
        ),
    ];
    let header = [
        "requests",
        "contiguous, bytes",
        "paged, bytes",
        "saved, %",
        "published, %",
        "filled, contiguous, %",
        "filled, paged, %",
        "fit, contiguous",
        "fit, paged",
    ];
    let mut table = Table::new("savings", "Contiguous against paged, exact bytes", &header, 1);
    for scenario in &report.scenarios {
        table.rows.push(vec![
            scenario.name.clone(),
            exact(scenario.contiguous_bytes),
            exact(scenario.paged_bytes),
            percent(scenario.saved),
            scenario.published.map_or("–".to_owned(), |published| number(published.saved_percent)),
            percent(scenario.contiguous_utilisation),
            percent(scenario.paged_utilisation),
            exact(scenario.contiguous_fit),
            exact(scenario.paged_fit),
        ]);
    }
    Section {
        heading: "What paging saves".to_owned(),
        text: "Contiguous, each request reserves the longest sequence; paged, it takes whole blocks.".to_owned(),
        plots,
        tables: vec![table],
    }
}

/// One point for each length of a request, ascending.
fn by_tokens(scenarios: &[Scenario], y: Curve) -> Vec<(f64, f64)> {
    let mut points: Vec<_> = scenarios.iter().map(|scenario| (scenario.mean_tokens, y(scenario))).collect();
    points.retain(|point| point.0 > 0.0);
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup_by(|a, b| a.0 == b.0);
    points
}

fn sizes(report: &SizingReport) -> Section {
    let (bytes, tables) = (&report.bytes, &report.tables);
    let mut table = Table::new("sizes", "Exact sizes", &["what", "bytes"], 1);
    for (what, bytes) in [
        ("K and V of one token in one layer", bytes.token_in_layer),
        ("K and V of one token", bytes.token),
        ("K and V of one block", bytes.block),
        ("K of the longest sequence in one layer", bytes.sequence_k_in_layer),
        ("V of the longest sequence in one layer", bytes.sequence_v_in_layer),
        ("K and V of the longest sequence", bytes.sequence),
        ("block table of the longest sequence", tables.bytes),
        ("the same with a table for each layer, KV head, and K or V", tables.per_head_bytes),
    ] {
        table.rows.push(vec![what.to_owned(), exact(bytes)]);
    }
    Section { heading: "Sizes".to_owned(), tables: vec![table], ..Section::default() }
}

fn limits(report: &SizingReport) -> Section {
    let header = [
        "device",
        "binding, bytes",
        "buffer, bytes",
        "head shards",
        "KV heads in each",
        "blocks at most",
        "pool at most, bytes",
    ];
    let caption = format!("What devices make of {} blocks", exact(report.num_blocks.into()));
    let mut table = Table::new("limits", caption, &header, 1);
    for LimitRecord { device, head_shards, heads_per_shard, max_blocks, max_pool_bytes, .. } in &report.limits {
        let software = if device.software { " (SOFTWARE ADAPTER)" } else { "" };
        table.rows.push(vec![
            format!("{}{software}", device.name),
            exact(device.binding_bytes),
            exact(device.buffer_bytes),
            head_shards.map_or("none fits".to_owned(), |head_shards| head_shards.to_string()),
            heads_per_shard.map_or("–".to_owned(), |heads| heads.to_string()),
            exact(*max_blocks),
            exact(*max_pool_bytes),
        ]);
    }
    Section { heading: "Limits of devices".to_owned(), tables: vec![table], ..Section::default() }
}
