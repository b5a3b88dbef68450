//! The plan for the terminal: Markdown tables, since they are often pasted somewhere.

use comfy_table::{CellAlignment, Table, presets};

use super::byte_size::{binary, decimal, grouped};
use super::{LimitRecord, Scenario, SizingReport};

/// What does not depend on the devices of this machine.
pub fn render(report: &SizingReport) -> String {
    let mut parts = vec![header(report), bytes(report), scenarios(report), tables(report)];
    parts.extend(window(report));
    parts.push(limits(&report.limits[..report.limits.len().min(1)], report));
    parts.join("\n\n")
}

/// What the devices of this machine make of the pool.
pub fn render_devices(report: &SizingReport) -> String {
    match report.limits.get(1..) {
        None | Some([]) => "no adapter here; other devices have other limits".to_owned(),
        Some(devices) => limits(devices, report),
    }
}

/// Columns before `first_number` are words, the others numbers.
fn table(header: &[&str], first_number: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header.iter().copied());
    table.add_rows(rows);
    for column in table.column_iter_mut().skip(first_number) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn header(report: &SizingReport) -> String {
    let model = &report.model;
    let weights = model
        .num_weights
        .map_or_else(|| "unknown".to_owned(), |weights| format!("{:.2} billion", weights as f64 / 1e9));
    format!(
        "model: {}, {} layers, {} query heads, {} KV heads of {}, made for {} tokens, {weights} weights\n\
         cache: {}, blocks of {} tokens, sequences of up to {} tokens\n\
         budget: {} bytes ({}, {}), {} blocks",
        model.name,
        model.num_layers,
        model.num_q_heads,
        model.num_kv_heads,
        model.head_dim,
        grouped(model.max_seq_len.into()),
        report.kv_dtype,
        grouped(report.block_size.into()),
        grouped(report.max_seq_len.into()),
        grouped(report.budget_bytes),
        decimal(report.budget_bytes),
        binary(report.budget_bytes),
        grouped(report.num_blocks.into()),
    )
}

fn bytes(report: &SizingReport) -> String {
    let bytes = &report.bytes;
    let longest = grouped(report.max_seq_len.into());
    let rows = [
        ("K and V of one token in one layer".to_owned(), bytes.token_in_layer),
        ("K and V of one token".to_owned(), bytes.token),
        (format!("K and V of one block of {} tokens", grouped(report.block_size.into())), bytes.block),
        (format!("K of {longest} tokens in one layer"), bytes.sequence_k_in_layer),
        (format!("V of {longest} tokens in one layer"), bytes.sequence_v_in_layer),
        (format!("K and V of {longest} tokens"), bytes.sequence),
    ];
    let row = |(what, bytes)| vec![what, grouped(bytes), decimal(bytes), binary(bytes)];
    table(&["what", "bytes", "powers of 1,000", "powers of 1,024"], 1, rows.map(row))
}

fn scenarios(report: &SizingReport) -> String {
    let published = report.scenarios.iter().any(|scenario| scenario.published.is_some());
    let mut header = vec![
        "requests",
        "contiguous, bytes",
        "paged, bytes",
        "contiguous",
        "paged",
        "saved",
        "filled, contiguous",
        "filled, paged",
        "fit, contiguous",
        "fit, paged",
    ];
    if published {
        header.push("published");
    }
    let row = |scenario: &Scenario| {
        let mut cells = vec![
            if scenario.mean_tokens.fract() == 0.0 {
                scenario.name.clone()
            } else {
                format!("{}, {:.0} tokens on average", scenario.name, scenario.mean_tokens)
            },
            grouped(scenario.contiguous_bytes),
            grouped(scenario.paged_bytes),
            binary(scenario.contiguous_bytes),
            binary(scenario.paged_bytes),
            percent(scenario.saved),
            percent(scenario.contiguous_utilisation),
            percent(scenario.paged_utilisation),
            grouped(scenario.contiguous_fit),
            grouped(scenario.paged_fit),
        ];
        if published {
            cells.push(scenario.published.map_or_else(String::new, |published| {
                let (contiguous, paged) = (published.contiguous_gb, published.paged_gb);
                format!("{contiguous:.1} GB, {paged:.1} GB, {:.0} %", published.saved_percent)
            }));
        }
        cells
    };
    let table = table(&header, 1, report.scenarios.iter().map(row));
    if published { format!("{table}\nA published GB is 1,000 MiB.") } else { table }
}

fn tables(report: &SizingReport) -> String {
    let tables = &report.tables;
    let rows = [
        ("one per sequence, 4 bytes an entry (this cache)", 1, tables.bytes, tables.bytes),
        (
            "one per layer, KV head, and K or V, 8 bytes an entry",
            tables.per_head_tables,
            tables.per_head_table_bytes,
            tables.per_head_bytes,
        ),
    ];
    let row = |(what, count, each, all): (&str, u64, u64, u64)| {
        let entries = grouped(tables.entries.into());
        vec![what.to_owned(), entries, grouped(count), grouped(each), grouped(all), binary(all)]
    };
    let header = ["page tables of a sequence", "entries", "tables", "bytes of each", "bytes of all", "in all"];
    table(&header, 1, rows.map(row))
}

fn window(report: &SizingReport) -> Option<String> {
    let window = report.window?;
    let caption = format!(
        "window: {} of {} layers see the last {} tokens",
        window.windowed_layers,
        report.model.num_layers,
        grouped(window.window.into())
    );
    let rows = [
        ("every block is kept", window.kept_bytes),
        ("blocks return that left the windows of all layers", window.one_cache_bytes),
        ("the same, layers with a window in a cache of their own", window.own_cache_bytes),
    ];
    let row = |(what, bytes): (&str, u64)| {
        let saved = 1.0 - bytes as f64 / window.kept_bytes as f64;
        vec![what.to_owned(), grouped(bytes), binary(bytes), percent(saved)]
    };
    let sequence = format!("a sequence of {} tokens", grouped(window.seq_len.into()));
    let table = table(&[&sequence, "bytes, at most", "in short", "saved"], 1, rows.map(row));
    Some(format!("{caption}\n{table}"))
}

fn limits(limits: &[LimitRecord], report: &SizingReport) -> String {
    let row = |record: &LimitRecord| {
        let device = &record.device;
        let software = if device.software { " (SOFTWARE ADAPTER)" } else { "" };
        let head_shards = match (record.head_shards, record.heads_per_shard, record.shard_bytes) {
            (Some(head_shards), Some(heads), Some(bytes)) => {
                vec![head_shards.to_string(), heads.to_string(), binary(bytes)]
            }
            _ => vec!["none fits".to_owned(), String::new(), String::new()],
        };
        let mut cells =
            vec![format!("{}{software}", device.name), binary(device.binding_bytes), binary(device.buffer_bytes)];
        cells.extend(head_shards);
        cells.extend([grouped(record.max_blocks), binary(record.max_pool_bytes)]);
        cells
    };
    let pool = format!("head shards of {} blocks", grouped(report.num_blocks.into()));
    let header =
        ["limits", "binding", "buffer", &pool, "KV heads in each", "K or V of each", "blocks at most", "pool at most"];
    table(&header, 1, limits.iter().map(row))
}

fn percent(share: f64) -> String {
    // Without the sign of a zero.
    format!("{:.1} %", 100.0 * share + 0.0)
}
