//! A study as CSV and as a page.

use serde::Serialize;

use super::{BlockSizeRow, BlockSizeStudy, BlockSizesReport, reference};
use crate::common::Report;
use crate::html::plot::{Axis, Series};
use crate::html::{Page, Plot, Section};
use crate::report::fmt::{count, duration, number, percent, ratio};
use crate::report::{Adapter, Table, select_csv};

const COLUMNS: &str = "workload,block_size,entries_at_max_len,fragmentation,utilisation,half_block_fragmentation,\
    table_bytes_per_seq,mean_blocks,prefix_hit_share,decode_us=decode.median_us,decode_low_us=decode.low_us,\
    decode_high_us=decode.high_us,decode_relative=decode.relative,decode_noise=decode.noise,\
    published_fragmentation=published.fragmentation,published_utilisation=published.utilisation";

impl Report for BlockSizesReport {
    const KIND: &'static str = "blocks";

    fn to_csv(&self) -> Result<String, csv::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            workload: &'a str,
            #[serde(flatten)]
            row: &'a BlockSizeRow,
        }
        let rows =
            self.workloads.iter().flat_map(|study| study.rows.iter().map(|row| Row { workload: &study.name, row }));
        select_csv(COLUMNS, rows)
    }

    fn page(&self) -> Page {
        let BlockSizesReport { model, kv_dtype, max_seq_len, adapter, .. } = self;
        let mut facts: Vec<_> = adapter.iter().map(Adapter::fact).collect();
        if adapter.is_some() {
            let decode = format!(
                "one layer of {model} in {kv_dtype}, a batch drawn from the requests; ÷ is the median over neighbouring runs"
            );
            facts.push(("decode", decode));
        }
        facts.push(("longest sequence", format!("{} tokens", count(max_seq_len))));
        let recommended = self.recommendation.as_ref().map(|recommendation| {
            format!("recommended: blocks of {}: {}", recommendation.block_size, recommendation.reason)
        });
        let interrupted = self.interrupted.then(|| "interrupted: not everything was measured".to_owned());
        Page {
            head: self.head.clone(),
            title: "What the size of a block costs and saves".to_owned(),
            facts,
            notices: adapter.iter().filter_map(Adapter::notice).collect(),
            sections: self
                .workloads
                .iter()
                .zip(1..)
                .map(|(study, number)| section(study, *max_seq_len, number))
                .collect(),
            summary: recommended.into_iter().chain(interrupted).collect(),
        }
    }
}

fn section(study: &BlockSizeStudy, max_seq_len: u32, number_of_study: usize) -> Section {
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
        plots,
        tables: vec![table(study, max_seq_len, number_of_study)],
        ..Section::default()
    }
}

fn series(study: &BlockSizeStudy, name: &str, y: fn(&BlockSizeRow) -> Option<f64>) -> Series {
    let points = study.rows.iter().filter_map(|row| Some((f64::from(row.block_size), y(row)?))).collect();
    Series { name: name.to_owned(), points }
}

fn table(study: &BlockSizeStudy, max_seq_len: u32, number_of_study: usize) -> Table {
    let but = |number: u64, what: &str| if number == 0 { String::new() } else { format!(", {} {what}", count(number)) };
    let caption = format!(
        "{}: {} request{}{}{}{}; sequences of {} tokens on average, {} of what a contiguous cache reserves",
        study.name,
        count(study.requests),
        if study.requests == 1 { "" } else { "s" },
        but(study.cut, "cut at the longest sequence"),
        but(study.refused, "refused or without an answer"),
        but(study.skipped, if study.skipped == 1 { "bad row left out" } else { "bad rows left out" }),
        number(study.mean_tokens),
        percent(study.contiguous_utilisation),
    );
    let sizes: Vec<u32> = study.rows.iter().map(|row| row.block_size).collect();
    let against = sizes.get(reference(&sizes)).copied().unwrap_or_default();
    let (entries, decode) = (format!("entries at {}", count(max_seq_len)), format!("decode, ÷ {against}"));
    let id = format!("block-sizes-{number_of_study}");
    Table::of(
        id,
        caption,
        0,
        &study.rows,
        &[
            ("block", &|row| Some(row.block_size.to_string())),
            (&entries, &|row| Some(count(row.entries_at_max_len))),
            ("table bytes", &|row| Some(count(row.table_bytes_per_seq))),
            ("blocks per sequence", &|row| Some(number(row.mean_blocks))),
            ("fragmentation", &|row| Some(percent(row.fragmentation))),
            ("by half a block", &|row| Some(percent(row.half_block_fragmentation))),
            ("published", &|row| row.published.map(|published| percent(published.fragmentation))),
            ("utilisation", &|row| Some(percent(row.utilisation))),
            ("published", &|row| row.published.map(|published| percent(published.utilisation))),
            ("prefix hits", &|row| row.prefix_hit_share.map(percent)),
            (&decode, &|row| {
                row.decode.map(|decode| format!("{}, {}", duration(decode.median_us), ratio(decode.relative)))
            }),
        ],
    )
}
