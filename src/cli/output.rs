//! Where output goes: the table to stdout, what happens meanwhile to stderr, JSON to a file.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::status::{Failure, Status};

/// Prints to stdout. A reader that has seen enough, such as `head`, is no error.
pub fn print(text: &str) -> Result<(), Failure> {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Status::Failed, format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// A progress bar on a terminal, nothing anywhere else.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// No bar yet.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        // The template is a constant; if it were wrong, the bar would only look plainer.
        if let Ok(style) = ProgressStyle::with_template("[{elapsed}] {wide_bar} {pos}/{len} {msg}") {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Shows a bar of this length, if stderr is a terminal.
    pub fn start(&self, total: usize) {
        self.0.set_length(total as u64);
        if io::stderr().is_terminal() {
            self.0.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Moves the bar.
    pub fn at(&self, done: usize, label: &str) {
        self.0.set_position(done as u64);
        self.0.set_message(label.to_owned());
    }

    /// Prints a line to stderr, above the bar.
    pub fn say(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A JSON file that is written whole or not at all.
#[derive(Debug)]
pub struct JsonFile {
    path: PathBuf,
}

impl JsonFile {
    /// Refuses a path that cannot be written, before any time is spent on what should go there.
    pub fn prepare(path: Option<&Path>) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let refuse = |why: &str| Failure::new(Status::Usage, format!("--json {}: {why}", path.display()));
        if path == Path::new("-") {
            return Err(refuse("stdout is taken by the table; give a file"));
        }
        // A link's target is replaced, not the link.
        let path_itself = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        // A rename would put a file in the place of a directory or a device such as /dev/null.
        if fs::metadata(&path_itself).is_ok_and(|found| !found.is_file()) {
            return Err(refuse("not a regular file; give the name of a file"));
        }
        let file = Self { path: path_itself };
        let temporary = file.temporary();
        fs::File::create(&temporary)
            .and_then(|_| fs::remove_file(&temporary))
            .map_err(|error| refuse(&format!("cannot be written: {error}; give a file in a directory that can be")))?;
        Ok(Some(file))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts `json` in the place of the file.
    pub fn write(&self, json: &str) -> Result<(), Failure> {
        let temporary = self.temporary();
        let write = || {
            let mut file = fs::File::create(&temporary)?;
            file.write_all(json.as_bytes())?;
            // Or the rename may reach the disk before the content does.
            file.sync_all()?;
            fs::rename(&temporary, &self.path)
        };
        write().map_err(|error: io::Error| {
            // What is left of the attempt is of no use.
            let _ = fs::remove_file(&temporary);
            Failure::new(Status::Failed, format!("cannot write {}: {error}", self.path.display()))
        })
    }

    /// The same name as [`Report::write`](wgpu_paged_attention::bench::report::Report::write) takes, so that what was
    /// tried is what will be done.
    fn temporary(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".tmp");
        name.into()
    }
}
