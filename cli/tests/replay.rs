//! `paged-attention replay`, as its users meet it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use serde_json::Value;
use wgpu_paged_attention::testkit::{published_log, test_device};

fn run(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paged-attention"));
    command.arg("replay").args(args).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeded(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {:?}\n{}", output.status, text(&output.stderr));
    text(&output.stdout)
}

fn refused(args: &[&str], words: &[&str]) {
    let output = run(args);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?}");
    for word in words {
        assert!(error.contains(word), "{args:?}: {word:?} is not in {error}");
    }
}

/// A file of this test's own.
fn file(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replay-{name}"));
    let _ = std::fs::remove_file(&path);
    path
}

fn log(name: &str, content: impl AsRef<[u8]>) -> String {
    let path = file(name);
    std::fs::write(&path, content).expect("the directory can be written");
    path.to_str().unwrap().to_owned()
}

/// The report of a replay, by its JSON.
fn replay(name: &str, args: &[&str]) -> Value {
    let path = file(&format!("{name}.json"));
    succeeded(&[args, &["--json", path.to_str().unwrap()]].concat());
    serde_json::from_str(&std::fs::read_to_string(&path).expect("it was written")).expect("the file is JSON")
}

fn number(report: &Value, path: &str) -> f64 {
    report.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} is a number"))
}

const SMALL: [&str; 4] = ["--workload", "azure-conv", "--requests", "500"];

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let files = ["a.json", "a.csv", "a.html"].map(file);
    let [json, csv, html] = files.each_ref().map(|path| path.to_str().unwrap());
    let args = [&SMALL[..], &["--json", json, "--csv", csv, "--report", html]].concat();
    let once = (succeeded(&args), files.each_ref().map(|path| std::fs::read(path).unwrap()));
    let again = (succeeded(&args), files.each_ref().map(|path| std::fs::read(path).unwrap()));
    assert!(once == again, "two runs differ");
    let other = (succeeded(&[&args[..], &["--seed", "2"]].concat()), std::fs::read(&files[0]).unwrap());
    assert_ne!(once.0, other.0);
    assert_ne!(once.1[0], other.1);

    let (table, csv) = (once.0, text(&once.1[1]));
    for words in ["utilisation, mean", "time to first token", "preemptions", "paged over contiguous"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    assert!(csv.starts_with("metric,contiguous,paged\n"), "{csv}");
    assert!(csv.contains("\nutilisation.mean,0."), "{csv}");
    let html = text(&once.1[2]);
    assert!(html.contains("<svg") && html.contains("--workload azure-conv"), "{html}");
}

#[test]
fn requests_that_overlap_by_hand() {
    // Three at once, each of 20 tokens and 3 to generate; a contiguous cache of 64 + 64 tokens has room for two.
    let mut rows = "arrival_s,prompt_tokens,output_tokens\n".to_owned();
    (0..3).for_each(|_| writeln!(rows, "0,20,3").unwrap());
    let log = log("three.csv", rows);
    // gemma-3-270m in f16: 2 x 256 elements x 18 layers are 18,432 bytes a token; 128 tokens.
    let budget = (18_432 * 128).to_string();
    let report = replay(
        "three",
        &["--trace", &log, "--model", "gemma-3-270m", "--budget", &budget, "--max-len", "64", "--step-ms", "10"],
    );
    assert_eq!(number(&report, "/contiguous/capacity_tokens"), 128.0);
    assert_eq!(number(&report, "/contiguous/steps"), 6.0);
    assert_eq!(number(&report, "/paged/steps"), 3.0);
    assert_eq!(number(&report, "/contiguous/concurrency/max"), 2.0);
    assert_eq!(number(&report, "/paged/concurrency/max"), 3.0);
    // The third waits for three steps of 10 ms.
    assert_eq!(number(&report, "/contiguous/queueing_s/max"), 0.03);
    // 20, 21 and 22 of 32 tokens in blocks of 16, of 64 in one piece.
    assert!((number(&report, "/paged/utilisation/mean") - 21.0 / 32.0).abs() < 1e-6);
    assert!((number(&report, "/contiguous/utilisation/mean") - 21.0 / 64.0).abs() < 1e-6);
}

#[test]
fn one_side_alone_has_no_comparison() {
    let table = succeeded(&[&SMALL[..], &["--only", "paged"]].concat());
    assert!(!table.contains("contiguous"), "{table}");
    let report = replay("contiguous", &[&SMALL[..], &["--only", "contiguous"]].concat());
    assert!(report["paged"].is_null() && report["contiguous"].is_object());
}

#[test]
fn bad_logs_and_options_are_refused_with_file_line_and_field() {
    const HEADER: &str = "arrival_s,prompt_tokens,output_tokens\n";
    let unsorted = log("unsorted.csv", format!("{HEADER}1,1,1\n0.5,1,1\n"));
    refused(&["--trace", &unsorted], &["unsorted.csv:3", "arrival_s", "0.5"]);
    let negative = log("negative.csv", format!("{HEADER}-1,1,1\n"));
    refused(&["--trace", &negative], &["negative.csv:2", "arrival_s", "-1"]);
    refused(&["--trace", "nowhere.csv"], &["nowhere.csv"]);
    refused(&["--budget", "100"], &["--budget is 100", "13107200"]);
    refused(&["--budget", "many"], &["--budget", "many"]);
    for ms in ["0", "1e-9", "NaN", "inf", "1e7"] {
        refused(&["--step-ms", ms], &["--step-ms", "from 0.001 to 1000000"]);
    }
    // Options that would do nothing.
    let unused = log("unused.json", "");
    refused(&["--save-calibration", &unused], &["--save-calibration has no effect without --clock calibrated"]);
    refused(&["--attention-only"], &["--attention-only has no effect without --clock calibrated"]);
    refused(&["--execute", "--only", "contiguous"], &["--execute", "leave out --only contiguous"]);
    refused(&["--clock", "step", "--calibration", &unused], &["--calibration has no effect with --clock step"]);
    refused(&["--workload", "sharegpt", "--tokens-per-id", "16"], &["--tokens-per-id"]);
    refused(&["--workload", "sharegpt", "--time-unit", "ms"], &["--time-unit"]);
    refused(&["--execute", "--execute-layers", "41"], &["--execute-layers 41", "llama-13b has 40"]);
    let plain = log("plain-ids.csv", format!("{HEADER}0,30,4\n"));
    refused(
        &["--trace", &plain, "--tokens-per-id", "16"],
        &["--tokens-per-id has no effect on a log without hash_ids"],
    );
    let path = Path::new(&unused);
    let other_name = path.with_file_name(".").join(path.file_name().unwrap());
    let other_name = other_name.to_str().unwrap();
    for option in ["--csv", "--report"] {
        refused(&["--json", &unused, option, other_name], &[option, "--json goes there already"]);
    }
    let saves = ["--clock", "calibrated", "--save-calibration"];
    refused(&[&["--json", &unused], &saves[..], &[other_name]].concat(), &["--json goes there already"]);
    refused(&["--model", "llama-99"], &["llama-99", "llama-13b"]);
    refused(&["--workload", "azure-conv,sharegpt"], &["one name"]);
    refused(&["--calibration", "nowhere.json"], &["nowhere.json"]);
    refused(&["--json", "/nowhere/at/all.json"], &["--json", "cannot be written"]);

    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    (0..5000).for_each(|row| gz.write_all(format!("{row},{},7\n", row * 37 % 911).as_bytes()).unwrap());
    let whole = gz.finish().unwrap();
    let cut = log("cut.csv.gz", &whole[..whole.len() / 2]);
    refused(&["--trace", &cut], &["cut.csv.gz"]);
}

/// Not every file system takes such a name.
#[cfg(target_os = "linux")]
#[test]
fn a_name_that_is_no_text_is_the_name_of_a_file_all_the_same() {
    use std::os::unix::ffi::OsStrExt;

    let plain = log("plain.csv", "arrival_s,prompt_tokens,output_tokens\n0,30,4\n");
    let path = std::path::Path::new(&plain).with_file_name(std::ffi::OsStr::from_bytes(b"log-\xff.csv"));
    std::fs::copy(&plain, &path).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_paged-attention"));
    let output = command.args(["replay", "--only", "paged", "--trace"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("log-\u{fffd}.csv, 1 request,"));
}

#[test]
fn bad_rows_are_skipped_and_counted_if_asked_for() {
    let rows = "arrival_s,prompt_tokens,output_tokens\n0,30,4\n1,x,4\n2,30\n3,30,4\n";
    let log = log("mixed.csv", rows);
    refused(&["--trace", &log], &["mixed.csv:3", "prompt_tokens"]);
    let report = replay("mixed", &["--trace", &log, "--skip-bad"]);
    assert_eq!((number(&report, "/log/requests"), number(&report, "/log/skipped")), (2.0, 2.0));
    assert_eq!(number(&report, "/paged/finished"), 2.0);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_with_what_there_is() {
    use std::process::Stdio;
    use std::time::Duration;

    let files = ["stopped.json", "stopped.csv", "stopped.html"].map(file);
    let [json, csv, html] = files.each_ref().map(|path| path.to_str().unwrap());
    // Long enough, if it is let.
    let args = ["replay", "--requests", "1000000", "--only", "paged", "--json", json, "--csv", csv, "--report", html];
    let mut command = Command::new(env!("CARGO_BIN_EXE_paged-attention"));
    let replay = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    // Until the requests are drawn, Ctrl-C ends it like any other program.
    std::thread::sleep(Duration::from_secs(6));
    let stopped = Command::new("kill").args(["-INT", &replay.id().to_string()]).status().expect("a Unix has kill");
    assert!(stopped.success());
    let output = replay.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("interrupted: the numbers are those so far"));
    let report: Value = serde_json::from_slice(&std::fs::read(&files[0]).unwrap()).expect("the file is JSON");
    assert_eq!(report["interrupted"], true);
    assert!(number(&report, "/paged/finished") > 0.0 && number(&report, "/paged/unfinished") > 0.0);
    assert!(std::fs::read(&files[1]).unwrap().starts_with(b"metric,"));
    assert!(text(&std::fs::read(&files[2]).unwrap()).contains("interrupted"));
}

#[test]
fn the_first_steps_are_executed_and_compared() {
    if test_device().is_none() {
        return;
    }
    let log = log("execute.csv", "arrival_s,prompt_tokens,output_tokens\n0,40,4\n0,17,6\n0.05,33,3\n");
    let report = replay(
        "execute",
        &[
            "--trace",
            &log,
            "--model",
            "gemma-3-270m",
            "--budget",
            "4MB",
            "--max-len",
            "64",
            "--execute",
            "--execute-layers",
            "2",
        ],
    );
    assert_eq!(number(&report, "/executed/layers"), 2.0);
    // 40 + 17 + 33 prompt tokens, and the K and V of all generated ones but the last of each.
    assert_eq!(number(&report, "/executed/tokens"), 90.0 + 3.0 + 5.0 + 2.0);
    assert_eq!(number(&report, "/executed/steps"), number(&report, "/paged/steps"));
    assert!(number(&report, "/executed/checked_rows") > 50.0);
    assert_eq!(number(&report, "/executed/wrong_rows"), 0.0);
}

#[test]
fn a_real_log_is_served_as_paging_promises() {
    let Some(log) = published_log("azure2023_conv.csv") else { return };
    let start = Instant::now();
    let report = replay("azure", &["--trace", &log, "--model", "llama-13b", "--budget", "26GB", "--max-len", "4096"]);
    let most_s = if cfg!(debug_assertions) { 100 } else { 10 };
    assert!(start.elapsed().as_secs() < most_s, "19,366 requests take {:?}", start.elapsed());
    let contiguous = number(&report, "/contiguous/utilisation/mean");
    assert!((0.2..0.4).contains(&contiguous), "{contiguous}");
    assert!(number(&report, "/paged/utilisation/mean") >= 0.95);
    let gain = |path: &str| number(&report, &format!("/paged{path}")) / number(&report, &format!("/contiguous{path}"));
    assert!(gain("/concurrency/mean") >= 2.0 && gain("/output_tokens_per_s") >= 2.0);
    assert_eq!(number(&report, "/paged/finished"), number(&report, "/contiguous/finished"));
}

#[test]
fn long_prompts_are_found_in_a_large_pool() {
    let Some(log) = published_log("mooncake_conversation.csv") else { return };
    // Blocks of 128 tokens, for the host keeps the tokens of nearly 100 million cached places.
    let args = ["--trace", &log, "--max-len", "131072", "--budget", "200TB", "--block-size", "128", "--only", "paged"];
    let report = replay("mooncake", &args);
    let (found, infinite) =
        (number(&report, "/paged/prefix/hit_share"), number(&report, "/paged/prefix/infinite_share"));
    assert!((infinite - 0.374).abs() < 0.001, "{infinite}");
    assert!((found - infinite).abs() < 0.02, "{found} of {infinite}");
}

#[test]
fn a_large_pool_finds_what_an_infinite_one_would() {
    let Some(log) = published_log("sharegpt_multiturn_blk16.csv") else { return };
    let hits = |budget: &str| {
        let report = replay("hits", &["--trace", &log, "--budget", budget, "--max-len", "8192", "--only", "paged"]);
        (number(&report, "/paged/prefix/hit_share"), number(&report, "/paged/prefix/infinite_share"))
    };
    let (large, infinite) = hits("3TB");
    assert!((infinite - 0.591).abs() < 0.001, "{infinite}");
    assert!((large - infinite).abs() < 0.02, "{large} of {infinite}");
    let (small, _) = hits("26GB");
    assert!(small < infinite - 0.1, "a small pool forgets: {small}");
}

/// The same requests, one a second, in the fields of a Qwen-Bailian trace and in seconds by name.
fn one_a_second() -> (String, String) {
    let (mut ids, mut plain) = (String::new(), "arrival_s,prompt_tokens,output_tokens\n".to_owned());
    for i in 0..600_usize {
        let (time, prompt, output) =
            (i as f64 + (i * 37 % 100) as f64 / 200.0, 100 + i * 373 % 1900, 50 + i * 97 % 250);
        let hash_ids: Vec<usize> = (i * 1000..i * 1000 + prompt.div_ceil(16)).collect();
        writeln!(
            ids,
            r#"{{"chat_id": {i}, "parent_chat_id": -1, "timestamp": {time:.3}, "input_length": {prompt}, "output_length": {output}, "type": "text", "turn": 1, "hash_ids": {hash_ids:?}}}"#
        )
        .unwrap();
        writeln!(plain, "{time:.3},{prompt},{output}").unwrap();
    }
    (log("bailian.jsonl", ids), log("plain.csv", plain))
}

#[test]
fn x01_a_log_in_seconds_is_served_in_seconds() {
    let (ids, plain) = one_a_second();
    let last = |args: &[&str]| succeeded(args).lines().last().unwrap().to_owned();
    let expected = last(&["--trace", &plain]);
    assert!(expected.contains("1.00 ×") && expected.matches("1.00 ×").count() == 2, "{expected}");
    assert_eq!(last(&["--trace", &ids]), expected);
    assert_eq!(last(&["--trace", &ids, "--tokens-per-id", "16", "--time-unit", "s"]), expected);
    let table = succeeded(&["--trace", &ids]);
    assert!(table.contains("bailian.jsonl, 600 requests, times in s (the field chat_id)"), "{table}");
    let report = replay("unit", &["--trace", &plain]);
    assert_eq!(
        (&report["log"]["time_unit"], &report["log"]["time_unit_by"]),
        (&"s".into(), &"the name of arrival_s".into())
    );
    // Asked for, it is taken, and said to be more than any device serves.
    let output = run(&["--trace", &ids, "--time-unit", "ms", "--only", "paged"]);
    let warning = text(&output.stderr);
    assert!(output.status.success() && text(&output.stdout).contains("times in ms (--time-unit)"));
    for words in
        ["warning: replay-bailian.jsonl: ", "arrivals", "a second, read in ms, are beyond any device", "--time-unit"]
    {
        assert!(warning.contains(words), "{words}: {warning}");
    }
    refused(&["--trace", &plain, "--time-unit", "h"], &["--time-unit", "ms"]);
}
