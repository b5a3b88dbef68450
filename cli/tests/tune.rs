//! `paged-attention tune` and the files that it saves, as users meet them.

use std::sync::OnceLock;

use serde_json::json;

use crate::program::{adapter, directory, has_keys, read_json, refused, succeeded, text};

/// A search that takes seconds.
const TINY: [&str; 5] = ["tune", "--quick", "--case", "1,256,2,1,8", "--save"];

/// What a search saved, made once; `None` without an adapter.
fn saved() -> Option<&'static str> {
    static SAVED: OnceLock<String> = OnceLock::new();
    adapter()?;
    Some(SAVED.get_or_init(|| {
        let file = directory("tune-saved").join("here.toml");
        succeeded(&[&TINY[..], &[text(&file)]].concat());
        std::fs::read_to_string(file).expect("it was saved")
    }))
}

#[test]
fn a_search_tells_what_it_tried_and_saves_what_it_found() {
    let Some(software) = adapter() else { return };
    let directory = directory("tune");
    let files = ["here.toml", "tune.json", "tune.csv"].map(|name| directory.join(name));
    let [toml, json, csv] = files.each_ref().map(|file| text(file));
    let table = succeeded(&[&TINY[..], &[toml, "--json", json, "--csv", csv, "--seed", "7"]].concat());
    assert!(table.contains("the device's own profile") && table.contains("decode 1 × 256"), "{table}");
    assert_eq!(table.contains("SOFTWARE ADAPTER"), software);
    let report = read_json(&files[1]);
    let keys = ["schema", "kind", "version", "command", "seed", "adapter"];
    has_keys(&report, &[&keys[..], &["seconds", "complete", "tried", "differences", "profile"]].concat());
    assert_eq!((&report["kind"], &report["complete"], &report["seed"]), (&json!("tune"), &json!(true), &json!(7)));
    for tried in report["tried"].as_array().expect("a list") {
        let outcome = tried["outcome"].as_str().expect("a text");
        assert!(!outcome.contains("WRONG") && !outcome.contains("refused"), "{tried}");
        assert!(tried["decode_over_default"].as_f64().is_some_and(|ratio| ratio > 0.0), "{tried}");
    }
    let rows = std::fs::read_to_string(&files[2]).expect("it was written");
    assert!(rows.is_empty() || rows.starts_with("setting,differences,decode_over_default,"), "{rows}");
    let profile = std::fs::read_to_string(&files[0]).expect("it was saved");
    for words in
        ["version = \"", "adapter = \"", "[settings]\nlane_comm = \"", "tuned_for = \"2/1x8 f16", "tuned_us = "]
    {
        assert!(profile.contains(words), "{words}: {profile}");
    }
}

#[test]
fn a_saved_profile_is_taken_where_it_was_measured() {
    let Some(saved) = saved() else { return };
    let directory = directory("tune-taken");
    let (file, out) = (directory.join("here.toml"), directory.join("out.json"));
    // As if the search had found something.
    let split =
        |line: &str| if line.starts_with("split_tokens") { "split_tokens = 96" } else { line }.to_owned() + "\n";
    std::fs::write(&file, saved.lines().map(split).collect::<String>()).expect("it can be written");
    let devices = succeeded(&["devices", "--profile", text(&file)]);
    assert!(devices.contains("the file's: split_tokens = 96"), "{devices}");
    assert!(succeeded(&["devices"]).contains("| profile "), "{devices}");
    let bench = ["bench", "--case", "1,257,2,1,8", "--op", "decode", "--samples", "5", "--json", text(&out)];
    let table = succeeded(&[&bench[..], &["--profile", text(&file)]].concat());
    let source = format!("{}: split_tokens = 96", text(&file));
    assert!(table.contains(&format!("profile: {source}")), "{table}");
    assert_eq!(read_json(&out)["profile"], json!(source));
    refused(&["bench", "--profile", text(&file), "--json", text(&file)], 2, &["the command reads this file"]);
}

#[test]
fn a_benchmark_tunes_first_if_it_is_to() {
    if adapter().is_none() {
        return;
    }
    let out = directory("tune-bench").join("out.json");
    let bench = ["bench", "--tune", "--quick", "--op", "decode", "--case", "1,256,2,1,8", "--json", text(&out)];
    succeeded(&bench);
    let profile = read_json(&out)["profile"].as_str().expect("a text").to_owned();
    assert!(profile.starts_with("tuned here"), "{profile}");
    refused(&["bench", "--tune", "--profile", "here.toml"], 2, &["--tune", "--profile"]);
}

#[test]
fn a_profile_that_does_not_hold_is_refused_with_file_key_and_limit() {
    let Some(saved) = saved() else { return };
    let file = directory("tune-refused").join("bad.toml");
    let path = text(&file);
    let with = |key: &str, value: &str| {
        let change = |line: &str| match line.split_once(" = ") {
            Some((name, _)) if name == key => format!("{key} = {value}\n"),
            _ => format!("{line}\n"),
        };
        saved.lines().map(change).collect::<String>()
    };
    for (content, words) in [
        (with("adapter", "\"another card\""), &["adapter is `another card` in the profile", "tune on this device"][..]),
        (with("driver_info", "\"0.1\""), &["driver_info is `0.1` in the profile"]),
        (with("version", "\"0.0.9\""), &["version is `0.0.9` in the profile", env!("CARGO_PKG_VERSION")]),
        (with("loads", "1\nlanes = 8"), &["`lanes = 8`", "unknown field `lanes`"]),
        (with("tile_rows", "100"), &["tile_rows is 100 in the profile", "from 1 to 64"]),
        (with("split_tokens", "0"), &["split_tokens is 0 in the profile", "from 1 to 2^30"]),
        (with("lane_comm", "\"subgroup64\""), &["lane_comm"]),
        (with("loads", "-1"), &["`loads = -1`"]),
        ("{}".to_owned(), &["line 1"]),
        ("x".repeat(2 << 20), &["has more than 1048576 bytes"]),
    ] {
        std::fs::write(&file, content).expect("it can be written");
        for command in ["bench", "check"] {
            refused(&[command, "--profile", path], 2, &[&["--profile", path], words].concat());
        }
    }
    // A list of devices says which of them it is not for.
    std::fs::write(&file, with("adapter", "\"another card\"")).expect("it can be written");
    let devices = succeeded(&["devices", "--profile", path]);
    assert!(devices.contains("default; not the file's: adapter is `another card` in the profile"), "{devices}");
    std::fs::write(&file, with("loads", "one")).expect("it can be written");
    refused(&["devices", "--profile", path], 2, &["--profile", path, "loads = one"]);
    for command in ["bench", "check", "devices"] {
        refused(&[command, "--profile", "no such file"], 2, &["--profile no such file: cannot be read"]);
    }
}

#[test]
fn a_search_that_cannot_be_saved_is_refused_before_anything_is_measured() {
    let directory = directory("tune-save");
    let (missing, file) = (directory.join("missing").join("a.toml"), directory.join("a.toml"));
    refused(&["tune", "--save", text(&missing)], 2, &["--save", text(&missing), "directory"]);
    refused(&["tune", "--save", text(&directory)], 2, &["--save", "regular file"]);
    refused(&["tune", "--save", text(&file), "--json", text(&file)], 2, &["--json goes there already"]);
    refused(&["tune", "--case", "1,2,3"], 2, &["3 fields"]);
    refused(&["tune", "--case", "1,8,2,1,8", "--model", "qwen2-7b"], 2, &["--case", "--model"]);
    refused(&["tune", "--time-budget", "0"], 2, &["--time-budget", "86400"]);
    refused(&["tune", "--adapter", "no such card"], 3, &[]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_was_found() {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use crate::program::stderr;

    if adapter().is_none() {
        return;
    }
    let file = directory("tune-stopped").join("here.toml");
    // Kernels that take so long to compile that the search is not over when it is stopped.
    let args = ["tune", "--case", "8,2048,32,8,128", "--save", text(&file)];
    let mut command = Command::new(env!("CARGO_BIN_EXE_paged-attention"));
    let tune = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    // What it finds first is the device's own profile.
    let start = Instant::now();
    while !file.exists() && start.elapsed() < Duration::from_secs(180) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let stopped = Command::new("kill").args(["-INT", &tune.id().to_string()]).status().expect("a Unix has kill");
    assert!(stopped.success());
    let output = tune.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(table.contains("so far") && table.contains("decode 8 × 2048"), "{table}");
    let devices = succeeded(&["devices", "--profile", text(&file)]);
    assert!(devices.contains("the file's"), "{devices}");
}
