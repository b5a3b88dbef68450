//! The gate notices what it is there for.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder with the drivers, if setup.sh made one.
fn root() -> Option<PathBuf> {
    let given = std::env::var_os("PAGED_ATTENTION_GPU_ROOT").map(PathBuf::from);
    let root = given.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/gpu-compilers/root"));
    // Only root may enter another root.
    let is_there = root.join(".contents").exists() && is_root();
    let required = std::env::var("PAGED_ATTENTION_REQUIRE_COMPILERS").is_ok_and(|value| value != "0");
    let missing = format!("{} is missing, or this user is not root; make gpu-compilers", root.display());
    assert!(is_there || !required, "{missing}");
    if !is_there {
        eprintln!("skipped: {missing}");
    }
    is_there.then_some(root)
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Whether the bounds hold with this planted, and what was said about it.
fn gate(root: &Path, plant: Option<&str>) -> (bool, String) {
    let bounds = Path::new(env!("CARGO_MANIFEST_DIR")).join("bounds.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_paged-attention-gpu-compilers"));
    command.arg("--root").arg(root).arg("--bounds").arg(bounds).args(["--quick", "--chip", "navi31"]);
    command.args(plant.map(|plant| ["--plant", plant]).into_iter().flatten());
    let output = command.output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_planted_spill_breaks_the_bounds() {
    let Some(root) = root() else { return };
    let (holds, said) = gate(&root, None);
    assert!(holds, "{said}");
    // More rows than there are registers for.
    let (holds, said) = gate(&root, Some("tile_rows=64"));
    assert!(!holds, "a planted spill went unnoticed");
    assert!(said.contains(" spills; the bound is 0"), "{said}");
}

#[test]
fn other_loops_break_the_bounds() {
    let Some(root) = root() else { return };
    let (holds, said) = gate(&root, Some("lane_comm=workgroup32"));
    assert!(!holds && said.contains("has no bounds"), "{said}");
}

#[test]
fn the_page_shows_every_kernel_that_has_bounds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(folder.join("../../docs/GPU-COMPILERS.md")).unwrap();
    let bounds = std::fs::read_to_string(folder.join("bounds.toml")).unwrap();
    let mut shown = 0;
    let mut part = "";
    for line in bounds.lines() {
        if let Some(chip) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let start = page.find(&format!("\n## {chip}\n")).unwrap_or_else(|| panic!("{chip} is not on the page"));
            part = page[start + 1..].split("\n## ").next().unwrap();
        } else if let Some((kernel, _)) = line.strip_prefix('"').and_then(|line| line.split_once('"')) {
            assert!(part.contains(&format!("\n| {kernel} |")), "{kernel} is not on the page; run make gpu-compilers");
            shown += 1;
        }
    }
    assert!(shown > 0);
}
