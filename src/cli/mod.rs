//! The command line: arguments in, text and exit status out. The work is the library's.

mod args;
mod bench;
mod blocks;
mod check;
mod compare;
mod devices;
mod files;
mod logs;
mod model;
mod output;
mod plan;
mod replay;
mod status;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use wgpu_paged_attention::harness::{AdapterChoice, Gpu, GpuOptions};

use args::{AdapterArgs, Cli, Command};
use status::{Failure, Status};

/// Runs the program.
pub fn main() -> ExitCode {
    // Says what is wrong with the arguments, and ends with 2.
    let cli = Cli::parse_from(with_command(std::env::args_os().collect()));
    let ended = match cli.command {
        Command::Devices(args) => devices::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Blocks(args) => blocks::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Replay(args) => replay::run(&args),
    };
    match ended {
        Ok(status) => status.into(),
        Err(failure) => {
            eprintln!("error: {}", failure.message);
            failure.status.into()
        }
    }
}

/// Puts `bench` in front of the options where no command is given: it is what most people came for.
fn with_command(mut args: Vec<OsString>) -> Vec<OsString> {
    const OF_THE_PROGRAM: [&str; 4] = ["-h", "--help", "-V", "--version"];
    let bench = match args.get(1).map(|arg| arg.to_string_lossy()) {
        None => true,
        Some(first) => first.starts_with('-') && !OF_THE_PROGRAM.contains(&&*first),
    };
    if bench {
        args.insert(1.min(args.len()), "bench".into());
    }
    args
}

/// Opens a device, or says with status 3 why there is none.
fn open(args: &AdapterArgs) -> Result<Gpu, Failure> {
    let adapter = AdapterChoice { name: args.adapter.clone(), require_gpu: args.require_gpu };
    Gpu::open(&GpuOptions { adapter, ..GpuOptions::default() })
        .map_err(|error| Failure::new(Status::NoAdapter, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_alone_are_those_of_bench() {
        let args = |words: &[&str]| with_command(words.iter().map(OsString::from).collect());
        assert_eq!(args(&["p"]), ["p", "bench"]);
        assert_eq!(args(&["p", "--quick"]), ["p", "bench", "--quick"]);
        for first in ["--help", "-h", "-V", "--version", "check", "nonsense"] {
            assert_eq!(args(&["p", first]), ["p", first]);
        }
    }
}
