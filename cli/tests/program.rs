//! The binary, as its users meet it: help, refusals, exit statuses, and what it writes.
//!
//! That a failed case ends a run with status 1 is tested beside the function that decides it, `src/cli/status.rs`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use wgpu_paged_attention::testkit::{Fault, LayerFault, RotationFault, skip, test_device};

/// A case that takes milliseconds.
const TINY: [&str; 5] = ["bench", "--case", "1,17,2,1,8", "--samples", "5"];

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_paged-attention")).args(args).output().expect("the binary starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The run is refused with this status and an error that has these words.
pub fn refused(args: &[&str], status: i32, words: &[&str]) {
    let output = run(args);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
    assert!(text.starts_with("error: "), "{args:?}: {text}");
    assert!(output.stdout.is_empty(), "{args:?}: nothing is measured or listed");
    for word in words {
        assert!(text.contains(word), "{args:?}: {word:?} is not in {text}");
    }
}

pub fn succeeded(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {:?}\n{}{}", output.status, stdout(&output), stderr(&output));
    stdout(&output)
}

/// A directory of this test's own.
pub fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("the target directory can be written");
    path
}

pub fn read_json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("the file is there")).expect("the file is JSON")
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("the target directory has a plain name")
}

/// Whether the adapter is a program on the CPU; `None` without an adapter.
pub fn adapter() -> Option<bool> {
    test_device().map(|gpu| gpu.is_software())
}

#[track_caller]
pub fn has_keys(value: &Value, keys: &[&str]) {
    let mut found: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
    let mut wanted = keys.to_vec();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
}

#[test]
fn help_names_the_commands_their_examples_and_every_exit_status() {
    let help = succeeded(&["--help"]);
    for word in [
        "devices",
        "check",
        "bench",
        "plan",
        "replay",
        "blocks",
        "tune",
        "compare",
        "Without a command",
        "Examples:",
        "Exit status:",
        "130",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
    for (command, words) in [
        ("devices", &["--profile", "--json", "--csv"][..]),
        ("tune", &["--model", "--case", "--save", "--time-budget", "--quick", "--json", "Examples:"]),
        ("bench", &["--profile", "--tune"]),
        ("check", &["--adapter", "--backend", "--require-gpu", "--quick", "--seed", "--json", "--csv", "Examples:"]),
        ("replay", &["--trace", "--clock", "--budget", "--execute", "--report", "--csv", "Examples:"]),
        ("blocks", &["--trace", "--block-size", "--no-measure", "--report", "--csv", "Examples:"]),
        ("bench", &["--case", "--kv-dtype", "--block-size", "--trace", "--workload", "azure-conv", "sharegpt"]),
        ("bench", &["llama-3-8b", "--time-budget", "--samples", "--json", "Examples:"]),
        ("bench", &["--op", "prefill", "mixed", "--figures", "--lens", "--queries", "--shared-prefix", "int4"]),
        ("plan", &["--model", "--config", "--budget", "--max-len", "--skip-bad", "--csv", "Examples:"]),
        ("bench", &["--csv", "--report", "--svg"]),
        ("compare", &["A.json", "B.json", "--json", "--csv", "--fail-on-slower", "Examples:"]),
        ("bench", &["--window", "--soft-cap", "--alibi", "--sinks", "--non-causal", "--lse", "--io"]),
    ] {
        let help = succeeded(&[command, "--help"]);
        assert!(help.contains("Exit status:"), "{command}: {help}");
        words.iter().for_each(|word| assert!(help.contains(word), "{command} {word}: {help}"));
    }
    assert!(succeeded(&["--version"]).contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn unknown_commands_and_options_are_usage_errors() {
    refused(&["measure"], 2, &["measure", "--help"]);
    refused(&["--fast"], 2, &["--fast"]);
    refused(&["check", "--fast"], 2, &["--fast"]);
    refused(&["bench", "--model", "gpt-9"], 2, &["gpt-9", "llama-13b", "gemma-3-270m"]);
    refused(&["bench", "--workload", "chat"], 2, &["chat", "azure-conv", "deepseek-r1"]);
    refused(&["bench", "--kv-dtype", "f8"], 2, &["f8", "f32", "f16"]);
    refused(&["bench", "--op", "fill"], 2, &["fill", "append, decode, prefill, mixed"]);
    refused(&["bench", "--trace", "a.csv", "--workload", "sharegpt"], 2, &["--trace", "--workload"]);
    refused(&["bench", "--case", "1,8,2,1,8", "--batch", "3"], 2, &["--case", "--batch"]);
    refused(&["bench", "--io", "bf16"], 2, &["--io", "bf16", "f32", "f16"]);
    for (option, value) in [("--op", "decode"), ("--lens", "5"), ("--window", "5"), ("--kv-dtype", "f16")] {
        refused(&["bench", "--figures", option, value], 2, &["--figures", option]);
    }
    for (option, value) in [("--batch", "2"), ("--context", "8"), ("--case", "1,8,2,1,8"), ("--workload", "sharegpt")] {
        refused(&["bench", "--lens", "5", option, value], 2, &["--lens", option]);
    }
}

#[test]
fn every_field_of_a_case_is_checked_and_named() {
    for (case, words) in [
        ("1,2,3", &["3 fields", "BATCH,CONTEXT,NUM_Q_HEADS,NUM_KV_HEADS,HEAD_DIM"][..]),
        ("1,2,3,3,8,9", &["6 fields"]),
        ("0,128,8,2,64", &["batch", "\"0\"", "65535"]),
        ("1,0,8,2,64", &["context", "\"0\""]),
        ("1,128,0,2,64", &["num_q_heads", "4096"]),
        ("1,128,8,x,64", &["num_kv_heads", "\"x\""]),
        ("1,128,8,2,513", &["head_dim", "513", "512"]),
        ("1,128,8,3,64", &["num_q_heads 8", "num_kv_heads 3"]),
        ("1,-5,8,2,64", &["context", "-5"]),
        ("99999999999,1,8,2,64", &["batch", "99999999999"]),
    ] {
        refused(&["bench", "--case", case], 2, words);
    }
}

#[test]
fn numbers_outside_their_limits_are_refused_with_the_limit() {
    for (option, value, limit) in [
        ("--samples", "0", "1..="),
        ("--block-size", "0", "1..=65536"),
        ("--block-size", "65537", "1..=65536"),
        ("--batch", "0", "1..=65535"),
        ("--context", "0", "1..="),
        ("--context", "16,0", "1..="),
        ("--time-budget", "0", "86400"),
        ("--time-budget", "NaN", "86400"),
        ("--seed", "x", "--seed"),
        ("--queries", "0", "1..=16777216"),
        ("--window", "0", "1..=16777216"),
        ("--shared-prefix", "0", "1..=16777216"),
        ("--soft-cap", "0", "above 0"),
        ("--soft-cap", "NaN", "1000000"),
        ("--lens", "", "32768,256x63"),
        ("--lens", "256x0", "256x0"),
        ("--lens", "16777217", "16777216"),
        ("--lens", "1x65535,1", "65536 sequences, more than 65535"),
    ] {
        refused(&["bench", option, value], 2, &[option, limit]);
    }
}

#[test]
fn a_bad_request_log_is_refused_with_file_line_and_field() {
    let log = directory("trace").join("log.csv");
    let file = text(&log);
    let args = ["bench", "--trace", file];
    refused(&args, 2, &[file, "--trace"]);
    for (content, words) in [
        ("", &["no requests"][..]),
        ("a,b,c\n1,2,3\n", &[":1:", "unknown header", "arrival_s,prompt_tokens,output_tokens"]),
        ("arrival_s,prompt_tokens,output_tokens\n0.0,5,6\n1.0,-5,6\n", &[":3:", "prompt_tokens", "-5"]),
        ("arrival_s,prompt_tokens,output_tokens\n0.0,5,many\n", &[":2:", "output_tokens", "many"]),
        ("arrival_s,prompt_tokens,output_tokens\n0.0,5\n", &[":2:", "2 fields"]),
        ("arrival_s,prompt_tokens,output_tokens\n2.0,5,6\n1.0,5,6\n", &[":3:", "arrival_s", "sort"]),
    ] {
        std::fs::write(&log, content).expect("the directory can be written");
        refused(&args, 2, words);
        refused(&args, 2, &[file]);
    }
}

#[test]
fn a_json_file_that_cannot_be_written_is_refused_before_anything_is_measured() {
    let directory = directory("json");
    let missing = directory.join("missing").join("out.json");
    for command in ["devices", "check", "bench"] {
        refused(&[command, "--json", text(&missing)], 2, &["--json", text(&missing), "directory"]);
        refused(&[command, "--json", text(&directory)], 2, &["regular file"]);
        refused(&[command, "--json", "-"], 2, &["stdout"]);
    }
    #[cfg(unix)]
    refused(&["devices", "--json", "/dev/null"], 2, &["regular file"]);
    let left: Vec<_> = std::fs::read_dir(&directory).expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn devices_of_one_backend_are_listed_and_another_is_refused() {
    let Some(_) = adapter() else { return };
    let absent = if cfg!(target_os = "macos") { "dx12" } else { "metal" };
    refused(&["devices", "--backend", absent], 3, &["no adapter has the backend", absent, "found: "]);
    let list = succeeded(&["devices"]);
    let backend = list.lines().find_map(|line| line.strip_prefix("| backend ")).expect("a line");
    let backend = backend.split('|').nth(1).expect("an adapter").trim();
    assert!(succeeded(&["devices", "--backend", backend]).contains(backend));
}

#[test]
fn devices_are_listed_with_what_they_are() {
    let Some(software) = adapter() else { return };
    let file = directory("devices").join("devices.json");
    let csv = file.with_extension("csv");
    let table = succeeded(&["devices", "--json", text(&file), "--csv", text(&csv)]);
    let rows = std::fs::read_to_string(&csv).unwrap();
    assert!(rows.starts_with("number,name,type,software,backend,driver,"), "{rows}");
    assert_eq!(rows.lines().count(), 1 + table.lines().next().unwrap().matches('|').count() - 2);
    let json = read_json(&file);
    has_keys(&json, &["schema", "adapters"]);
    let first = &json["adapters"][0];
    has_keys(
        first,
        &[
            "number",
            "name",
            "device_type",
            "software",
            "backend",
            "driver",
            "kernel",
            "profile",
            "shader_compiler",
            "limits",
            "features",
        ],
    );
    has_keys(
        &first["limits"],
        &[
            "storage_binding_bytes",
            "buffer_bytes",
            "workgroup_memory_bytes",
            "workgroup_invocations",
            "storage_offset_alignment",
        ],
    );
    has_keys(
        &first["features"],
        &["subgroups", "subgroup_min_size", "subgroup_max_size", "shader_f16", "matrix_units", "timestamps"],
    );
    assert_eq!(first["software"], json!(software));
    for key in ["name", "driver", "kernel", "shader_compiler", "device_type"] {
        assert!(table.contains(first[key].as_str().expect("a text")), "{key}: {table}");
    }
    assert_eq!(table.contains("YES, computes on the CPU"), software || table.contains("Cpu"));
}

#[test]
fn an_adapter_that_does_not_exist_ends_with_status_3() {
    if adapter().is_none() {
        // Then there is none at all, and that has the same status.
        return refused(&TINY, 3, &["adapter", "install"]);
    }
    for command in ["check", "bench"] {
        refused(&[command, "--adapter", "no such card"], 3, &["no such card", "there are"]);
        refused(&[command, "--adapter", "99"], 3, &["99"]);
    }
}

#[test]
fn a_software_adapter_is_no_gpu() {
    let Some(software) = adapter() else { return };
    if !software {
        return skip(None, "the first adapter is a GPU");
    }
    for command in ["check", "bench"] {
        refused(&[command, "--require-gpu"], 3, &["a GPU is required", "--require-gpu"]);
    }
    let table = succeeded(&TINY);
    assert!(table.contains("SOFTWARE ADAPTER"), "{table}");
}

#[test]
fn a_quick_check_passes_and_notices_its_planted_faults() {
    let Some(software) = adapter() else { return };
    let file = directory("check").join("check.json");
    let output = succeeded(&["check", "--quick", "--json", text(&file)]);
    assert!(output.contains("passed") && output.contains("planted faults noticed"), "{output}");
    assert_eq!(output.contains("SOFTWARE ADAPTER"), software);
    let json = read_json(&file);
    has_keys(&json, &["schema", "adapter", "seed", "quick", "every_form", "seconds", "groups", "self_test"]);
    let groups = json["groups"].as_array().expect("a list");
    assert!(groups.len() >= 12, "six formats, paged and contiguous: {groups:?}");
    for group in groups {
        has_keys(group, &["kv_dtype", "mode", "exchange", "scenes", "worst_error", "failures"]);
        assert_eq!(group["failures"], json!([]));
        assert!(group["worst_error"].as_f64().is_some_and(|error| error > 0.0), "rounding leaves something: {group}");
    }
    let planted = json["self_test"].as_array().expect("a list");
    let names: Vec<_> = Fault::ALL.map(Fault::name).to_vec();
    let found: Vec<_> = planted.iter().map(|fault| fault["fault"].as_str().expect("a text")).collect();
    let others = [&RotationFault::ALL.map(RotationFault::name)[..], &LayerFault::ALL.map(LayerFault::name)].concat();
    let (of_others, found): (Vec<&str>, Vec<_>) = found.into_iter().partition(|name| others.contains(name));
    assert_eq!(of_others, others);
    assert_eq!(found.len() % names.len(), 0, "all of them for each form of the lanes");
    assert!(!found.is_empty() && found.chunks(names.len()).all(|found| found == names), "{found:?}");
    assert!(planted.iter().all(|fault| fault["noticed"] == json!(true)));
}

#[test]
fn a_benchmark_writes_the_published_json() {
    let Some(software) = adapter() else { return };
    let file = directory("bench").join("out.json");
    let table = succeeded(&[&TINY[..], &["--kv-dtype", "f32,f16", "--seed", "7", "--json", text(&file)]].concat());
    let json = read_json(&file);
    let keys = ["schema", "kind", "version", "command", "seed", "adapter", "ceilings"];
    assert_eq!(json["profile"], json!("default"));
    has_keys(
        &json,
        &[&keys[..], &["profile", "results", "pairs", "figures", "failures", "waiting_share", "notes"]].concat(),
    );
    assert_eq!((&json["kind"], &json["version"]), (&json!("bench"), &json!(env!("CARGO_PKG_VERSION"))));
    has_keys(&json["adapter"], &["name", "backend", "driver", "software", "device_type", "wgpu_version"]);
    has_keys(
        &json["ceilings"],
        &["read_gb_s", "host_read_gb_s", "host_fma_gflop_s", "copy_gb_s", "fma_gflop_s", "dispatch_us"],
    );
    assert_eq!((&json["seed"], &json["adapter"]["software"]), (&json!(7), &json!(software)));
    assert_eq!(json["failures"], json!([]));
    let command = json["command"].as_str().expect("a text");
    assert!(command.starts_with("paged-attention bench --case 1,17,2,1,8 --samples 5 --kv-dtype f32,f16"), "{command}");

    let results = json["results"].as_array().expect("a list");
    for op in ["append", "decode", "prefill", "mixed"] {
        for kv_dtype in ["f32", "f16"] {
            for mode in ["paged", "contiguous"] {
                let found = results
                    .iter()
                    .filter(|result| result["op"] == op && result["kv_dtype"] == kv_dtype && result["mode"] == mode);
                assert_eq!(found.count(), 1, "{op} {kv_dtype} {mode}");
            }
        }
    }
    assert_eq!(results.len(), 16);
    for result in results {
        has_keys(
            result,
            &[
                "op",
                "model",
                "num_q_heads",
                "num_kv_heads",
                "head_dim",
                "kv_dtype",
                "block_size",
                "batch",
                "context",
                "tokens",
                "queries",
                "variant",
                "shared_prefix",
                "mode",
                "workload",
                "input_hash",
                "timing",
                "samples_us",
                "median_us",
                "p25_us",
                "p75_us",
                "wall_median_us",
                "cold_us",
                "bytes",
                "gb_s",
                "fraction_of_read",
                "flops",
                "gflop_s",
                "fraction_of_fma",
                "max_abs_error",
            ],
        );
        assert_eq!(result["samples_us"].as_array().map(Vec::len), Some(5));
        assert_eq!((&result["context"], &result["workload"]), (&json!(17), &json!("uniform")));
        assert!(result["median_us"].as_f64().is_some_and(|time| time > 0.0));
    }
    let pairs = json["pairs"].as_array().expect("a list");
    assert_eq!(pairs.len(), 8);
    for pair in pairs {
        has_keys(
            pair,
            &[
                "op",
                "model",
                "kv_dtype",
                "block_size",
                "batch",
                "context",
                "workload",
                "paged_over_contiguous",
                "samples",
            ],
        );
    }
    let figures = json["figures"].as_array().expect("a list");
    assert_eq!(figures.len(), 4, "f16 over f32, for each operation");
    for figure in figures {
        has_keys(figure, &["what", "measured", "limit", "samples"]);
        assert!(figure["measured"].as_f64().is_some_and(|ratio| ratio > 0.0), "{figure}");
        // Quotients over two neighbours of the 5 rounds.
        assert_eq!((&figure["limit"], &figure["samples"]), (&json!(null), &json!(4)));
    }
    for word in ["adapter: ", "ceilings: ", "paged", "contiguous", "append", "decode"] {
        assert!(table.contains(word), "{word}: {table}");
    }
    assert!(!table.contains('\u{1b}'), "no colours in a pipe: {table:?}");
    assert!(!file.with_extension("json.tmp").exists(), "nothing is left beside the file");
}

#[test]
fn a_benchmark_is_a_table_a_page_and_plots() {
    if adapter().is_none() {
        return;
    }
    let directory = directory("report");
    let [json, csv_file, page, svgs] = ["out.json", "out.csv", "out.html", "plots"].map(|name| directory.join(name));
    let files = ["--json", text(&json), "--csv", text(&csv_file), "--report", text(&page), "--svg", text(&svgs)];
    succeeded(&[&TINY[..], &["--op", "decode"], &files].concat());
    let json = read_json(&json);
    let csv = std::fs::read_to_string(&csv_file).expect("it was written");
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines.len(), 3, "a header, paged and contiguous: {csv}");
    assert!(lines[0].starts_with("adapter,driver,op,model,") && lines[0].contains(",median_us,"), "{csv}");
    let page = std::fs::read_to_string(&page).expect("it was written");
    let driver = json["adapter"]["driver"].as_str().expect("a text");
    for word in [driver, "paged-attention bench --case 1,17,2,1,8", "id=\"results\"", "<svg id=\"decode-rate-1\""] {
        assert!(page.contains(word), "{word}: {page}");
    }
    let svg = std::fs::read_to_string(svgs.join("decode-rate-1.svg")).expect("it was written");
    assert!(svg.starts_with("<svg id=\"decode-rate-1\"") && svg.trim_end().ends_with("</svg>"), "{svg}");
    let mut left: Vec<_> =
        std::fs::read_dir(&directory).expect("it is there").flatten().map(|e| e.file_name()).collect();
    left.sort();
    assert_eq!(left, ["out.csv", "out.html", "out.json", "plots"], "nothing is left beside the files");

    refused(&["bench", "--report", text(&directory)], 2, &["--report", "regular file"]);
    refused(&["bench", "--json", text(&csv_file), "--csv", text(&csv_file)], 2, &["--csv", "--json"]);
    refused(&["bench", "--svg", text(&csv_file)], 2, &["--svg"]);
}

#[test]
fn variants_shared_prefixes_and_ragged_batches_are_measured() {
    if adapter().is_none() {
        return;
    }
    let file = directory("variants").join("out.json");
    let tiny = ["--samples", "5", "--json", text(&file)];
    let measured = |args: &[&str]| {
        let table = succeeded(&[&["bench", "--op", "decode"], args, &tiny].concat());
        (table, read_json(&file))
    };

    let variant = ["--window", "9", "--soft-cap", "5", "--alibi", "--sinks", "--non-causal", "--lse", "--io", "f16"];
    let (table, json) = measured(&[&["--case", "3,40,2,1,8", "--queries", "2"], &variant[..]].concat());
    let name = "non-causal, window 9, soft cap 5, alibi, sinks, f16 io, lse";
    assert!(table.contains(name), "{table}");
    assert_eq!((&json["results"][0]["variant"], &json["results"][0]["queries"]), (&json!(name), &json!(6)));

    let (table, json) = measured(&["--case", "3,40,2,1,8", "--shared-prefix", "35"]);
    let modes: Vec<_> = json["results"].as_array().expect("a list").iter().map(|result| &result["mode"]).collect();
    assert_eq!(modes, [&json!("shared"), &json!("paged")]);
    assert_eq!(json["figures"].as_array().map(Vec::len), Some(1));
    assert!(table.contains("time without sharing over time with"), "{table}");

    let lens = ["--model", "gemma-3-270m", "--lens", "40,5x2", "--lens", "40"];
    let (table, json) = measured(&lens);
    assert!(table.contains("40,5x2"), "{table}");
    assert_eq!(json["results"].as_array().map(Vec::len), Some(4), "two batches, both modes");
    assert_eq!((&json["results"][0]["batch"], &json["results"][0]["tokens"]), (&json!(3), &json!(50)));
}

#[test]
fn lengths_come_from_a_log_or_a_workload() {
    if adapter().is_none() {
        return;
    }
    let directory = directory("lengths");
    let (log, file) = (directory.join("log.csv"), directory.join("out.json"));
    std::fs::write(&log, "arrival_s,prompt_tokens,output_tokens\n0.0,5,6\n1.0,9,2\n").expect("it can be written");
    let case = ["bench", "--op", "decode", "--case", "4,64,2,1,8", "--samples", "5", "--json", text(&file)];
    for (source, name) in [(["--trace", text(&log)], "log.csv"), (["--workload", "sharegpt"], "sharegpt")] {
        let table = succeeded(&[&case[..], &source[..]].concat());
        assert!(table.contains(name), "{table}");
        let json = read_json(&file);
        assert_eq!(json["results"].as_array().map(Vec::len), Some(2), "one operation, both modes");
        assert_eq!(json["results"][0]["workload"], json!(name));
        assert!(json["results"][0]["context"].as_u64().is_some_and(|longest| longest <= 64));
    }
    std::fs::write(&log, "arrival_s,prompt_tokens,output_tokens\n0.0,5,6\n1.0,x,2\n").expect("it can be written");
    let output = run(&[&case[..], &["--trace", text(&log), "--skip-bad"]].concat());
    assert!(output.status.success() && stderr(&output).contains("1 bad row of log.csv was"), "{}", stderr(&output));
    std::fs::write(&log, "arrival_s,prompt_tokens,output_tokens\n0.0,5,0\n").expect("it can be written");
    let output = run(&[&case[..], &["--trace", text(&log)]].concat());
    assert_eq!(output.status.code(), Some(2), "a log without any output: {}", stderr(&output));
}

#[test]
fn x16_options_without_effect_are_refused_by_name() {
    for (words, named) in [
        ("--op append --window 5 --soft-cap 3", "--window has no effect on --op append"),
        ("--op append --soft-cap 3", "--soft-cap has no effect on --op append"),
        ("--shared-prefix 99999 --context 64", "--shared-prefix has no effect beyond the 64 tokens"),
        ("--shared-prefix 8 --context 64", "--shared-prefix has no effect on 8 sequences of 64 tokens in blocks of 16"),
        ("--shared-prefix 32 --batch 1", "--shared-prefix has no effect on 1 sequence of 1024 tokens"),
        ("--case 4,64,2,1,8 --window 64", "--window has no effect on sequences of at most 64 tokens"),
        ("--lens 40,5x2 --queries 41", "--queries has no effect beyond the 40 tokens"),
        ("--op decode --non-causal", "--non-causal has no effect on one query"),
        ("--samples 5 --time-budget 3", "--time-budget has no effect beside --samples"),
    ] {
        refused(&[&["bench"], &words.split(' ').collect::<Vec<_>>()[..]].concat(), 2, &[named]);
    }
    refused(&["plan", "--requests", "5"], 2, &["--requests has no effect without --workload"]);
    refused(&["plan", "--seed", "5"], 2, &["--seed has no effect without --workload"]);
    refused(&["blocks", "--no-measure", "--kv-dtype", "int8"], 2, &["--kv-dtype has no effect beside --no-measure"]);
    refused(&["replay", "--adapter", "0"], 2, &["--adapter has no effect without --clock calibrated or --execute"]);
}

#[test]
fn x08_an_adapter_by_number_or_by_nothing() {
    if adapter().is_none() {
        return;
    }
    for command in ["check", "bench", "plan", "blocks"] {
        refused(&[command, "--adapter", "15"], 3, &["15"]);
        refused(&[command, "--adapter", ""], 2, &["--adapter"]);
    }
}

#[test]
fn x12_one_table_of_models_and_a_file_for_every_command() {
    let directory = directory("models");
    let config = directory.join("config.json");
    std::fs::write(&config, r#"{"n_layer": 2, "n_head": 2, "num_kv_heads": 1, "n_embd": 16, "n_positions": 64}"#)
        .unwrap();
    let path = text(&config);
    refused(&["bench", "--model", "mistral-7b", "--config", path], 2, &["--config", "--model"]);
    // A case is one layer, so a model by its numbers has none here.
    for command in ["bench", "blocks"] {
        refused(&[command, "--layers", "2", "--heads", "2", "--head-dim", "8"], 2, &["--layers"]);
    }
    for output in ["--json", "--csv", "--report"] {
        refused(&["bench", "--config", path, output, path], 2, &[output, path, "the command reads this file"]);
    }
    refused(&["bench", "--model", "gpt-9"], 2, &["gpt-9", "mistral-7b", "phi-3-mini"]);
    refused(&["bench", "--case", "1,17,2,1,8", "--config", path], 2, &["--config", "--case"]);
    succeeded(&["plan", "--config", path]);
    succeeded(&["replay", "--config", path, "--requests", "50"]);
    succeeded(&["blocks", "--config", path, "--no-measure", "--workload", "short-chat", "--requests", "500"]);
    if adapter().is_none() {
        return;
    }
    let tiny = ["bench", "--op", "decode", "--batch", "1", "--context", "17", "--samples", "5"];
    assert!(succeeded(&[&tiny[..], &["--config", path]].concat()).contains("cli-models"));
    let numbers = ["--heads", "2", "--kv-heads", "1", "--head-dim", "8"];
    assert!(succeeded(&[&tiny[..], &numbers].concat()).contains("2/1x8"));
    assert!(succeeded(&[&tiny[..], &["--model", "mistral-7b"]].concat()).contains("mistral-7b"));
}
