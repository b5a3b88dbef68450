//! `paged-attention compare`, as its users meet it: exit statuses, refusals, and reports without samples.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use serde_json::{Value, json};

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("compare-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("the target directory can be written");
    path
}

fn write(path: PathBuf, text: impl AsRef<[u8]>) -> String {
    std::fs::write(&path, text).expect("the target directory can be written");
    path.to_str().expect("the target directory has a plain name").to_owned()
}

fn compare(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_paged-attention")).arg("compare").args(args).output().expect("the binary starts")
}

#[track_caller]
fn ends(args: &[&str], status: i32) -> (String, String) {
    let output = compare(args);
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(output.status.code(), Some(status), "{args:?}: {out}{err}");
    (out, err)
}

#[track_caller]
fn refused(args: &[&str], words: &[&str]) {
    let (out, err) = ends(args, 2);
    assert!(out.is_empty() && err.starts_with("error: "), "{out}{err}");
    words.iter().for_each(|word| assert!(err.contains(word), "{word:?} is not in {err}"));
}

/// A benchmark of one case whose samples lie within half a percent of `us`.
fn bench(us: f64) -> Value {
    let samples: Vec<f64> = (0..11).map(|i| us * (1.0 + 0.001 * f64::from(i - 5))).collect();
    json!({
        "schema": 1, "command": "paged-attention bench", "seed": 1,
        "adapter": {"name": "card", "backend": "Vulkan", "driver": "1", "software": false, "device_type": "DiscreteGpu",
            "wgpu_version": "30.0"},
        "ceilings": {"read_gb_s": 100.0, "copy_gb_s": null, "fma_gflop_s": null, "dispatch_us": null},
        "results": [{
            "op": "decode", "model": "m", "num_q_heads": 1, "num_kv_heads": 1, "head_dim": 8, "kv_dtype": "f16",
            "block_size": 16, "batch": 1, "context": 64, "tokens": 64, "mode": "paged", "workload": "uniform",
            "input_hash": "0", "timing": "gpu", "samples_us": samples, "median_us": us, "p25_us": us, "p75_us": us,
            "wall_median_us": null, "cold_us": null, "bytes": 1, "gb_s": 1.0, "fraction_of_read": null,
            "max_abs_error": 0.0,
        }],
        "pairs": [], "failures": [],
    })
}

#[test]
fn slower_beyond_noise_and_percent_ends_with_status_1() {
    let directory = directory("slower");
    let a = write(directory.join("a.json"), bench(100.0).to_string());
    let b = write(directory.join("b.json"), bench(110.0).to_string());
    let (table, _) = ends(&[&a, &b], 0);
    for word in ["1 SLOWER", "1.100", "decode m 1 × 64 paged f16", "95 %"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    let (_, error) = ends(&[&a, &b, "--fail-on-slower", "5"], 1);
    assert!(error.contains("1 cases of B"), "{error}");
    ends(&[&a, &b, "--fail-on-slower", "15"], 0);
    ends(&[&b, &a, "--fail-on-slower", "0"], 0);
    let (json, csv) = (directory.join("out.json"), directory.join("out.csv"));
    ends(&[&a, &b, "--json", json.to_str().unwrap(), "--csv", csv.to_str().unwrap()], 0);
    let json: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!((&json["kind"], &json["compared"]), (&json!("compare"), &json!("bench")));
    assert_eq!(json["rows"][0]["verdict"], json!("slower"));
    assert_eq!(std::fs::read_to_string(csv).unwrap().lines().count(), 2);
}

#[test]
fn a_file_that_is_no_report_is_refused_with_line_and_field() {
    let directory = directory("refused");
    let good = write(directory.join("good.json"), bench(1.0).to_string());
    let missing = directory.join("missing.json");
    refused(&[&good, missing.to_str().unwrap()], &["missing.json", "cannot read"]);
    refused(&[&good, directory.to_str().unwrap()], &["cannot read"]);
    let pretty = serde_json::to_string_pretty(&bench(1.0)).unwrap();
    let mut wrong = bench(1.0);
    wrong["results"][0]["batch"] = json!("many");
    let mut less = bench(1.0);
    less["results"][0].as_object_mut().unwrap().remove("median_us");
    let mut old = bench(1.0);
    old["schema"] = json!(2);
    let mut other = bench(1.0);
    other["kind"] = json!("check");
    for (text, words) in [
        (String::new(), &["bad.json:1:", "EOF"][..]),
        ("hello".to_owned(), &["bad.json:1:1", "expected value"]),
        (pretty[..pretty.len() / 2].to_owned(), &["bad.json:", "EOF"]),
        (format!("{pretty}}}"), &["bad.json:", "trailing"]),
        ("[1, 2]".to_owned(), &["bad.json:1:"]),
        ("{}".to_owned(), &["schema"]),
        (serde_json::to_string_pretty(&wrong).unwrap(), &["results[0].batch", "\"many\"", "u32"]),
        (less.to_string(), &["results[0]", "median_us"]),
        (old.to_string(), &["schema is 2"]),
        (other.to_string(), &["\"check\"", "bench, plan, replay and blocks"]),
    ] {
        let bad = write(directory.join("bad.json"), text);
        refused(&[&good, &bad], words);
        refused(&[&bad, &good], &["bad.json"]);
    }
    let bad = write(directory.join("bad.json"), b"{\n\"schema\": \xff}");
    refused(&[&good, &bad], &["bad.json:2:11", "UTF-8"]);
    refused(&[&good, &good, "--fail-on-slower=-1"], &["--fail-on-slower", "0 or more"]);
    refused(&[&good, &good, "--json", "-"], &["--json", "stdout"]);
    let same = directory.join("same.out");
    refused(&[&good, &good, "--json", same.to_str().unwrap(), "--csv", same.to_str().unwrap()], &["--csv", "--json"]);
}

/// A replay of a small log, as the program writes it.
fn recorded_replay() -> Value {
    static REPORT: OnceLock<String> = OnceLock::new();
    let text = REPORT.get_or_init(|| {
        let directory = directory("recorded");
        let log = write(directory.join("log.csv"), "arrival_s,prompt_tokens,output_tokens\n0,20,12\n1,30,5\n");
        let json = directory.join("replay.json");
        let args = ["replay", "--clock", "step", "--trace", &log, "--json", json.to_str().unwrap()];
        let output = Command::new(env!("CARGO_BIN_EXE_paged-attention")).args(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(json).unwrap()
    });
    serde_json::from_str(text).unwrap()
}

/// A replay of the paged cache alone; the error of its clock in the fit, if it was calibrated.
fn replay(rate: f64, utilisation: f64, fit_error: Option<f64>) -> Value {
    let mut report = recorded_replay();
    report["contiguous"] = Value::Null;
    let clock = if fit_error.is_some() { "calibrated" } else { "step" };
    report["clock"]["kind"] = json!(clock);
    report["clock"]["fit_error_mean"] = json!(fit_error);
    report["clock"]["fit_error_max"] = json!(fit_error);
    let paged = &mut report["paged"];
    paged["requests_per_s"] = json!(rate);
    paged["utilisation"]["mean"] = json!(utilisation);
    paged["time_to_first_token_s"]["p95"] = json!(2.0 / rate);
    paged["timeline"][0]["time_s"] = json!(rate);
    report
}

/// The table, and the verdict on each case.
fn compared(directory: &Path, a: &Value, b: &Value) -> (String, BTreeMap<String, String>) {
    let [a, b] = [("a.json", a), ("b.json", b)].map(|(name, report)| write(directory.join(name), report.to_string()));
    let json = directory.join("out.json");
    let (table, _) = ends(&[&a, &b, "--json", json.to_str().unwrap()], 0);
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    let rows = json["rows"].as_array().unwrap().iter();
    (table, rows.map(|row| (text(row, "case"), text(row, "verdict"))).collect())
}

#[test]
fn replays_are_compared_exactly_or_within_the_error_of_their_clock() {
    let directory = directory("replay");
    let (table, verdicts) = compared(&directory, &replay(10.0, 0.9, None), &replay(9.9, 0.95, None));
    assert!(table.contains("any difference is exact"), "{table}");
    for (case, verdict) in [
        ("paged.requests_per_s", "slower"),
        ("paged.steps", "same"),
        ("paged.time_to_first_token_s.p95", "slower"),
        ("paged.utilisation.mean", "better"),
        ("paged.utilisation.p50", "same"),
    ] {
        assert_eq!(verdicts[case], verdict, "{case}");
    }
    assert!(!verdicts.keys().any(|case| case.contains("timeline") || case.contains("clock")), "{verdicts:?}");

    let modelled = replay(10.0, 0.9, Some(0.04));
    let (table, verdicts) = compared(&directory, &modelled, &replay(9.9, 0.95, Some(0.04)));
    assert!(table.contains("4.0 %"), "{table}");
    assert_eq!(verdicts["paged.requests_per_s"], "same");
    assert_eq!(verdicts["paged.utilisation.mean"], "better", "what is counted has no error");
    let (_, verdicts) = compared(&directory, &modelled, &replay(8.0, 0.9, Some(0.04)));
    assert_eq!(verdicts["paged.requests_per_s"], "slower", "a fifth is not noise");
    // Seconds of two kinds.
    let (table, verdicts) = compared(&directory, &modelled, &replay(8.0, 0.9, None));
    assert_eq!(verdicts["paged.requests_per_s"], "unclear");
    assert_eq!(verdicts["paged.utilisation.mean"], "same");
    assert!(table.contains("a cost model in A, equal steps in B"), "{table}");

    let a = write(directory.join("a.json"), modelled.to_string());
    let bench = write(directory.join("bench.json"), bench(1.0).to_string());
    refused(&[&a, &bench], &["replay", "bench", "one kind"]);
}

/// A study of block sizes whose decode step takes `us` with a spread of one in a hundred.
fn blocks(us: f64) -> Value {
    json!({
        "kind": "blocks", "schema": 1, "command": "paged-attention blocks", "version": "0.1.0", "seed": 1,
        "max_seq_len": 4096, "model": "llama-3-8b", "kv_format": "f16", "adapter": bench(1.0)["adapter"],
        "workloads": [{
            "name": "chat", "requests": 5, "cut": 0, "refused": 0, "skipped": 0, "mean_tokens": 145.0,
            "contiguous_utilisation": 0.04,
            "rows": [{
                "block_size": 16, "entries_at_max_len": 256, "fragmentation": 0.05, "utilisation": 0.95,
                "half_block_fragmentation": 0.05, "table_bytes_per_seq": 1024, "mean_blocks": 9.7,
                "prefix_hit_share": null, "published": null,
                "decode": {"median_us": us, "low_us": 0.99 * us, "high_us": 1.01 * us, "relative": 1.0, "noise": 0.02},
            }],
        }],
        "recommendation": null, "interrupted": false,
    })
}

#[test]
fn decode_times_of_block_sizes_have_noise() {
    let directory = directory("blocks");
    let decode = |verdicts: &BTreeMap<String, String>| {
        let times = verdicts.iter().filter(|(case, _)| case.contains("decode"));
        times.map(|(case, verdict)| (case.clone(), verdict.clone())).collect::<Vec<_>>()
    };
    for (us, verdict) in [(101.0, "same"), (120.0, "slower"), (80.0, "faster")] {
        let (table, verdicts) = compared(&directory, &blocks(100.0), &blocks(us));
        assert!(table.contains("95 %") && !table.contains("there is none"), "{table}");
        let case = |name: &str| format!("workloads[chat].rows[block_size 16].decode.{name}");
        let expected = [(case("median_us"), verdict.to_owned()), (case("relative"), "same".to_owned())];
        assert_eq!(decode(&verdicts), expected, "{us}");
    }
}

#[test]
fn reports_without_samples_are_checked_field_by_field() {
    let directory = directory("fields");
    let mut wrong = replay(1.0, 0.9, None);
    wrong["paged"]["steps"] = json!("many");
    let mut less = blocks(1.0);
    less["workloads"][0]["rows"][0].as_object_mut().unwrap().remove("utilisation");
    for (report, words) in [
        (wrong, &["paged.steps", "\"many\"", "u64"][..]),
        (less, &["workloads[0].rows[0]", "utilisation"]),
        (json!({"schema": 1, "kind": "plan"}), &["missing field"]),
    ] {
        let bad = write(directory.join("bad.json"), report.to_string());
        refused(&[&bad, &bad], &[&["bad.json:1:"], words].concat());
    }
}
