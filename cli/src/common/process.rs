//! How a command begins and ends: its adapter, its command line, Ctrl-C and the exit status.

use std::io::{IsTerminal, stderr};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use wgpu_paged_attention::testkit::{AdapterChoice, Gpu, GpuOptions, OpenError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    /// A wrong result, a measurement that failed, or a report that could not be written.
    Failed = 1,
    Usage = 2,
    NoAdapter = 3,
    Interrupted = 130,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status as u8)
    }
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub status: Status,
    /// What to print after `error: `, remedy included.
    pub message: String,
}

impl Failure {
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let status = if matches!(error, OpenError::Environment { .. }) { Status::Usage } else { Status::NoAdapter };
        Self::new(status, error.to_string())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    Vulkan,
    Dx12,
    Metal,
}

impl From<Backend> for wgpu::Backend {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Vulkan => Self::Vulkan,
            Backend::Dx12 => Self::Dx12,
            Backend::Metal => Self::Metal,
        }
    }
}

#[derive(Debug, Args)]
pub struct AdapterArgs {
    /// Part of the adapter's name in any case, or its number in `devices` [default: the first].
    #[arg(long, value_name = "NAME|NUMBER", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub adapter: Option<String>,
    /// Only adapters of this backend: Windows lists a GPU for Vulkan and for DX12.
    #[arg(long)]
    pub backend: Option<Backend>,
    /// Refuse an adapter that computes on the CPU (exit status 3).
    #[arg(long)]
    pub require_gpu: bool,
}

impl AdapterArgs {
    pub fn choice(&self) -> AdapterChoice {
        let (name, backend) = (self.adapter.clone(), self.backend.map(wgpu::Backend::from));
        AdapterChoice { name, backend, require_gpu: self.require_gpu }
    }

    pub fn open(&self) -> Result<Gpu, Failure> {
        Ok(Gpu::open(&GpuOptions { adapter: self.choice(), ..GpuOptions::default() })?)
    }
}

/// The command line of this run, fit for a shell. Names of files that are not UTF-8 are approximated.
pub fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    quoted(std::iter::once("paged-attention".to_owned()).chain(words), std::env::consts::OS)
}

/// Windows has two shells; both take double quotes, and neither keeps to the rules of the others.
fn quoted(mut words: impl Iterator<Item = String>, os: &str) -> String {
    if os != "windows" {
        return shell_words::join(words);
    }
    let plain = |c: char| c.is_alphanumeric() || "-_.:=+/\\".contains(c);
    let mut line = words.next().unwrap_or_default();
    for word in words {
        let bare = !word.is_empty() && word.chars().all(plain);
        line += &if bare { format!(" {word}") } else { format!(" \"{}\"", escaped(&word)) };
    }
    line
}

/// Within double quotes a program takes backslashes for escapes only where a quote follows them.
fn escaped(word: &str) -> String {
    let (mut out, mut backslashes) = (String::new(), 0);
    for c in word.chars() {
        if c == '"' {
            out += &"\\".repeat(backslashes + 1);
        }
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
        out.push(c);
    }
    out + &"\\".repeat(backslashes)
}

/// The first Ctrl-C ends the run after the current case, the second one at once.
pub fn cancel_on_ctrl_c() -> Result<Arc<AtomicBool>, Failure> {
    let cancel = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&cancel);
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            process::exit(Status::Interrupted as i32);
        }
        // On a terminal, below the bar.
        let newline = if stderr().is_terminal() { "\n" } else { "" };
        eprintln!("{newline}stopping after this case; Ctrl-C once more stops at once");
    })
    .map_err(|error| Failure::new(Status::Failed, format!("cannot listen for Ctrl-C: {error}")))?;
    Ok(cancel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_quoted_for_the_shell_of_its_system() {
        let words =
            ["p", "--csv", r"C:\a.csv", "--svg", r"C:\my plots\", "--kv-dtype", "f16,f32", r#"a"b"#, r#"a\"b\\"#, ""];
        let line = |os| quoted(words.iter().map(|word| (*word).to_owned()), os);
        let windows = r#"p --csv C:\a.csv --svg "C:\my plots\\" --kv-dtype "f16,f32" "a\"b" "a\\\"b\\\\" """#;
        assert_eq!(line("windows"), windows);
        assert_eq!(line("linux"), r#"p --csv 'C:\a.csv' --svg 'C:\my plots\' --kv-dtype f16,f32 'a"b' 'a\"b\\' ''"#);
    }
}
