//! Files that a report goes to: JSON, CSV, a page, plots.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use crate::html::Page;
use crate::report::{replace_file, temporary_path};
use clap::Args;

use crate::common::status::{Failure, Status};

/// Where the numbers of a report go besides stdout.
#[derive(Debug, Args)]
pub struct TableArgs {
    /// Write the report to this file as well.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the results to this file as well, one row each.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// Where a report with plots goes besides stdout.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// The numbers.
    #[command(flatten)]
    pub tables: TableArgs,
    /// Write a page with plots and tables: one file that needs no network.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Write each plot of the page as an SVG file into this directory.
    #[arg(long, value_name = "DIR")]
    pub svg: Option<PathBuf>,
}

impl TableArgs {
    /// Refuses what cannot be written, before any time is spent on what should go there.
    pub fn prepare(&self) -> Result<TableFiles, Failure> {
        let json = OutputFile::prepare("--json", self.json.as_deref())?;
        let csv = OutputFile::prepare("--csv", self.csv.as_deref())?;
        distinct([&json, &csv])?;
        Ok(TableFiles { json, csv })
    }
}

impl ReportArgs {
    /// As [`TableArgs::prepare`].
    pub fn prepare(&self) -> Result<ReportFiles, Failure> {
        let tables = self.tables.prepare()?;
        let page = OutputFile::prepare("--report", self.report.as_deref())?;
        distinct([&tables.json, &page])?;
        distinct([&tables.csv, &page])?;
        let svgs = self.svg.as_deref().map(prepare_directory).transpose()?;
        Ok(ReportFiles { tables, page, svgs })
    }
}

/// Or one would take the other's place.
fn distinct([a, b]: [&Option<OutputFile>; 2]) -> Result<(), Failure> {
    match (a, b) {
        (Some(a), Some(b)) if a.path == b.path => Err(b.refuse(&format!("{} goes there already", a.option))),
        _ => Ok(()),
    }
}

/// The files of [`TableArgs`], ready to be written.
#[derive(Debug)]
pub struct TableFiles {
    /// `--json`.
    pub json: Option<OutputFile>,
    /// `--csv`.
    pub csv: Option<OutputFile>,
}

impl TableFiles {
    /// Writes the JSON, if it was asked for.
    pub fn write_json<E: Display>(&self, json: impl FnOnce() -> Result<String, E>) -> Result<(), Failure> {
        write(self.json.as_ref(), json)
    }

    /// Writes the CSV, if it was asked for.
    pub fn write_csv<E: Display>(&self, csv: impl FnOnce() -> Result<String, E>) -> Result<(), Failure> {
        write(self.csv.as_ref(), csv)
    }
}

/// The files of [`ReportArgs`], ready to be written.
#[derive(Debug)]
pub struct ReportFiles {
    /// The numbers.
    pub tables: TableFiles,
    page: Option<OutputFile>,
    svgs: Option<PathBuf>,
}

impl ReportFiles {
    /// Refuses another file that goes where one of these does.
    pub fn apart_from(&self, other: &Option<OutputFile>) -> Result<(), Failure> {
        [&self.tables.json, &self.tables.csv, &self.page].into_iter().try_for_each(|file| distinct([file, other]))
    }

    /// Writes the page and its plots, if they were asked for.
    pub fn write_page(&self, page: impl Into<Page>) -> Result<(), Failure> {
        if self.page.is_none() && self.svgs.is_none() {
            return Ok(());
        }
        let page = page.into();
        write(self.page.as_ref(), || page.to_html())?;
        let Some(directory) = &self.svgs else { return Ok(()) };
        let svgs = page.to_svgs().map_err(|error| failed(directory, error))?;
        for (name, svg) in svgs {
            let file = OutputFile { option: "--svg", path: directory.join(name + ".svg") };
            file.write(&svg)?;
        }
        Ok(())
    }
}

fn write<E: Display>(file: Option<&OutputFile>, text: impl FnOnce() -> Result<String, E>) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    file.write(&text().map_err(|error| failed(&file.path, error))?)
}

fn failed(path: &Path, error: impl Display) -> Failure {
    Failure::new(Status::Failed, format!("cannot write {}: {error}", path.display()))
}

/// A directory that is there and can be written.
fn prepare_directory(path: &Path) -> Result<PathBuf, Failure> {
    let probe = path.join(".tmp");
    fs::create_dir_all(path).and_then(|()| fs::File::create(&probe)).and_then(|_| fs::remove_file(&probe)).map_err(
        |error| Failure::new(Status::Usage, format!("--svg {}: cannot be written: {error}", path.display())),
    )?;
    Ok(path.to_owned())
}

/// The one path of a file that may be called by many: a link's target is replaced, not the link, and two names of one
/// file are noticed before it is there.
fn resolved(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let in_parent = || Some(fs::canonicalize(parent).ok()?.join(path.file_name()?));
    fs::canonicalize(path).ok().or_else(in_parent).unwrap_or_else(|| path.to_owned())
}

/// A file that is written whole or not at all.
#[derive(Debug)]
pub struct OutputFile {
    option: &'static str,
    path: PathBuf,
}

impl OutputFile {
    /// Refuses a path that cannot be written, before any time is spent on what should go there. `option` is what the
    /// path was given with.
    pub fn prepare(option: &'static str, path: Option<&Path>) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        if path == Path::new("-") {
            let file = Self { option, path: path.to_owned() };
            return Err(file.refuse("stdout is taken by the table; give a file"));
        }
        let file = Self { option, path: resolved(path) };
        // A rename would put a file in the place of a directory or a device such as /dev/null.
        if fs::metadata(&file.path).is_ok_and(|found| !found.is_file()) {
            return Err(file.refuse("not a regular file; give the name of a file"));
        }
        let temporary = temporary_path(&file.path);
        fs::File::create(&temporary).and_then(|_| fs::remove_file(&temporary)).map_err(|error| {
            file.refuse(&format!("cannot be written: {error}; give a file in a directory that can be"))
        })?;
        Ok(Some(file))
    }

    fn refuse(&self, why: &str) -> Failure {
        Failure::new(Status::Usage, format!("{} {}: {why}", self.option, self.path.display()))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts `text` in the place of the file.
    pub fn write(&self, text: &str) -> Result<(), Failure> {
        replace_file(&self.path, text).map_err(|error| failed(&self.path, error))
    }
}
