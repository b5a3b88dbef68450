use super::*;
use crate::trace::Request;
use wgpu_paged_attention::blocks::CacheManager;
use wgpu_paged_attention::layout::UNIT_BYTES;
use wgpu_paged_attention::plan::{Schedule, StepPlan};

pub(crate) fn options(model: &str) -> SizingOptions {
    SizingOptions {
        model: Model::by_name(model).unwrap(),
        kv_dtype: KvDtype::F16,
        block_size: 16,
        max_seq_len: 4096,
        budget_bytes: 26_000_000_000,
        lens: Vec::new(),
        logs: Vec::new(),
        devices: Vec::new(),
    }
}

fn planned(options: &SizingOptions) -> SizingReport {
    plan(options, "paged-attention plan".into()).unwrap()
}

fn refusal(options: &SizingOptions) -> String {
    plan(options, String::new()).unwrap_err().to_string()
}

#[test]
fn llama_13b_is_as_worked_out_by_hand() {
    let report = planned(&options("llama-13b"));
    // A row of 128 halves is 256 bytes; 40 heads, K and V: 20,480 bytes a token and layer; 40 layers: 819,200.
    // 16 tokens: 13,107,200 a block. 4,096 tokens: 40 MiB of K and of V a layer, 3,200 MiB = 3.125 GiB altogether.
    assert_eq!(
        report.bytes,
        Bytes {
            token_in_layer: 20_480,
            token: 819_200,
            block: 13_107_200,
            sequence_k_in_layer: 40 << 20,
            sequence_v_in_layer: 40 << 20,
            sequence: 3200 << 20,
        }
    );
    // 26e9 / 13,107,200 = 1,983.6.
    assert_eq!(report.num_blocks, 1983);
    // 128 tokens are 8 blocks, 1,024 are 64, 4,096 are 256. 26e9 / 3,355,443,200 = 7.7; 1983 / 8, / 64, / 256.
    let rows: Vec<_> = report
        .scenarios
        .iter()
        .map(|row| (&*row.name, row.contiguous_bytes, row.paged_bytes, row.contiguous_fit, row.paged_fit))
        .collect();
    let (sequence, block) = (3_355_443_200, 13_107_200);
    assert_eq!(
        rows,
        [
            ("1 × 128 tokens", sequence, 8 * block, 7, 247),
            ("1 × 1,024 tokens", sequence, 64 * block, 7, 30),
            ("1 × 4,096 tokens", sequence, 256 * block, 7, 7),
            ("8 × 1,024 tokens", 8 * sequence, 8 * 64 * block, 7, 30),
        ]
    );
    for (row, saved) in report.scenarios.iter().zip([0.96875, 0.75, 0.0, 0.75]) {
        assert_eq!((row.saved, row.contiguous_utilisation, row.paged_utilisation), (saved, 1.0 - saved, 1.0));
        // The published figures are these: a "GB" there is 1,000 MiB, and percents are whole.
        let published = row.published.unwrap();
        assert!((100.0 * saved - published.saved_percent).abs() <= 0.5, "{row:?}");
        for (bytes, gb) in [(row.contiguous_bytes, published.contiguous_gb), (row.paged_bytes, published.paged_gb)] {
            let mib = bytes as f64 / f64::from(1 << 20);
            assert!((mib - 1000.0 * gb).abs() < 1e-6, "{row:?}");
        }
    }
    // 256 entries of 8 bytes: 2 KiB; 40 layers × 40 heads × 2: 3,200 tables; 6,553,600 bytes. Ours: 256 × 4 bytes.
    assert_eq!(
        report.tables,
        Tables {
            entries: 256,
            bytes: 1024,
            per_head_tables: 3200,
            per_head_table_bytes: 2048,
            per_head_bytes: 6_553_600,
        }
    );
    // One head of K: 1983 × 16 × 256 = 8,122,368 bytes. 16 of them fit 128 MiB = 134,217,728, so 40 heads are dealt
    // out to 3 head shards of at most 14: 113,713,152 bytes. Blocks at most: 134,217,728 / 4,096 = 32,768.
    let limits = &report.limits[0];
    assert_eq!((limits.device.binding_bytes, limits.device.buffer_bytes), (128 << 20, 256 << 20));
    assert_eq!(
        (limits.head_shards, limits.heads_per_shard, limits.shard_bytes),
        (Some(3), Some(14), Some(113_713_152))
    );
    assert_eq!((limits.max_blocks, limits.max_pool_bytes), (32_768, 32_768 * 13_107_200));
    assert_eq!((report.limits.len(), report.window), (1, None));
}

#[test]
fn llama_3_8b_is_as_worked_out_by_hand() {
    let report = planned(&SizingOptions { kv_dtype: KvDtype::Int8, ..options("llama-3-8b") });
    // A row of 128 bytes and one unit of 16 for its scale: 144. 8 heads, K and V: 2,304 a token and layer; 32 layers:
    // 73,728. A block: 1,179,648. 4,096 tokens: 4,718,592 of K a layer, 301,989,888 altogether.
    let Bytes { token_in_layer, token, block, sequence_k_in_layer, sequence, .. } = report.bytes;
    assert_eq!((token_in_layer, token, block), (2304, 73_728, 1_179_648));
    assert_eq!((sequence_k_in_layer, sequence), (4_718_592, 301_989_888));
    // 26e9 / 1,179,648 = 22,040.5 blocks; 26e9 / 301,989,888 = 86.1; 22,040 / 8 = 2,755; 32 × 8 × 2 tables.
    let first = &report.scenarios[0];
    assert_eq!((report.num_blocks, first.contiguous_fit, first.paged_fit), (22_040, 86, 2755));
    assert_eq!((first.published, report.tables.per_head_tables), (None, 512));
}

#[test]
fn gemma_2_9b_is_as_worked_out_by_hand() {
    let report = planned(&options("gemma-2-9b"));
    // A row of 256 halves is 512 bytes; 8 heads, K and V: 8,192 a token and layer; 42 layers: 344,064; 16 tokens:
    // 5,505,024. 4,096 tokens: 1,409,286,144.
    let Bytes { token_in_layer, token, block, sequence, .. } = report.bytes;
    assert_eq!((token_in_layer, token, block, sequence), (8192, 344_064, 5_505_024, 1_409_286_144));
    // 8,192 tokens are 512 blocks: 2,818,572,288 bytes. 21 layers see 4,096 tokens, which touch 257 blocks at most:
    // 257 × 2,752,512 = 707,395,584; the other 21 keep 512 × 2,752,512 = 1,409,286,144.
    let window = report.window.unwrap();
    assert_eq!((window.window, window.windowed_layers, window.seq_len), (4096, 21, 8192));
    assert_eq!((window.kept_bytes, window.one_cache_bytes), (2_818_572_288, 2_818_572_288));
    assert_eq!(window.own_cache_bytes, 707_395_584 + 1_409_286_144);
    // All layers of mistral-7b have a window: 257 of the 2,048 blocks of 32,768 tokens, 131,072 bytes a token.
    let window = planned(&options("mistral-7b")).window.unwrap();
    assert_eq!((window.kept_bytes, window.one_cache_bytes), (4 << 30, 257 * 16 * 131_072));
    assert_eq!(window.own_cache_bytes, window.one_cache_bytes);
}

#[test]
fn a_window_keeps_as_many_blocks_as_the_manager_does() {
    for (window, seq_len, block_size) in
        [(10, 40, 4), (9, 40, 4), (8, 40, 4), (1, 20, 4), (7, 20, 1), (100, 37, 4), (5, 30, 16), (1, 1, 16)]
    {
        let layout = CacheConfig::new(1, 1, 8).with_block_size(block_size).with_num_blocks(64);
        let mut manager = CacheManager::new(&layout.with_window(window).layout().unwrap()).unwrap();
        let mut step = StepPlan::new(Schedule::default());
        let seq = manager.create_sequence().unwrap();
        let mut most = 0;
        for _ in 0..seq_len {
            manager.reserve(&[(seq, 1)], &mut step).unwrap();
            most = most.max(manager.num_blocks() - manager.num_free_blocks());
            manager.commit(&mut step).unwrap();
        }
        assert_eq!(window::most_blocks(window, seq_len, block_size), most, "{window} {seq_len} {block_size}");
    }
}

#[test]
fn lengths_and_logs_are_compared_as_asked() {
    let request = |prompt_tokens, output_tokens| Request { prompt_tokens, output_tokens, ..Request::default() };
    // 17, 31 and, cut, 64 tokens: 2, 2 and 4 blocks of 16.
    let requests = vec![request(10, 7), request(31, 0), request(u32::MAX, 5)];
    let lens = vec!["17,31,64".parse().unwrap(), "16x3".parse().unwrap()];
    let logs = vec![Log { name: "log.csv".to_owned(), requests, ..Log::default() }];
    let report = planned(&SizingOptions { max_seq_len: 64, lens, logs, ..options("gemma-3-270m") });
    // 18 layers × 1 head × 512 bytes × K and V: 18,432 a token, 294,912 a block, 4 blocks a sequence.
    let [mixed, equal, log] = &report.scenarios[..] else { panic!("{:?}", report.scenarios) };
    assert_eq!((&*mixed.name, mixed.contiguous_bytes, mixed.paged_bytes), ("17,31,64", 12 * 294_912, 8 * 294_912));
    assert_eq!((&*equal.name, equal.contiguous_bytes, equal.paged_bytes), ("3 × 16 tokens", 12 * 294_912, 3 * 294_912));
    assert_eq!((&*log.name, log.contiguous_bytes, log.paged_bytes), ("log.csv", 4 * 294_912, 8 * 294_912 / 3));
    assert_eq!((mixed.requests, equal.requests, log.requests), (3, 3, 1));
    assert_eq!((log.mean_tokens, log.paged_utilisation), (112.0 / 3.0, 112.0 / 128.0));
    // 26e9 / 294,912 = 88,161.9 blocks, three requests to every eight.
    assert_eq!((report.num_blocks, log.paged_fit, mixed.paged_fit), (88_161, 33_060, 33_060));
}

#[test]
fn devices_come_behind_the_defaults_and_what_fits_none_is_said() {
    let device =
        |binding_bytes| DeviceLimits { name: "card".into(), software: false, binding_bytes, buffer_bytes: 1 << 40 };
    let devices = vec![device(u64::MAX), device(1 << 20)];
    let report = planned(&SizingOptions { devices, ..options("llama-3-8b") });
    // 26e9 / 2,097,152 = 12,397 blocks of 4,096 bytes a head: 50,778,112 bytes, 8 heads 406,224,896.
    let head_shards: Vec<_> = report.limits.iter().map(|limit| (limit.head_shards, limit.shard_bytes)).collect();
    assert_eq!(head_shards, [(Some(4), Some(101_556_224)), (Some(1), Some(406_224_896)), (None, None)]);
    assert_eq!(report.limits[2].max_blocks, 256);
    let text = report.page().to_text();
    assert!(text.contains("none fits") && !text.contains("no adapter"), "{text}");
    assert!(planned(&options("llama-3-8b")).page().to_text().contains("no adapter"));
}

#[test]
fn refusals_name_value_and_limit() {
    assert_eq!(
        refusal(&SizingOptions { budget_bytes: 13_107_199, ..options("llama-13b") }),
        "memory_budget_bytes is 13107199, but one block of 16 tokens takes 13107200 bytes; raise the budget to at least that"
    );
    let one_block = planned(&SizingOptions { budget_bytes: 13_107_200, ..options("llama-13b") });
    assert_eq!((one_block.num_blocks, one_block.scenarios[0].contiguous_fit), (1, 0));
    let lens = vec!["5,4097".parse().unwrap()];
    assert_eq!(
        refusal(&SizingOptions { lens, ..options("llama-13b") }),
        "--lens has a sequence of 4097 tokens, but the longest may have 4096; raise --max-len"
    );
    for (changed, words) in [
        (SizingOptions { block_size: 0, ..options("llama-13b") }, "block_size is 0, outside 1..=65536"),
        (SizingOptions { max_seq_len: 0, ..options("llama-13b") }, "max_seq_len is 0, outside 1..=1073741824"),
        (SizingOptions { budget_bytes: u64::MAX, ..options("llama-13b") }, "slots, more than the"),
        (SizingOptions { budget_bytes: 0, ..options("llama-13b") }, "memory_budget_bytes is 0"),
    ] {
        let text = refusal(&changed);
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn every_format_and_block_size_agrees_with_the_layout() {
    for model in Model::BUILT_IN {
        for kv_dtype in KvDtype::ALL {
            for block_size in [1, 7, 16, 4096] {
                let report =
                    planned(&SizingOptions { model: model.clone(), kv_dtype, block_size, ..options("llama-13b") });
                let row = UNIT_BYTES * u64::from(kv_dtype.row_units(model.head_dim));
                let token = 2 * row * u64::from(model.num_layers) * u64::from(model.num_kv_heads);
                assert_eq!((report.bytes.token, report.bytes.sequence), (token, 4096 * token));
                assert_eq!(report.bytes.token, model.kv_bytes_per_token(kv_dtype));
                assert_eq!(u64::from(report.num_blocks), 26_000_000_000 / (token * u64::from(block_size)));
            }
        }
    }
}

/// Set to 1 to write the files in `tests/golden/plan` anew; look at the difference.
const REGENERATE: &str = "PAGED_ATTENTION_REGENERATE";

#[test]
fn every_built_in_model_has_its_published_plan() {
    for model in Model::BUILT_IN {
        let name = format!("tests/golden/plan/{}.txt", model.name);
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let options = SizingOptions {
            max_seq_len: model.max_seq_len,
            model,
            kv_dtype: KvDtype::F16,
            block_size: 16,
            budget_bytes: 26_000_000_000,
            lens: Vec::new(),
            logs: Vec::new(),
            devices: Vec::new(),
        };
        let text = page::without_devices(&plan(&options, String::new()).expect("a plan")).to_text() + "\n";
        if std::env::var_os(REGENERATE).is_some_and(|value| value == "1") {
            std::fs::write(&path, &text).expect("the file can be written");
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(text, expected, "{}; {REGENERATE}=1 writes it anew", path.display());
    }
}
