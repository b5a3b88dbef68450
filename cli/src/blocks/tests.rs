use super::measure::DecodeTime;
use super::report::BlockSizeRow;
use super::*;
use crate::common::files::Report;
use crate::report::Head;
use crate::trace::{Log, Request};
use crate::workload::{SHORT_CHAT, Workload};
use wgpu_paged_attention::blocks::{CacheManager, SeqId};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::plan::{Schedule, StepPlan};

const SIZES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

fn workload(name: &str, requests: usize) -> Log {
    let requests = Workload::by_name(name).unwrap().requests(requests, 1);
    Log { name: name.to_owned(), requests, ..Log::default() }
}

#[test]
fn the_published_table_is_reproduced_within_two_points() {
    let study = study(&workload(SHORT_CHAT, 20_000), &SIZES, 4096).unwrap();
    assert!((140.0..150.0).contains(&study.mean_tokens), "{}", study.mean_tokens);
    let mut compared = 0;
    for row in &study.rows {
        let Some(published) = row.published else { continue };
        compared += 1;
        let size = row.block_size;
        for (ours, theirs) in [
            (row.fragmentation, published.fragmentation),
            (row.half_block_fragmentation, published.fragmentation),
            (row.utilisation, published.utilisation),
        ] {
            assert!((ours - theirs).abs() <= 0.02, "blocks of {size}: {ours} where {theirs} was published");
        }
    }
    assert_eq!(compared, 4);
    // 4,096 tokens: 512, 256, 128 and 64 entries, as published.
    let entries: Vec<u32> = study.rows[3..7].iter().map(|row| row.entries_at_max_len).collect();
    assert_eq!(entries, [512, 256, 128, 64]);
    assert_eq!(study.rows[4].table_bytes_per_seq, 1024);
}

#[test]
fn only_short_chats_stand_beside_what_was_published_about_them() {
    let published = |name, max_seq_len| {
        let study = study(&workload(name, 100), &SIZES, max_seq_len).unwrap();
        study.rows.iter().any(|row| row.published.is_some())
    };
    assert!(published(SHORT_CHAT, 4096));
    assert!(!published(SHORT_CHAT, 2048));
    assert!(!published("azure-conv", 4096));
}

#[test]
fn the_formula_is_what_the_manager_counts() {
    let log = workload(SHORT_CHAT, 40);
    let max_seq_len = 300_u32;
    for block_size in [1, 7, 16, 64] {
        let layout = CacheConfig::new(1, 1, 8)
            .with_block_size(block_size)
            .with_num_blocks(max_seq_len.div_ceil(block_size) * 40)
            .with_max_seq_len(max_seq_len)
            .with_max_sequences(40)
            .layout()
            .unwrap();
        let mut manager = CacheManager::new(&layout).unwrap();
        let mut plan = StepPlan::new(Schedule::default());
        // All requests at once, each for as many steps as it has tokens to generate.
        let served = log.requests.iter().filter(|request| request.prompt_tokens <= max_seq_len);
        let mut running: Vec<(SeqId, u32, u32)> = served
            .map(|request| {
                let prompt = request.prompt_tokens.max(1);
                (manager.create_sequence().unwrap(), prompt, request.output_tokens.min(max_seq_len - prompt + 1))
            })
            .collect();
        let (mut filled, mut reserved) = (0, 0);
        while !running.is_empty() {
            let growth: Vec<(SeqId, u32)> = running.iter().map(|&(seq, tokens, _)| (seq, tokens)).collect();
            manager.reserve(&growth, &mut plan).unwrap();
            manager.commit(&mut plan).unwrap();
            let stats = manager.stats();
            filled += stats.filled_tokens;
            reserved += stats.reserved_tokens;
            running.retain_mut(|(seq, tokens, steps)| {
                (*tokens, *steps) = (1, *steps - 1);
                if *steps == 0 {
                    manager.release(*seq).unwrap();
                }
                *steps > 0
            });
        }
        let row = &study(&log, &[block_size], max_seq_len).unwrap().rows[0];
        assert_eq!(row.utilisation, filled as f64 / reserved as f64, "blocks of {block_size}");
    }
}

#[test]
fn logs_that_nothing_can_be_said_about_are_refused() {
    let request = |prompt_tokens, output_tokens| Request { prompt_tokens, output_tokens, ..Request::default() };
    let log = Log { name: "log".to_owned(), requests: vec![request(5, 0), request(5000, 7)], ..Log::default() };
    assert_eq!(
        study(&log, &SIZES, 4096).unwrap_err().to_string(),
        "log: no request, of 2 in all, has an answer and a prompt of at most 4096 tokens; raise --max-len"
    );
    assert!(matches!(study(&log, &[], 4096), Err(BlockSizesError::NoSizes)));
    let found = study(&log, &[16], 8192).unwrap();
    assert_eq!((found.requests, found.refused, found.cut), (1, 1, 0));
}

/// A workload with these block sizes, utilisations and decode times over that of 16.
fn study_of(name: &str, rows: &[(u32, f64, Option<f64>)]) -> BlockSizeStudy {
    let mut study = study(&workload("azure-conv", 10), &SIZES, 4096).unwrap();
    let like = study.rows[0].clone();
    let row = |&(block_size, utilisation, relative): &(u32, f64, Option<f64>)| {
        let decode = relative.map(|relative| DecodeTime {
            median_us: 100.0 * relative,
            low_us: 99.0 * relative,
            high_us: 101.0 * relative,
            relative,
            noise: 0.01,
        });
        BlockSizeRow { block_size, utilisation, decode, ..like.clone() }
    };
    study.name = name.to_owned();
    study.rows = rows.iter().map(row).collect();
    study
}

#[test]
fn the_largest_size_is_recommended_that_gives_nothing_up() {
    let pick = |studies: &[BlockSizeStudy]| recommend(studies).map(|recommendation| recommendation.block_size);
    let none = None;
    let memory = [(8, 0.97, none), (16, 0.95, none), (32, 0.91, none)];
    assert_eq!(pick(&[study_of("a", &memory)]), Some(16));
    // A second workload can only rule sizes out.
    assert_eq!(
        pick(&[study_of("a", &memory), study_of("b", &[(8, 0.9, none), (16, 0.8, none), (32, 0.7, none)])]),
        Some(8)
    );
    // A size that decodes slower than the noise is not taken, though it keeps the memory.
    let slow = [(8, 0.97, Some(1.01)), (16, 0.95, Some(1.2)), (32, 0.91, Some(0.5))];
    assert_eq!(pick(&[study_of("a", &slow)]), Some(8));
    let equal = [(8, 0.97, Some(1.0)), (16, 0.95, Some(1.02)), (32, 0.91, Some(0.5))];
    assert_eq!(pick(&[study_of("a", &equal)]), Some(16));
    let reason = recommend(&[study_of("a", &equal)]).unwrap().reason;
    assert!(reason.ends_with("as fast as the fastest: +2.0 % at worst, where 3 % are noise"), "{reason}");
    // No size is fast everywhere: the one that loses least.
    let one = [(8, 0.97, Some(1.0)), (16, 0.96, Some(1.3))];
    let other = [(8, 0.97, Some(1.1)), (16, 0.96, Some(1.0))];
    let both = [study_of("a", &one), study_of("b", &other)];
    assert_eq!(pick(&both), Some(8));
    let reason = recommend(&both).unwrap().reason;
    assert!(reason.contains("+10.0 % at worst") && reason.starts_with("8, 16 keep"), "{reason}");
    assert_eq!(pick(&[]), None);
    assert_eq!(pick(&[study_of("a", &one), study_of("b", &slow)]), None);
}

#[test]
fn sizes_that_find_fewer_prefixes_are_not_recommended() {
    let mut study = study_of("a", &[(16, 0.99, None), (512, 0.98, None)]);
    (study.rows[0].prefix_hit_share, study.rows[1].prefix_hit_share) = (Some(0.40), Some(0.37));
    let recommendation = recommend(&[study]).unwrap();
    assert_eq!(recommendation.block_size, 16);
    assert!(recommendation.reason.contains("2 points of the best prefix hits"), "{}", recommendation.reason);
}

pub(crate) fn report(workloads: Vec<BlockSizeStudy>) -> BlockSizesReport {
    BlockSizesReport {
        head: Head::new(BlockSizesReport::KIND, Some("paged-attention blocks".to_owned()), Some(1)),
        max_seq_len: 4096,
        model: "llama-3-8b".to_owned(),
        kv_dtype: KvDtype::F16,
        adapter: None,
        recommendation: recommend(&workloads),
        workloads,
        interrupted: false,
    }
}

#[test]
fn the_report_is_read_back_and_has_a_line_for_every_row() {
    let mut log = workload(SHORT_CHAT, 1000);
    log.requests[7].output_tokens = 0;
    let named = Log { name: "my, \"log\".csv".to_owned(), ..log.clone() };
    let mut report = report(vec![study(&log, &SIZES, 4096).unwrap(), study(&named, &SIZES, 4096).unwrap()]);
    let read: serde_json::Value = serde_json::from_str(&report.to_json().unwrap()).unwrap();
    assert_eq!((&read["kind"], &read["schema"]), (&"blocks".into(), &1.into()));
    assert_eq!(read["workloads"][0]["rows"].as_array().unwrap().len(), SIZES.len());

    let csv = report.to_csv().unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * SIZES.len());
    assert!(csv.lines().nth(5).unwrap().starts_with("short-chat,16,256,"), "{csv}");
    assert!(csv.contains("\n\"my, \"\"log\"\".csv\",1,4096,"), "{csv}");

    let text = report.page().to_text();
    for words in ["short-chat: 999 requests, 1 refused or without an answer", "published", "recommended: blocks of"] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    assert!(!text.contains("decode, ÷"), "nothing was measured: {text}");

    // Times are held against those of 16, or of the first size where there are no blocks of 16.
    let time = DecodeTime { median_us: 10.0, low_us: 9.0, high_us: 11.0, relative: 1.0, noise: 0.1 };
    report.workloads[0].rows.iter_mut().for_each(|row| row.decode = Some(time));
    assert!(report.page().to_text().contains("decode, ÷ 16 |"));
    report.workloads[0].rows.retain(|row| row.block_size > 16);
    let first = report.workloads[0].rows[0].block_size;
    assert!(report.page().to_text().contains(&format!("decode, ÷ {first} |")));
}
