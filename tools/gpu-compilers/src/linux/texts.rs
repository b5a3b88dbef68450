//! What others who read the texts say of them: spirv-val, tint and DXC.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context as _, bail};
use wgpu_paged_attention::testkit::browser_wgsl;

use super::dxc::Dxc;

/// A tint other than the one in the path, as for the tests of the library.
const TINT: &str = "TINT";
const DXCOMPILER: &str = "DXCOMPILER";

/// Lets spirv-val judge a module of SPIR-V; inside the folder with the drivers.
pub fn validate(spirv: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("/usr/bin/spirv-val");
    let output = command.env_clear().args(["--target-env", "vulkan1.3"]).arg(spirv).output();
    judge(output.context("spirv-val cannot be run")?)
}

/// Whether matrix units multiply in a text: only SPIR-V has words for that.
pub fn has_matrices(wgsl: &str) -> bool {
    wgsl.contains("enable wgpu_cooperative_matrix;")
}

/// The texts of a run, by their endings.
#[derive(Debug, Default)]
pub struct Texts {
    /// Contents and the name of the first kernel that has them.
    files: BTreeMap<(&'static str, String), PathBuf>,
}

impl Texts {
    /// Takes in the texts of a folder that are not yet known.
    pub fn add(&mut self, folder: &Path) -> anyhow::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let ending = ["wgsl", "hlsl"].into_iter().find(|&ending| path.extension().is_some_and(|has| has == ending));
            if let Some(ending) = ending {
                let text = fs::read_to_string(&path)?;
                // Words of 64 bits and matrices are extensions of naga's.
                if ending == "wgsl" && (text.contains("<u64>") || has_matrices(&text)) {
                    continue;
                }
                self.files.entry((ending, text)).or_insert(path);
            }
        }
        Ok(())
    }

    /// Lets tint and DXC judge, where they are, and says who did.
    pub fn judge(&self) -> anyhow::Result<Vec<String>> {
        let mut said = Vec::new();
        let tint = std::env::var(TINT).unwrap_or_else(|_| "tint".to_owned());
        if Command::new(&tint).arg("--help").output().is_ok() {
            let count = self.each("wgsl", |text, path| tint_accepts(&tint, text, path))?;
            said.push(format!("Tint accepts all {count} texts."));
        } else {
            eprintln!("skipped: tint cannot be run; set {TINT} to a tint command");
        }
        match std::env::var_os(DXCOMPILER) {
            Some(library) => {
                let dxc = Dxc::load(Path::new(&library))?;
                let count = self.each("hlsl", |text, _| dxc.compile(text))?;
                said.push(format!("DXC compiles all {count} texts in HLSL, as naga writes them for shader model 6.0."));
            }
            None => eprintln!("skipped: there is no DXC; set {DXCOMPILER} to its library"),
        }
        Ok(said)
    }

    fn each(&self, ending: &str, mut judge: impl FnMut(&str, &Path) -> anyhow::Result<()>) -> anyhow::Result<usize> {
        let mut count = 0;
        for ((_, text), path) in self.files.iter().filter(|((found, _), _)| *found == ending) {
            judge(text, path).with_context(|| path.file_stem().unwrap_or_default().to_string_lossy().into_owned())?;
            count += 1;
        }
        Ok(count)
    }
}

fn tint_accepts(tint: &str, text: &str, path: &Path) -> anyhow::Result<()> {
    let file = path.with_extension("tint.wgsl");
    fs::write(&file, browser_wgsl(text))?;
    let output = Command::new(tint).args(["--format", "wgsl"]).arg(&file).output()?;
    fs::remove_file(&file)?;
    judge(output)
}

fn judge(output: Output) -> anyhow::Result<()> {
    if !output.status.success() {
        bail!("{}{}", String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}
