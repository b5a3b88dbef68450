//! Request logs: when requests came, how long their prompts were and how long their answers.
//!
//! Four forms are told apart by their first line:
//!
//! | form | first line |
//! |---|---|
//! | this project's | `arrival_s,prompt_tokens,output_tokens`, further columns ignored |
//! | Azure LLM inference traces | `TIMESTAMP,ContextTokens,GeneratedTokens`, dates and times |
//! | BurstGPT | `Timestamp,Model,Request tokens,Response tokens,...`, seconds |
//! | Mooncake | JSON, one object a line, with `timestamp` (ms), `input_length` and `output_length` |
//!
//! Columns may stand in any order. A byte order mark and CRLF line ends are accepted. Logs are read as a stream: one
//! line is held at a time, and no line may be longer than [`MAX_LINE_BYTES`].

mod input;
mod read;
mod sample;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub use read::TraceReader;
pub use sample::{SampleError, sequence_lengths};

/// The longest line of a log, in bytes; real ones stay below 10 KB. (One read-ahead buffer more may pass.)
pub const MAX_LINE_BYTES: usize = 1 << 20;
/// The most requests [`read_file`] collects: half a GiB of them.
pub const MAX_REQUESTS: usize = 1 << 25;

/// One request of a log or a synthetic workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Request {
    /// Seconds since the start of the log; never decreasing within one.
    pub arrival_s: f64,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens of the answer. 0 for a request that failed.
    pub output_tokens: u32,
}

/// Why a log could not be read. Lines are counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened or read.
    #[error("{file}: {source}")]
    Io {
        /// Name of the log.
        file: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// There is no first line, or no request after it.
    #[error("{file}: no requests in it")]
    Empty {
        /// Name of the log.
        file: String,
    },
    /// The first line is that of no known form.
    #[error(
        "{file}:1: unknown header {header:?}; expected arrival_s,prompt_tokens,output_tokens or the header of an Azure \
         or BurstGPT trace, or JSON lines of Mooncake"
    )]
    UnknownHeader {
        /// Name of the log.
        file: String,
        /// The line, shortened.
        header: String,
    },
    /// A column or JSON field that the form needs is not there.
    #[error("{file}:{line}: no column {column:?}")]
    MissingColumn {
        /// Name of the log.
        file: String,
        /// Line without it; 1 for a header.
        line: u64,
        /// Its name.
        column: &'static str,
    },
    /// A row has more or fewer fields than the header.
    #[error("{file}:{line}: {found} fields under a header of {expected}")]
    FieldCount {
        /// Name of the log.
        file: String,
        /// Line of the row.
        line: u64,
        /// Fields in the row.
        found: u64,
        /// Fields in the header.
        expected: u64,
    },
    /// A line is not JSON.
    #[error("{file}:{line}: not a JSON object: {source}")]
    Json {
        /// Name of the log.
        file: String,
        /// Line.
        line: u64,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A token count is not a whole number that fits in 32 bits.
    #[error("{file}:{line}: {field} {value:?} is not a whole number from 0 to 4294967295")]
    Tokens {
        /// Name of the log.
        file: String,
        /// Line.
        line: u64,
        /// Column or JSON field.
        field: &'static str,
        /// Its text, shortened.
        value: String,
    },
    /// A time cannot be read, is negative or is not finite.
    #[error("{file}:{line}: {field} {value:?} is not {expected}")]
    Time {
        /// Name of the log.
        file: String,
        /// Line.
        line: u64,
        /// Column or JSON field.
        field: &'static str,
        /// Its text, shortened.
        value: String,
        /// What the form wants there.
        expected: &'static str,
    },
    /// A request came before the one above it.
    #[error("{file}:{line}: {field} {value:?} is earlier than the line before; sort the log by arrival")]
    Unsorted {
        /// Name of the log.
        file: String,
        /// Line.
        line: u64,
        /// Column or JSON field.
        field: &'static str,
        /// Its text, shortened.
        value: String,
    },
    /// A line or a quoted field does not end.
    #[error("{file}:{line}: a line longer than {MAX_LINE_BYTES} bytes, or a quote that is not closed")]
    LineTooLong {
        /// Name of the log.
        file: String,
        /// Line on which it, or the empty lines before it, began.
        line: u64,
    },
    /// The log has more requests than fit.
    #[error("{file}: more than {MAX_REQUESTS} requests; cut the log")]
    TooMany {
        /// Name of the log.
        file: String,
    },
}

/// Reads a whole log.
///
/// # Errors
/// A [`TraceError`] that names the file, and the line and field where there is one. An empty log is an error.
pub fn read_file(path: impl AsRef<Path>) -> Result<Vec<Request>, TraceError> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let file = File::open(path).map_err(|source| TraceError::Io { file: name.clone(), source })?;
    read_all(file, name)
}

/// Reads a whole log from any source; `name` stands for the file in errors.
///
/// # Errors
/// As [`read_file`].
pub fn read_all(input: impl Read, name: impl Into<String>) -> Result<Vec<Request>, TraceError> {
    let name = name.into();
    let mut requests = Vec::new();
    for request in TraceReader::new(input, name.clone())? {
        if requests.len() == MAX_REQUESTS {
            return Err(TraceError::TooMany { file: name });
        }
        requests.push(request?);
    }
    if requests.is_empty() { Err(TraceError::Empty { file: name }) } else { Ok(requests) }
}

#[cfg(test)]
mod tests;
