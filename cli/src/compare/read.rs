//! Reports from files.

use std::fs::File;
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Measure, bench, numbers};
use crate::bench::Report as BenchReport;
use crate::blocks::BlockSizesReport;
use crate::common::{Report, clip};
use crate::plan::SizingReport;
use crate::replay::ReplayReport;
use crate::report::SCHEMA;

pub const MAX_REPORT_BYTES: u64 = 256 << 20;

#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error("cannot read {}: {source}", file.display())]
    Io { file: PathBuf, source: io::Error },
    #[error("{} has more than {MAX_REPORT_BYTES} bytes; give a report that --json has written", file.display())]
    TooLarge { file: PathBuf },
    #[error("{}:{line}:{column}: {}{what}; give a report that --json has written", file.display(), at(field))]
    Malformed { file: PathBuf, line: usize, column: usize, field: String, what: String },
    #[error("{}: schema is {found}, and only {SCHEMA} can be read; write the report again with this version", file.display())]
    OtherSchema { file: PathBuf, found: u64 },
    #[error("{}: kind is {found:?}; reports of bench, plan, replay and blocks can be compared", file.display())]
    UnknownKind { file: PathBuf, found: String },
    #[error("{} is a report of {}, {} one of {}; give two of one kind", a.0.display(), a.1, b.0.display(), b.1)]
    OtherKind { a: (PathBuf, String), b: (PathBuf, String) },
}

fn at(field: &str) -> String {
    if field.is_empty() || field == "." { String::new() } else { format!("{field}: ") }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    pub file: PathBuf,
    pub kind: String,
    pub noise: String,
    pub settings: Vec<(String, String)>,
    pub measures: Vec<Measure>,
}

#[derive(Deserialize)]
struct Header {
    schema: u64,
    #[serde(default)]
    kind: Option<String>,
}

impl Recorded {
    pub fn read(path: impl AsRef<Path>) -> Result<Self, CompareError> {
        let file = path.as_ref().to_owned();
        let text = read_text(&file)?;
        let Header { schema, kind } = parse(&file, &text)?;
        if schema != u64::from(SCHEMA) {
            return Err(CompareError::OtherSchema { file, found: schema });
        }
        match kind.as_deref() {
            // Reports of the first version do not say what they are.
            None | Some(BenchReport::KIND) => Ok(Self::of_bench(file.clone(), &parse(&file, &text)?)),
            Some(SizingReport::KIND) => Self::of_numbers::<SizingReport>(file, &text),
            Some(ReplayReport::KIND) => Self::of_numbers::<ReplayReport>(file, &text),
            Some(BlockSizesReport::KIND) => Self::of_numbers::<BlockSizesReport>(file, &text),
            Some(kind) => Err(CompareError::UnknownKind { file, found: clip(kind) }),
        }
    }

    fn of_numbers<R: Report>(file: PathBuf, text: &str) -> Result<Self, CompareError> {
        let report: R = parse(&file, text)?;
        let report = serde_json::to_value(report).map_err(|error| malformed(&file, String::new(), &error))?;
        Ok(Self {
            file,
            kind: R::KIND.to_owned(),
            noise: numbers::noise(&report),
            settings: report.as_object().map(numbers::settings).unwrap_or_default(),
            measures: numbers::measures(&report),
        })
    }

    pub fn of_bench(file: PathBuf, report: &BenchReport) -> Self {
        let (settings, measures) = (bench::settings(report), bench::measures(report));
        Self { file, kind: BenchReport::KIND.to_owned(), noise: bench::noise(report), settings, measures }
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

fn malformed(file: &Path, field: String, error: &serde_json::Error) -> CompareError {
    let (line, column) = (error.line(), error.column());
    // The message begins with the place.
    let what = error.to_string();
    let what = what.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&what).to_owned();
    CompareError::Malformed { file: file.to_owned(), line, column, field, what }
}
