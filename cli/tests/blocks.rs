//! `paged-attention blocks`, as its users meet it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use wgpu_paged_attention::testkit::{published_log, test_device};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paged-attention"));
    command.arg("blocks").args(args).output().expect("the binary starts")
}

fn succeeded(args: &[&str]) -> String {
    let output = run(args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {:?}\n{}", output.status, text(&output.stderr));
    text(&output.stdout)
}

/// A file of this test's own.
fn file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("blocks-{name}"));
    let _ = std::fs::remove_file(&path);
    path
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("the file is there")
}

/// The result of a study, by its JSON.
fn study(name: &str, args: &[&str]) -> Value {
    let path = file(name);
    succeeded(&[args, &["--json", path.to_str().unwrap()]].concat());
    serde_json::from_str(&read(&path)).expect("the file is JSON")
}

fn row(study: &Value, block_size: u64) -> Value {
    let rows = study["workloads"][0]["rows"].as_array().unwrap();
    rows.iter().find(|row| row["block_size"] == block_size).expect("the size is there").clone()
}

#[test]
fn what_is_only_counted_is_the_same_every_time() {
    let (json, csv) = (file("same.json"), file("same.csv"));
    let args = ["--no-measure", "--json", json.to_str().unwrap(), "--csv", csv.to_str().unwrap()];
    let once = (succeeded(&args), read(&json), read(&csv));
    assert_eq!((succeeded(&args), read(&json), read(&csv)), once);
    let (table, json, csv) = once;
    for words in
        ["short-chat: 20,000 requests", "azure-conv", "entries at 8,192", "recommended: blocks of", "not measured"]
    {
        assert!(table.contains(words), "{words:?} is not in {table}");
    }
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&report["kind"], &report["adapter"]), (&"blocks".into(), &Value::Null));
    assert_eq!(report["recommendation"]["block_size"], 16, "{}", report["recommendation"]);
    assert_eq!(csv.lines().count(), 1 + 6 * 9);
}

#[test]
fn decode_times_are_measured_with_every_size() {
    if test_device().is_none() {
        return;
    }
    let args = ["--workload", "short-chat", "--requests", "500", "--block-size", "8,16", "--model", "gemma-3-270m"];
    let report = study("measured.json", &[&args[..], &["--time-budget", "1"]].concat());
    assert!(report["adapter"]["name"].is_string());
    for block_size in [8, 16] {
        let decode = &row(&report, block_size)["decode"];
        assert!(decode["median_us"].as_f64().unwrap() > 0.0, "{decode}");
        let relative = decode["relative"].as_f64().unwrap();
        assert!((0.2..5.0).contains(&relative), "{decode}");
    }
    assert_eq!(row(&report, 16)["decode"]["relative"], 1.0);
}

#[test]
fn wrong_usage_is_refused() {
    for (args, words) in [
        (&["--workload", "chat"][..], "azure-conv"),
        (&["--trace", "no/such/log.csv"], "--trace no/such/log.csv"),
        (&["--block-size", "0"], "--block-size"),
        (&["--no-measure", "--adapter", "0"], "--no-measure"),
        (&["--no-measure", "--json", "no/such/directory/x.json"], "--json no/such/directory/x.json"),
        (&["--no-measure", "--csv", "no/such/directory/x.csv"], "--csv no/such/directory/x.csv"),
        (
            &["--no-measure", "--max-len", "1", "--workload", "mooncake-conv", "--requests", "1"],
            "mooncake-conv: no request, of 1 in all",
        ),
    ] {
        let output = run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: {words:?} is not in {error}");
    }
}

#[test]
fn real_conversations_fill_their_blocks() {
    let Some(path) = published_log("azure2023_conv.csv") else { return };
    let report = study("azure.json", &["--no-measure", "--trace", &path, "--max-len", "4096"]);
    let utilisation = row(&report, 16)["utilisation"].as_f64().unwrap();
    assert!((0.99..1.0).contains(&utilisation), "{utilisation}");
    let contiguous = report["workloads"][0]["contiguous_utilisation"].as_f64().unwrap();
    assert!((0.2..0.5).contains(&contiguous), "{contiguous}");
}

#[test]
fn larger_blocks_find_fewer_prefixes() {
    let Some(path) = published_log("sharegpt_multiturn_blk16.csv") else { return };
    let report = study("multiturn.json", &["--no-measure", "--trace", &path]);
    let hits = |block_size| row(&report, block_size)["prefix_hit_share"].as_f64().unwrap();
    // 59.1 % were counted when the log was made, in blocks of 16.
    assert!((hits(16) - 0.591).abs() < 0.005, "{}", hits(16));
    assert!(hits(256) < hits(64) && hits(64) < hits(16) && hits(16) <= hits(1));
}
