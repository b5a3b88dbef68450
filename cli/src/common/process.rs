//! The process: its command line, and how Ctrl-C ends it.

use std::io::{IsTerminal, stderr};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Failure, Status};

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
