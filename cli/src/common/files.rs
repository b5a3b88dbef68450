//! Files that a report goes to: JSON, CSV, a page, plots.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use wgpu_paged_attention::host::AtomicFile;

use super::{Failure, Status, print};
use crate::html::Page;
use crate::report::to_json;

/// Files that a command reads, which are not to be replaced.
type Inputs<'a> = [&'a Option<PathBuf>];

pub trait Report: Serialize + DeserializeOwned {
    const KIND: &'static str;

    fn to_json(&self) -> Result<String, serde_json::Error> {
        to_json(self)
    }

    fn to_csv(&self) -> Result<String, csv::Error>;
    fn page(&self) -> Page;
}

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
    pub fn prepare(&self, inputs: &Inputs<'_>) -> Result<TableFiles, Failure> {
        let json = OutputFile::prepare("--json", &self.json, inputs)?;
        let csv = OutputFile::prepare("--csv", &self.csv, inputs)?;
        distinct([&json, &csv])?;
        Ok(TableFiles { json, csv })
    }
}

impl ReportArgs {
    pub fn prepare(&self, inputs: &Inputs<'_>) -> Result<ReportFiles, Failure> {
        let tables = self.tables.prepare(inputs)?;
        let page = OutputFile::prepare("--report", &self.report, inputs)?;
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

#[derive(Debug)]
pub struct TableFiles {
    pub json: Option<OutputFile>,
    pub csv: Option<OutputFile>,
}

impl TableFiles {
    pub fn apart_from(&self, other: &Option<OutputFile>) -> Result<(), Failure> {
        [&self.json, &self.csv].into_iter().try_for_each(|file| distinct([file, other]))
    }

    pub fn deliver(&self, report: &impl Report) -> Result<(), Failure> {
        print(&report.page().to_text())?;
        self.write(report)
    }

    pub fn write(&self, report: &impl Report) -> Result<(), Failure> {
        self.write_json(report)?;
        write(self.csv.as_ref(), || report.to_csv())
    }

    pub fn write_json(&self, report: &impl Report) -> Result<(), Failure> {
        write(self.json.as_ref(), || report.to_json())
    }
}

#[derive(Debug)]
pub struct ReportFiles {
    pub tables: TableFiles,
    page: Option<OutputFile>,
    svgs: Option<PathBuf>,
}

impl ReportFiles {
    pub fn apart_from(&self, other: &Option<OutputFile>) -> Result<(), Failure> {
        self.tables.apart_from(other)?;
        distinct([&self.page, other])
    }

    pub fn deliver(&self, report: &impl Report) -> Result<(), Failure> {
        self.tables.deliver(report)?;
        let page = report.page();
        write(self.page.as_ref(), || page.to_html())?;
        let Some(directory) = &self.svgs else { return Ok(()) };
        let svgs = page.to_svgs().map_err(|error| failed(directory, error))?;
        for (name, svg) in svgs {
            let path = directory.join(name + ".svg");
            let file = OutputFile { option: "--svg", given: path.clone(), path };
            file.write(&svg)?;
        }
        Ok(())
    }
}

fn write<E: Display>(file: Option<&OutputFile>, text: impl FnOnce() -> Result<String, E>) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    file.write(&text().map_err(|error| failed(&file.given, error))?)
}

fn failed(path: &Path, error: impl Display) -> Failure {
    Failure::new(Status::Failed, format!("cannot write {}: {error}", path.display()))
}

fn prepare_directory(path: &Path) -> Result<PathBuf, Failure> {
    if path == Path::new("-") {
        return Err(Failure::new(Status::Usage, "--svg -: stdout is taken by the table; give a directory"));
    }
    let made = fs::create_dir_all(path).and_then(|()| AtomicFile::create(&path.join("plot.svg")));
    made.map(|_| path.to_owned())
        .map_err(|error| Failure::new(Status::Usage, format!("--svg {}: cannot be written: {error}", path.display())))
}

/// The one path of a file that may be called by many, also before it is there.
fn resolved(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let in_parent = || Some(fs::canonicalize(parent).ok()?.join(path.file_name()?));
    in_parent().unwrap_or_else(|| path.to_owned())
}

/// A file that is written whole or not at all.
#[derive(Debug)]
pub struct OutputFile {
    option: &'static str,
    /// As it was typed, for messages.
    given: PathBuf,
    /// The file itself, whatever it is called.
    path: PathBuf,
}

impl OutputFile {
    /// Refuses a path that cannot be written, before any time is spent on what should go there. `option` is what the
    /// path was given with, `inputs` what the command reads.
    pub fn prepare(option: &'static str, path: &Option<PathBuf>, inputs: &Inputs<'_>) -> Result<Option<Self>, Failure> {
        let Some(path) = path else { return Ok(None) };
        let at = |place: &Path| Self { option, given: path.clone(), path: place.to_owned() };
        if path == Path::new("-") {
            return Err(at(path).refuse("stdout is taken by the table; give a file"));
        }
        match AtomicFile::create(path) {
            Ok(file) => {
                let place = resolved(file.path());
                let is_read = |input: &PathBuf| fs::canonicalize(input).is_ok_and(|input| input == place);
                match inputs.iter().any(|input| input.as_ref().is_some_and(is_read)) {
                    true => Err(at(path).refuse("the command reads this file; give another")),
                    false => Ok(Some(at(&place))),
                }
            }
            Err(error) if error.raw_os_error().is_none() => Err(at(path).refuse(&error.to_string())),
            Err(error) => {
                Err(at(path).refuse(&format!("cannot be written: {error}; give a file in a directory that can be")))
            }
        }
    }

    fn refuse(&self, why: &str) -> Failure {
        Failure::new(Status::Usage, format!("{} {}: {why}", self.option, self.given.display()))
    }

    pub fn write(&self, text: &str) -> Result<(), Failure> {
        let write = || {
            let mut file = AtomicFile::create(&self.path)?;
            file.write_all(text.as_bytes())?;
            file.commit()
        };
        write().map_err(|error: io::Error| failed(&self.given, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("paged-attention-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn writing_replaces_the_file_and_leaves_nothing_else() {
        let folder = folder("replace");
        let path = folder.join("result.json");
        let file = OutputFile::prepare("--json", &Some(path.clone()), &[]).unwrap().unwrap();
        for text in ["first", "second"] {
            file.write(text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_failed_write_leaves_what_was_there() {
        let folder = folder("keep");
        let path = folder.join("./result.json");
        let file = OutputFile::prepare("--json", &Some(path.clone()), &[]).unwrap().unwrap();
        fs::create_dir_all(path.join("inside")).unwrap();
        let error = file.write("text").unwrap_err();
        // Named as it was typed.
        assert!(error.message.starts_with(&format!("cannot write {}", path.display())), "{}", error.message);
        assert!(path.join("inside").exists() && fs::read_dir(&folder).unwrap().count() == 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn x02_links_are_followed_devices_refused_and_other_files_left_alone() {
        let folder = folder("x02");
        let (target, link) = (folder.join("target.json"), folder.join("link.json"));
        let beside = ["target.json.tmp", "link.json.tmp", ".tmp"].map(|name| folder.join(name));
        beside.iter().for_each(|file| fs::write(file, "mine").unwrap());
        std::os::unix::fs::symlink("target.json", &link).unwrap();
        let file = OutputFile::prepare("--json", &Some(link.clone()), &[]).unwrap().unwrap();
        file.write("text").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), "text");
        assert!(beside.iter().all(|file| fs::read_to_string(file).unwrap() == "mine"));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2 + beside.len());
        let twice = OutputFile::prepare("--csv", &Some(target.clone()), &[]).unwrap();
        assert!(distinct([&Some(file), &twice]).unwrap_err().message.contains("--json goes there already"));
        for device in [Path::new("/dev/null"), &folder] {
            let refusal = OutputFile::prepare("--json", &Some(device.to_owned()), &[]).unwrap_err();
            assert_eq!(refusal.status, Status::Usage);
            assert!(refusal.message.contains("not a regular file"), "{}", refusal.message);
        }
        let locked = folder.join("locked.json");
        fs::write(&locked, "mine").unwrap();
        fs::set_permissions(&locked, std::os::unix::fs::PermissionsExt::from_mode(0o444)).unwrap();
        let refusal = OutputFile::prepare("--json", &Some(locked.clone()), &[]).unwrap_err();
        assert!(refusal.message.ends_with("the file is read-only; make it writable, or give another"));
        // What a command reads is never what it replaces, whatever names the two have.
        for (output, input) in
            [(&target, &target), (&link, &target), (&target, &link), (&folder.join("./link.json"), &link)]
        {
            let refusal =
                OutputFile::prepare("--json", &Some(output.clone()), &[&None, &Some(input.clone())]).unwrap_err();
            assert_eq!(refusal.status, Status::Usage);
            let name = format!("--json {}: the command reads this file", output.display());
            assert!(refusal.message.starts_with(&name), "{}", refusal.message);
        }
        OutputFile::prepare("--json", &Some(target.clone()), &[&Some(beside[0].clone())]).unwrap();
        assert!(prepare_directory(Path::new("-")).unwrap_err().message.starts_with("--svg -: stdout"));
        prepare_directory(&folder).unwrap();
        assert_eq!(fs::read_to_string(&beside[2]).unwrap(), "mine");
        fs::remove_dir_all(folder).unwrap();
    }
}
