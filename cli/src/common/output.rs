//! Where output goes: the table to stdout, what happens meanwhile to stderr. Files are in `files`.

use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::compiling::say_what_compiles;
use super::{Failure, Status};

/// Between two lines where no bar can be drawn.
const EVERY: Duration = Duration::from_secs(10);

/// Prints to stdout. A reader that has seen enough, such as `head`, is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Status::Failed, format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// A bar on a terminal; elsewhere a line every ten seconds, which tells a slow driver from one that hangs.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Ends the lines when it is dropped.
    lines: Mutex<Option<Sender<()>>>,
}

impl Progress {
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        // The template is a constant; if it were wrong, the bar would only look plainer.
        if let Ok(style) = ProgressStyle::with_template("[{elapsed}] {wide_bar} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        let above = bar.clone();
        say_what_compiles(move |line| above.suspend(|| eprintln!("{line}")));
        Self { bar, lines: Mutex::default() }
    }

    pub fn start(&self, total: usize) {
        self.bar.set_length(total as u64);
        if io::stderr().is_terminal() {
            return self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        let (sender, ended) = channel();
        *self.lines.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        let bar = self.bar.clone();
        std::thread::spawn(move || print_lines(&bar, &ended));
    }

    pub fn at(&self, done: usize, label: &str) {
        self.bar.set_position(done as u64);
        self.bar.set_message(label.to_owned());
    }

    pub fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    pub fn finish(&self) {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.bar.finish_and_clear();
    }
}

fn print_lines(bar: &ProgressBar, ended: &Receiver<()>) {
    while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
        let (done, total) = (bar.position(), bar.length().unwrap_or_default());
        eprintln!("{done} of {total} after {} s; {}", bar.elapsed().as_secs(), bar.message());
    }
}
