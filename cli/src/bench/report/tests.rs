use super::page::results;
use super::*;
use serde_json::json;

mod recorded;

fn report() -> Report {
    let adapter = Adapter {
        name: "llvmpipe (LLVM 15.0.6, 256 bits)".into(),
        backend: "Vulkan".into(),
        driver: "llvmpipe Mesa 22.3.6".into(),
        software: true,
        device_type: "Cpu".into(),
        wgpu_version: "30.0.2".into(),
    };
    let ceilings =
        Ceilings { read_gb_s: Some(8.5), copy_gb_s: Some(6.25), fma_gflop_s: Some(49.0), ..Ceilings::default() };
    let mut report = Report::new("paged-attention bench".into(), 7, adapter, ceilings);
    let paged = result(Mode::Paged, &[15_000.0, 16_000.0, 15_500.0]);
    let contiguous = result(Mode::Contiguous, &[15_000.0, 12_800.0, 15_500.0]);
    report.pairs.extend(Pair::of(&paged, &contiguous));
    report.results = vec![paged, contiguous];
    report
}

fn result(mode: Mode, samples_us: &[f64]) -> CaseResult {
    CaseResult {
        model: "llama-3-8b".into(),
        num_q_heads: 32,
        num_kv_heads: 8,
        head_dim: 128,
        batch: 8,
        context: 2048,
        tokens: 16_384,
        queries: 8,
        mode,
        input_hash: "0123456789abcdef".into(),
        samples_us: samples_us.to_vec(),
        median_us: 15_500.0,
        p25_us: 15_250.0,
        p75_us: 15_750.0,
        wall_median_us: Some(15_900.0),
        bytes: 67_371_008,
        gb_s: 4.346,
        fraction_of_read: Some(0.5113),
        flops: 268_435_456,
        gflop_s: Some(17.318),
        max_abs_error: 3.2e-6,
        ..CaseResult::sample()
    }
}

#[test]
fn the_json_has_the_published_names() {
    let json: serde_json::Value = serde_json::from_str(&report().to_json().unwrap()).unwrap();
    let expected = json!({
        "schema": 1,
        "kind": "bench",
        "version": env!("CARGO_PKG_VERSION"),
        "command": "paged-attention bench",
        "seed": 7,
        "adapter": {
            "name": "llvmpipe (LLVM 15.0.6, 256 bits)", "backend": "Vulkan", "driver": "llvmpipe Mesa 22.3.6",
            "software": true, "device_type": "Cpu", "wgpu_version": "30.0.2",
        },
        "profile": "default",
        "ceilings": {
            "read_gb_s": 8.5, "host_read_gb_s": null, "host_fma_gflop_s": null, "copy_gb_s": 6.25, "fma_gflop_s": 49.0, "dispatch_us": null,
        },
        "pairs": [{
            "op": "decode", "model": "llama-3-8b", "kv_dtype": "f16", "block_size": 16, "batch": 8, "context": 2048,
            "workload": "uniform", "paged_over_contiguous": 1.0, "samples": 3,
        }],
        "figures": [],
        "failures": [],
        "waiting_share": null,
        "notes": [],
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&json[name], value, "{name}");
    }
    assert_eq!(json.as_object().unwrap().len(), 14);
    assert_eq!(
        json["results"][0],
        json!({
            "op": "decode", "model": "llama-3-8b", "num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128,
            "kv_dtype": "f16", "block_size": 16, "batch": 8, "context": 2048, "tokens": 16384, "mode": "paged",
            "queries": 8, "variant": "plain", "shared_prefix": 0,
            "workload": "uniform", "input_hash": "0123456789abcdef", "timing": "gpu",
            "samples_us": [15000.0, 16000.0, 15500.0], "median_us": 15500.0, "p25_us": 15250.0, "p75_us": 15750.0,
            "wall_median_us": 15900.0, "cold_us": null, "bytes": 67371008, "gb_s": 4.346,
            "fraction_of_read": 0.5113, "max_abs_error": 3.2e-6,
            "flops": 268435456, "gflop_s": 17.318, "fraction_of_fma": null,
        })
    );
    assert_eq!(json["results"][1]["mode"], "contiguous");
}

#[test]
fn the_json_reads_back_equal() {
    let mut report = report();
    report.head.seed = Some(u64::MAX);
    report.failures.push(failure());
    assert_eq!(serde_json::from_str::<Report>(&report.to_json().unwrap()).unwrap(), report);
}

fn failure() -> Failure {
    Failure {
        op: "append".into(),
        model: "qwen2-7b".into(),
        batch: 3,
        context: 40,
        mode: Mode::Contiguous,
        error: "element 5: got NaN".into(),
    }
}

#[test]
fn a_number_that_json_cannot_hold_is_an_error() {
    for broken in [f64::NAN, f64::INFINITY] {
        let mut report = report();
        report.results[0].max_abs_error = broken;
        assert!(report.to_json().is_err());
    }
}

#[test]
fn pairs_are_made_of_neighbouring_runs_of_one_case() {
    let paged = result(Mode::Paged, &[10.0, 22.0, 50.0, 1.0]);
    let contiguous = result(Mode::Contiguous, &[10.0, 20.0, 40.0]);
    // Quotients 1, 1.1 and 1.25; the fourth run has no partner.
    let pair = Pair::of(&paged, &contiguous).unwrap();
    assert_eq!((pair.paged_over_contiguous, pair.samples), (1.1, 3));
    assert_eq!(Pair::of(&contiguous, &paged), None);
    assert_eq!(Pair::of(&paged, &result(Mode::Contiguous, &[])), None);
    for change in [
        |r: &mut CaseResult| r.context = 2047,
        |r: &mut CaseResult| r.kv_dtype = "f32".into(),
        |r: &mut CaseResult| r.input_hash = "other".into(),
    ] {
        let mut other = contiguous.clone();
        change(&mut other);
        assert_eq!(Pair::of(&paged, &other), None);
    }
}

#[test]
fn the_text_shows_device_cases_and_failures() {
    let mut report = report();
    report.results[1].timing = Timing::Wall;
    report.results[1].fraction_of_read = None;
    report.results[1].workload = "azure-conv".into();
    report.failures.push(failure());
    let text = report.page().to_text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..3],
        [
            "adapter: llvmpipe (LLVM 15.0.6, 256 bits) (Cpu) | backend: Vulkan | driver: llvmpipe Mesa 22.3.6 | wgpu 30.0.2",
            "ceilings: read 8.5 GB/s | copy 6.25 GB/s | multiply-add 49 GFLOP/s | empty dispatch not measured",
            "SOFTWARE ADAPTER: these are CPU numbers, not a GPU's",
        ]
    );
    // 8 tokens in 15.5 ms are 516 a second.
    for (mode, expected) in [
        (
            " paged ",
            "decode llama-3-8b f16, blocks of 16 8 × 2,048 paged 15.5 ms 15.25 ms–15.75 ms 516.1 4.346 GB/s 51.1 % 1.000 3.2e-6",
        ),
        (
            " contiguous ",
            "decode llama-3-8b f16 8 × ≤2,048 azure-conv contiguous 15.5 ms wall 15.25 ms–15.75 ms 516.1 4.346 GB/s – – 3.2e-6",
        ),
    ] {
        assert!(words(&lines).contains(&expected.to_owned()), "{mode}: {text}");
    }
    assert!(words(&lines).contains(&"append qwen2-7b 3 × 40 contiguous element 5: got NaN".to_owned()), "{text}");
    assert!(text.contains("failed cases, which have no numbers: 1"), "{text}");
}

/// Lines of tables without their rules.
fn words(lines: &[&str]) -> Vec<String> {
    let words = |line: &&str| line.split([' ', '|']).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    lines.iter().map(words).collect()
}

#[test]
fn a_prompt_is_held_against_the_multiply_adds() {
    let mut report = report();
    report.results.truncate(1);
    let result = &mut report.results[0];
    (result.op, result.variant, result.queries) = ("prefill".into(), "window 256".into(), 16_384);
    (result.gflop_s, result.fraction_of_fma) = (Some(24.5), Some(0.5));
    let table = results(&report).to_string();
    // 16,384 queries in 15.5 ms.
    for words in ["| prefill, window 256 |", " 1,057,032 |", " 24.5 GFLOP/s |", " 50.0 % |"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let result = &mut report.results[0];
    (result.op, result.variant, result.queries) = ("decode".into(), "plain".into(), 32);
    assert!(results(&report).to_string().contains("| decode of 32 queries |"));
}

#[test]
fn figures_are_told_with_what_was_asked() {
    let figure = |measured, limit| Figure { what: "int8 over f16".into(), measured, limit, samples: 41 };
    let figures = [
        figure(1.05, Some(Limit::AtMost(1.1))),
        figure(2.5, Some(Limit::AtLeast(3.0))),
        figure(f64::NAN, Some(Limit::AtMost(1.1))),
        figure(0.000_12, None),
    ];
    assert_eq!(figures.each_ref().map(Figure::met), [Some(true), Some(false), Some(false), None]);
    let text = super::page::figures(&figures).to_string();
    assert_eq!(
        words(&text.lines().skip(2).collect::<Vec<_>>()),
        [
            "int8 over f16 at most 1.1 met 1.050 41",
            "int8 over f16 at least 3 MISSED 2.500 41",
            "int8 over f16 at most 1.1 MISSED NaN 41",
            "int8 over f16 – – 1.2e-4 41",
        ]
    );
    let json = serde_json::to_value(&figures[0]).unwrap();
    assert_eq!(json, json!({"what": "int8 over f16", "measured": 1.05, "limit": {"at_most": 1.1}, "samples": 41}));
    assert_eq!(serde_json::from_value::<Figure>(json).unwrap(), figures[0]);
}

#[test]
fn a_report_from_before_a_field_is_read() {
    let mut json = serde_json::to_value(report()).unwrap();
    for field in ["figures", "notes", "profile", "waiting_share"] {
        assert!(json.as_object_mut().unwrap().remove(field).is_some(), "{field}");
    }
    for field in ["host_read_gb_s", "host_fma_gflop_s"] {
        assert!(json["ceilings"].as_object_mut().unwrap().remove(field).is_some(), "{field}");
    }
    let result = json["results"][0].as_object_mut().unwrap();
    for field in ["queries", "variant", "shared_prefix", "flops", "gflop_s", "fraction_of_fma"] {
        assert!(result.remove(field).is_some(), "{field}");
    }
    let old: Report = serde_json::from_value(json).unwrap();
    assert_eq!((old.results[0].queries, &*old.results[0].variant, old.figures.len()), (0, "", 0));
    assert_eq!((&*old.profile, old.waiting_share), ("default", None));
}

#[test]
fn a_gpu_is_not_called_software() {
    let mut report = report();
    report.adapter.software = false;
    assert!(!report.page().to_text().contains("SOFTWARE"));
}

#[test]
fn an_append_counts_its_own_tokens() {
    let mut report = report();
    report.results.truncate(1);
    report.results[0].op = "append".into();
    // 16,384 tokens in 15.5 ms.
    assert!(results(&report).to_string().contains(" 1,057,032 "));
}
