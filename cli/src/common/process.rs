//! How a command begins and ends: its adapter, its command line, Ctrl-C and the exit status.

use std::io::{IsTerminal, stderr};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use wgpu_paged_attention::testkit::{AdapterChoice, Gpu, GpuOptions};

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

#[derive(Debug, Args)]
pub struct AdapterArgs {
    /// Part of the adapter's name in any case, or its number in `devices` [default: the first].
    #[arg(long, value_name = "NAME|NUMBER", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub adapter: Option<String>,
    /// Refuse an adapter that computes on the CPU (exit status 3).
    #[arg(long)]
    pub require_gpu: bool,
}

impl AdapterArgs {
    pub fn choice(&self) -> AdapterChoice {
        AdapterChoice { name: self.adapter.clone(), require_gpu: self.require_gpu }
    }

    pub fn open(&self) -> Result<Gpu, Failure> {
        Gpu::open(&GpuOptions { adapter: self.choice(), ..GpuOptions::default() })
            .map_err(|error| Failure::new(Status::NoAdapter, error.to_string()))
    }
}

/// The command line of this run, fit for a shell. Names of files that are not UTF-8 are approximated.
pub fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    shell_words::join(std::iter::once("paged-attention".to_owned()).chain(words))
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
