//! `paged-attention plan`: its output for every built-in model, and what it refuses.
//!
//! The numbers for three models are worked out by hand in `src/plan/tests.rs`, which also
//! compares every built-in model with `golden/plan`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_paged-attention")).arg("plan").args(args).output().expect("the binary starts")
}

fn stdout(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The run ends with this status and an error that has these words.
#[track_caller]
fn refused(args: &[&str], status: i32, words: &[&str]) {
    let output = run(args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
    assert!(text.starts_with("error: ") && output.stdout.is_empty(), "{args:?}: {text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{args:?}: {word:?} is not in {text}"));
}

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("plan-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("the target directory can be written");
    path
}

fn golden(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/plan").join(format!("{model}.txt"))
}

#[test]
fn the_program_prints_the_same_and_then_what_is_known_of_the_adapter() {
    for model in ["llama-13b", "gemma-2-9b"] {
        let expected = std::fs::read_to_string(golden(model)).expect("the file is there");
        let text = stdout(&["--model", model]);
        let rest = text.strip_prefix(&expected).unwrap_or_else(|| panic!("{text}"));
        assert!(rest.contains("no adapter here") || rest.contains("KV heads in each"), "{rest}");
    }
    assert_eq!(stdout(&[]), stdout(&["--model", "llama-13b", "--budget", "26000MB", "--max-len", "4096"]));
}

#[test]
fn files_hold_the_report_byte_for_byte_alike() {
    let directory = directory("files");
    let (json, csv) = (directory.join("plan.json"), directory.join("plan.csv"));
    let args =
        ["--workload", "sharegpt", "--seed", "7", "--json", json.to_str().unwrap(), "--csv", csv.to_str().unwrap()];
    stdout(&args);
    let first = (std::fs::read(&json).unwrap(), std::fs::read_to_string(&csv).unwrap());
    stdout(&args);
    assert_eq!((std::fs::read(&json).unwrap(), std::fs::read_to_string(&csv).unwrap()), first);

    let value: Value = serde_json::from_slice(&first.0).unwrap();
    assert_eq!((&value["kind"], &value["schema"]), (&"plan".into(), &1.into()));
    let command = value["command"].as_str().unwrap();
    assert!(command.starts_with("paged-attention plan --workload sharegpt --seed 7 --json "), "{command}");
    let scenarios = value["scenarios"].as_array().unwrap();
    assert_eq!((scenarios.len(), &scenarios[4]["name"]), (5, &"sharegpt".into()));
    let share = |name: &str| scenarios[4][name].as_f64().unwrap();
    assert!(share("contiguous_utilisation") < share("paged_utilisation"));

    let lines: Vec<&str> = first.1.lines().collect();
    assert!(lines[0].starts_with("scenario,requests,mean_tokens,contiguous_bytes,paged_bytes,saved,"), "{}", lines[0]);
    assert_eq!(lines[4], "\"8 × 1,024 tokens\",8,1024.0,26843545600,6710886400,0.75,0.25,1.0,7,30,25.6,6.4,75.0");
    assert_eq!(lines.len(), 6);
}

#[test]
fn logs_are_compared_with_bad_rows_left_out_on_request() {
    let log = directory("log").join("log.csv");
    std::fs::write(&log, "arrival_s,prompt_tokens,output_tokens\n0,20,12\n1,x,1\n2,60,4\n").unwrap();
    let path = log.to_str().unwrap();
    refused(&["--trace", path], 2, &["--trace", path, ":3:", "prompt_tokens", "\"x\""]);
    let output = run(&["--trace", path, "--skip-bad"]);
    let (text, warning) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("log.csv") && warning.contains("1 bad row of log.csv was left out"), "{text}{warning}");
}

#[test]
fn bad_input_is_refused_with_value_and_limit() {
    refused(&["--model", "gpt-9"], 2, &["gpt-9", "llama-13b", "phi-3-mini"]);
    refused(&["--budget", "1MB"], 2, &["--budget is 1000000", "13107200"]);
    refused(&["--budget", "99999999999TB"], 2, &["99999999999TB", "18446744073709551615"]);
    refused(&["--budget", "much"], 2, &["much", "GiB"]);
    refused(&["--budget", "0"], 2, &["is 0", "13107200"]);
    refused(&["--block-size", "0"], 2, &["--block-size", "1..=65536"]);
    refused(&["--max-len", "0"], 2, &["--max-len", "1..=1073741824"]);
    refused(&["--lens", "4097"], 2, &["--lens", "4097", "4096", "--max-len"]);
    refused(&["--kv-dtype", "f8"], 2, &["f8", "int4"]);
    refused(&["--skip-bad"], 2, &["--trace"]);
    refused(&["--adapter", "no such card"], 3, &["adapter"]);
    refused(&["--csv", "-"], 2, &["--csv", "stdout"]);

    let config = directory("config").join("config.json");
    let path = config.to_str().unwrap();
    refused(&["--config", path], 2, &["--config", path]);
    for (text, words) in [
        ("[]", &["not a JSON object"][..]),
        ("{\"model_type\": \"llama\"}", &["num_hidden_layers"]),
        ("{\"model_type\": \"deepseek_v2\", \"kv_lora_rank\": 512}", &["kv_lora_rank", "512", "latent"]),
        ("{\"model_type\": \"mamba\"}", &["num_hidden_layers", "n_layer", "--heads, --kv-heads"]),
    ] {
        std::fs::write(&config, text).unwrap();
        refused(&["--config", path], 2, &[&[path], words].concat());
    }
    refused(&["--config", path, "--model", "llama-13b"], 2, &["--config", "--model"]);
}

#[test]
fn x11_the_longest_sequence_is_the_models_own_unless_asked_for() {
    let config = directory("own").join("config.json");
    let model = r#"{"n_layer": 2, "n_head": 4, "n_embd": 256, "n_positions": 2048}"#;
    std::fs::write(&config, model).unwrap();
    let path = config.to_str().unwrap();
    let text = stdout(&["--config", path, "--lens", "1024"]);
    assert!(text.contains("sequences of up to 2,048 tokens") && text.contains("50.0 %"), "{text}");
    let output = run(&["--config", path, "--lens", "1024", "--max-len", "4096"]);
    let (text, warning) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("75.0 %"), "{text}");
    assert_eq!(warning, "warning: --max-len 4096 is longer than the 2048 tokens that plan-own was made for\n");
    assert!(run(&["--config", path, "--max-len", "2048"]).stderr.is_empty());
    refused(&["--config", path, "--lens", "2049"], 2, &["--lens", "2049", "2048", "--max-len"]);
}

#[test]
fn x12_a_model_is_its_numbers_where_nothing_else_tells() {
    let numbers = ["--layers", "32", "--heads", "32", "--kv-heads", "8", "--head-dim", "128"];
    let by_name = stdout(&["--model", "llama-3-8b", "--max-len", "4096"]);
    let by_numbers = stdout(&[&numbers[..], &["--max-len", "4096"]].concat());
    let table = |text: &str| text.split_once("\n\n").unwrap().1.to_owned();
    assert_eq!(table(&by_numbers), table(&by_name));
    assert!(by_numbers.starts_with("model: 32/8x128, 32 layers, 32 query heads, 8 KV heads of 128"), "{by_numbers}");
    refused(&["--layers", "32", "--heads", "32"], 2, &["--head-dim"]);
    refused(&["--heads", "32"], 2, &["--head-dim"]);
    refused(&["--heads", "32", "--head-dim", "8"], 2, &["--layers"]);
    refused(&[&numbers[..], &["--model", "llama-13b"]].concat(), 2, &["--model"]);
    refused(&["--layers", "1", "--heads", "9", "--kv-heads", "2", "--head-dim", "8"], 2, &["--heads", "9", "2"]);
}

#[test]
fn x12_what_a_file_leaves_out_is_said() {
    let config = directory("hybrid").join("config.json");
    let model =
        r#"{"n_layer": 8, "n_head": 4, "n_embd": 256, "n_positions": 2048, "full_attention_interval": 4, "eps": NaN}"#;
    std::fs::write(&config, model).unwrap();
    let output = run(&["--config", config.to_str().unwrap()]);
    let note = String::from_utf8_lossy(&output.stderr);
    assert_eq!(note, "note: plan-hybrid: 2 of its 8 layers keep K and V of their own\n");
    assert!(String::from_utf8_lossy(&output.stdout).contains(", 2 layers, 4 query heads, 4 KV heads of 64"));
}
