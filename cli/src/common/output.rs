//! Where output goes: the table to stdout, what happens meanwhile to stderr. Files are in `files`.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Failure, Status};

/// Prints to stdout. A reader that has seen enough, such as `head`, is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Status::Failed, format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        // The template is a constant; if it were wrong, the bar would only look plainer.
        if let Ok(style) = ProgressStyle::with_template("[{elapsed}] {wide_bar} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    pub fn start(&self, total: usize) {
        self.0.set_length(total as u64);
        if io::stderr().is_terminal() {
            self.0.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    pub fn at(&self, done: usize, label: &str) {
        self.0.set_position(done as u64);
        self.0.set_message(label.to_owned());
    }

    pub fn say(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }

    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
