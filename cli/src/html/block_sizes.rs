//! The page of a study of block sizes.

use super::plot::{Axis, Plot, Series, number};
use super::{Page, Section, Table};
use crate::bench::report::SOFTWARE_NOTICE;
use crate::blocks::{BlockSizeRow, BlockSizeStudy, BlockSizesReport};

impl From<&BlockSizesReport> for Page {
    fn from(report: &BlockSizesReport) -> Self {
        let BlockSizesReport { model, kv_dtype, max_seq_len, seed, version, adapter, .. } = report;
        let measured = adapter.as_ref().map_or_else(
            || "nothing, requests were only counted".to_owned(),
            |adapter| format!("one layer of {model} in {kv_dtype} on {} ({})", adapter.name, adapter.driver),
        );
        let facts = [
            ("Measured", measured),
            ("Longest sequence", format!("{max_seq_len} tokens")),
            ("Version", format!("wgpu-paged-attention {version}")),
            ("Seed", seed.to_string()),
        ];
        let software = adapter.as_ref().filter(|adapter| adapter.software).map(|_| SOFTWARE_NOTICE.to_owned());
        let interrupted =
            report.interrupted.then(|| "The study was interrupted: not everything was measured.".to_owned());
        let text = report.recommendation.as_ref().map_or_else(
            || "There is nothing to judge by.".to_owned(),
            |recommendation| format!("Blocks of {}: {}.", recommendation.block_size, recommendation.reason),
        );
        let advice = Section { heading: "Recommendation".to_owned(), text, ..Section::default() };
        let studies = report.workloads.iter().enumerate().map(|(i, study)| section(study, i + 1));
        Self {
            title: "What the size of a block costs and saves".to_owned(),
            notices: software.into_iter().chain(interrupted).collect(),
            facts: facts.map(|(name, value)| (name.to_owned(), value)).into(),
            command: report.command.clone(),
            sections: std::iter::once(advice).chain(studies).collect(),
        }
    }
}

fn section(study: &BlockSizeStudy, number_of_study: usize) -> Section {
    let plot = |id: &str, title: &str, y: &str, series: Vec<Series>| Plot {
        id: format!("{id}-{number_of_study}"),
        title: format!("{title}: {}", study.name),
        x: Axis::log2("block size, tokens"),
        y: Axis::linear(y),
        series: series.into_iter().filter(|series| !series.points.is_empty()).collect(),
        levels: Vec::new(),
    };
    let shares = vec![
        series(study, "utilisation", |row| Some(row.utilisation * 100.0)),
        series(study, "internal fragmentation", |row| Some(row.fragmentation * 100.0)),
        series(study, "utilisation, published", |row| row.published.map(|published| published.utilisation * 100.0)),
        series(study, "prefix hits", |row| row.prefix_hit_share.map(|share| share * 100.0)),
        series(study, "fragmentation, published", |row| row.published.map(|published| published.fragmentation * 100.0)),
    ];
    let table_bytes = series(study, "block table", |row| Some(row.table_bytes_per_seq as f64));
    let decode = series(study, "decode step", |row| row.decode.map(|decode| decode.median_us));
    let mut plots = vec![
        plot("block-size-memory", "Memory and sharing", "share, %", shares),
        plot("block-size-tables", "Block tables", "bytes per sequence", vec![table_bytes]),
        plot("block-size-decode", "Decode time", "median, µs", vec![decode]),
    ];
    plots.retain(|plot| !plot.series.is_empty());
    Section {
        heading: format!("Block sizes on {}", study.name),
        text: format!("{} tokens per sequence on the average.", number(study.mean_tokens)),
        plots,
        tables: vec![table(study, number_of_study)],
    }
}

fn series(study: &BlockSizeStudy, name: &str, y: fn(&BlockSizeRow) -> Option<f64>) -> Series {
    let points = study.rows.iter().filter_map(|row| Some((f64::from(row.block_size), y(row)?))).collect();
    Series { name: name.to_owned(), points }
}

fn table(study: &BlockSizeStudy, number_of_study: usize) -> Table {
    let header = [
        "block size, tokens",
        "table entries at the longest",
        "internal fragmentation, %",
        "published, %",
        "utilisation, %",
        "published, %",
        "table, bytes per sequence",
        "prefix hits, %",
        "decode, µs",
    ];
    let caption = format!("Block sizes on {}", study.name);
    let mut table = Table::new(format!("block-sizes-{number_of_study}"), caption, &header, 0);
    let percent = |share: f64| number(share * 100.0);
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
    for row in &study.rows {
        table.rows.push(vec![
            row.block_size.to_string(),
            number(row.entries_at_max_len.into()),
            percent(row.fragmentation),
            or_dash(row.published.map(|published| percent(published.fragmentation))),
            percent(row.utilisation),
            or_dash(row.published.map(|published| percent(published.utilisation))),
            number(row.table_bytes_per_seq as f64),
            or_dash(row.prefix_hit_share.map(percent)),
            or_dash(row.decode.map(|decode| number(decode.median_us))),
        ]);
    }
    table
}
