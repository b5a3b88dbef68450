//! The help of every command, the keys of its JSON and the columns of its CSV, as recorded in `golden/`.
//!
//! A change is made on purpose: `PAGED_ATTENTION_REGENERATE=1` records what the program writes now.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use wgpu_paged_attention::testkit::test_device;

/// A run whose files are recorded, and whether it needs a device.
const RUNS: [(&str, &[&str], bool); 8] = [
    ("devices", &["devices"], true),
    ("check", &["check", "--quick"], true),
    ("bench", &["bench", "--case", "1,17,2,1,8", "--samples", "5", "--kv-dtype", "f32,f16"], true),
    ("tune", &["tune", "--quick", "--case", "1,256,2,1,8"], true),
    ("plan", &["plan", "--model", "gemma-2-9b", "--max-len", "8192"], false),
    ("replay", &["replay", "--workload", "sharegpt", "--requests", "50", "--model", "gemma-3-270m"], false),
    ("blocks", &["blocks", "--workload", "short-chat", "--requests", "500", "--no-measure"], false),
    ("compare", &["compare", "plan.json", "plan.json"], false),
];

fn directory() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("golden");
    std::fs::create_dir_all(&path).expect("the target directory can be written");
    path
}

fn stdout(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paged-attention"));
    let output = command.args(args).current_dir(directory()).output().expect("the binary starts");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text is UTF-8")
}

/// The names on the way to every value; elements of a list have one name.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    found.insert(path.to_owned());
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| keys(value, &format!("{path}.{name}"), found)),
        Value::Array(values) => values.iter().for_each(|value| keys(value, &format!("{path}[]"), found)),
        _ => {}
    }
}

/// What a run writes: its columns, then its keys.
fn written(name: &str, args: &[&str]) -> String {
    let (json, csv) = (format!("{name}.json"), format!("{name}.csv"));
    stdout(&[args, &["--json", &json, "--csv", &csv]].concat());
    let read = |file: &str| std::fs::read_to_string(directory().join(file)).expect("it was written");
    let mut found = BTreeSet::new();
    keys(&serde_json::from_str(&read(&json)).expect("it is JSON"), "", &mut found);
    let mut text = format!("{}\n", read(&csv).lines().next().unwrap_or_default());
    // Whether a run has any depends on the machine.
    found.remove(".notes[]");
    found.iter().filter(|key| !key.is_empty()).for_each(|key| writeln!(text, "{key}").expect("memory"));
    text
}

#[track_caller]
fn is_recorded(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("PAGED_ATTENTION_REGENERATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, text).expect("the source directory can be written");
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(text == recorded, "{name} has changed; is this meant? PAGED_ATTENTION_REGENERATE=1 records it:\n{text}");
}

#[test]
fn keys_and_columns_are_as_recorded() {
    let has_device = test_device().is_some();
    for (name, args, needs_device) in RUNS {
        if has_device || !needs_device {
            is_recorded(&format!("{name}.keys.txt"), &written(name, args));
        }
    }
}

#[test]
fn help_is_as_recorded() {
    is_recorded("help.txt", &stdout(&["--help"]));
    for (name, ..) in RUNS {
        is_recorded(&format!("{name}.help.txt"), &stdout(&[name, "--help"]));
    }
}
