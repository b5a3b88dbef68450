//! Reports from files.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Measure, bench, numbers};
use crate::bench::report::{KIND, Report, SCHEMA};
use crate::blocks::BlockSizesReport;
use crate::plan::{self, SizingReport};
use crate::replay::ReplayReport;

/// The largest report that is read.
pub const MAX_REPORT_BYTES: u64 = 256 << 20;

/// Why two reports were not compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file is too large for a report.
    #[error("{} has more than {MAX_REPORT_BYTES} bytes; give a report that --json has written", file.display())]
    TooLarge {
        /// The file.
        file: PathBuf,
    },
    /// The file is not a report: no JSON, cut off, or a field is missing or of another type.
    #[error("{}:{line}:{column}: {}{what}; give a report that --json has written", file.display(), at(field))]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The way to the field, empty at the top.
        field: String,
        /// What is wrong.
        what: String,
    },
    /// The report is of another version.
    #[error("{}: schema is {found}, and only {SCHEMA} can be read; write the report again with this version", file.display())]
    OtherSchema {
        /// The file.
        file: PathBuf,
        /// The number in the file.
        found: u64,
    },
    /// No such kind of report is known.
    #[error("{}: kind is {found:?}; reports of bench, plan, replay and blocks can be compared", file.display())]
    UnknownKind {
        /// The file.
        file: PathBuf,
        /// The kind in the file.
        found: String,
    },
    /// The two reports are not of one kind.
    #[error("{} is a report of {}, {} one of {}; give two of one kind", a.0.display(), a.1, b.0.display(), b.1)]
    OtherKind {
        /// File and kind of A.
        a: (PathBuf, String),
        /// File and kind of B.
        b: (PathBuf, String),
    },
}

fn at(field: &str) -> String {
    if field.is_empty() || field == "." { String::new() } else { format!("{field}: ") }
}

/// A report, reduced to what can be compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Where it was read from.
    pub file: PathBuf,
    /// What it is a report of.
    pub kind: String,
    /// How the noise of its numbers is judged.
    pub noise: String,
    /// What was asked for and on what, by name.
    pub settings: Vec<(String, String)>,
    /// Its numbers.
    pub measures: Vec<Measure>,
}

/// The fields that every report has.
#[derive(Deserialize)]
struct Header {
    schema: u64,
    #[serde(default)]
    kind: Option<String>,
}

impl Recorded {
    /// Reads a report that `--json` has written.
    ///
    /// # Errors
    /// [`CompareError`], with the file, and line and field where there are any.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, CompareError> {
        let file = path.as_ref().to_owned();
        let text = read_text(&file)?;
        let Header { schema, kind } = parse(&file, &text)?;
        if schema != u64::from(SCHEMA) {
            return Err(CompareError::OtherSchema { file, found: schema });
        }
        match kind.as_deref() {
            // Reports of the first version do not say what they are.
            None | Some(KIND) => Ok(Self::of_bench(file.clone(), &parse(&file, &text)?)),
            Some(plan::KIND) => {
                let report = checked::<SizingReport>(&file, &text)?;
                Ok(Self::of_numbers(file, plan::KIND, &report))
            }
            Some(ReplayReport::KIND) => {
                let report = checked::<ReplayReport>(&file, &text)?;
                Ok(Self::of_numbers(file, ReplayReport::KIND, &report))
            }
            Some(BlockSizesReport::KIND) => {
                let report = checked::<BlockSizesReport>(&file, &text)?;
                Ok(Self::of_numbers(file, BlockSizesReport::KIND, &report))
            }
            Some(kind) => Err(CompareError::UnknownKind { file, found: kind.chars().take(80).collect() }),
        }
    }

    /// A report without samples, as JSON.
    fn of_numbers(file: PathBuf, kind: &str, report: &Value) -> Self {
        Self {
            file,
            kind: kind.to_owned(),
            noise: numbers::noise(report),
            settings: report.as_object().map(numbers::settings).unwrap_or_default(),
            measures: numbers::measures(report),
        }
    }

    /// A report of a benchmark; `file` is its name in the comparison.
    pub fn of_bench(file: PathBuf, report: &Report) -> Self {
        let (settings, measures) = (bench::settings(report), bench::measures(report));
        Self { file, kind: KIND.to_owned(), noise: bench::noise(report), settings, measures }
    }
}

fn read_text(file: &Path) -> Result<String, CompareError> {
    let io = |source| CompareError::Io { file: file.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(file).map_err(io)?.take(MAX_REPORT_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_REPORT_BYTES {
        return Err(CompareError::TooLarge { file: file.to_owned() });
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|&&byte| byte != b'\n').count() + 1;
        let what = "not UTF-8".to_owned();
        CompareError::Malformed { file: file.to_owned(), line, column, field: String::new(), what }
    })
}

fn parse<T: DeserializeOwned>(file: &Path, text: &str) -> Result<T, CompareError> {
    let deserializer = &mut serde_json::Deserializer::from_str(text);
    let value = serde_path_to_error::deserialize(&mut *deserializer).map_err(|error| {
        let field = error.path().to_string();
        malformed(file, field, error.inner())
    })?;
    deserializer.end().map_err(|error| malformed(file, String::new(), &error))?;
    Ok(value)
}

/// The JSON of a report of this kind, and no more than that: whatever else a file holds is not even kept.
fn checked<T: Serialize + DeserializeOwned>(file: &Path, text: &str) -> Result<Value, CompareError> {
    let report: T = parse(file, text)?;
    serde_json::to_value(report).map_err(|error| malformed(file, String::new(), &error))
}

fn malformed(file: &Path, field: String, error: &serde_json::Error) -> CompareError {
    let (line, column) = (error.line(), error.column());
    // The place stands in front already.
    let what = error.to_string();
    let what = what.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&what).to_owned();
    CompareError::Malformed { file: file.to_owned(), line, column, field, what }
}
