//! The `paged-attention` binary: arguments in, text and exit status out. A folder per command.

mod args;
mod bench;
mod blocks;
#[cfg(test)]
mod browser;
mod check;
mod common;
mod compare;
mod devices;
mod html;
mod models;
mod needs;
mod plan;
mod replay;
mod report;
mod seed;
mod trace;
mod tune;
mod workload;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use args::{Cli, Command};

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // Mesa's loader prints `error: XDG_RUNTIME_DIR is invalid or not set` to stderr although nothing here needs it.
        // SAFETY: no other thread exists yet that could read the environment meanwhile.
        unsafe { std::env::set_var("XDG_RUNTIME_DIR", std::env::temp_dir()) };
    }
    // Says what is wrong with the arguments, and ends with 2.
    let matches = Cli::command().get_matches_from(with_command(std::env::args_os().collect()));
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let ended = needs::check(&matches).and_then(|()| match cli.command {
        Command::Devices(args) => devices::run(&args),
        Command::Check(args) => check::command::run(&args),
        Command::Bench(args) => bench::command::run(&args),
        Command::Tune(args) => tune::command::run(&args),
        Command::Compare(args) => compare::command::run(&args),
        Command::Blocks(args) => blocks::command::run(&args),
        Command::Plan(args) => plan::command::run(&args),
        Command::Replay(args) => replay::command::run(&args),
    });
    match ended {
        Ok(status) => status.into(),
        Err(failure) => {
            eprintln!("error: {}", failure.message);
            failure.status.into()
        }
    }
}

/// Prepends `bench` to the options where no command is given: it is what most people came for.
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
