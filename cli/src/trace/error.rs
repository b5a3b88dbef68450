//! Why a log could not be read.

use std::io;

use super::MAX_LINE_BYTES;

#[derive(Debug, thiserror::Error)]
#[error("{file}{}: {problem}", line.map_or_else(String::new, |line| format!(":{line}")))]
pub struct TraceError {
    pub file: String,
    pub line: Option<u64>,
    pub problem: Problem,
}

/// What is wrong. Texts of the log are shortened.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("{0}")]
    Io(io::Error),
    #[error("damaged or truncated gzip data: {0}")]
    Gzip(io::Error),
    #[error("no requests in it{}", left_out(*.skipped))]
    Empty { skipped: u64 },
    #[error(
        "unknown header {header:?}; expected arrival_s,prompt_tokens,output_tokens or the header of an Azure or BurstGPT \
         trace, or JSON lines of Mooncake"
    )]
    UnknownHeader { header: String },
    #[error("no column {0:?}")]
    MissingColumn(&'static str),
    #[error("{} under a header of {expected}", count(*.found, "field"))]
    FieldCount { found: u64, expected: u64 },
    #[error("not a JSON object: {0}")]
    Json(serde_json::Error),
    #[error("{field} {value:?} is not {expected}")]
    Value { field: &'static str, value: String, expected: &'static str },
    #[error("{field} {value:?} is later than {limit}; {remedy}")]
    TooLate { field: &'static str, value: String, limit: String, remedy: &'static str },
    #[error("{field} {value:?} {is}, unlike the rows above; give all times or none an offset")]
    MixedOffsets { field: &'static str, value: String, is: &'static str },
    #[error("{field} {value:?} is earlier than the line before; sort the log by arrival")]
    Unsorted { field: &'static str, value: String },
    #[error(
        "{field} has {ids} ids, but a prompt of {prompt_tokens} tokens has at most {limit}{}",
        if *.tokens_per_id > 1 { format!(" of {tokens_per_id} tokens; --tokens-per-id says how many an id stands for") } else { String::new() }
    )]
    TooManyIds { field: &'static str, ids: u64, prompt_tokens: u32, limit: u32, tokens_per_id: u32 },
    #[error("a line longer than {MAX_LINE_BYTES} bytes")]
    LineTooLong,
    #[error("a carriage return within a line; end every line with a line feed")]
    CarriageReturn,
    #[error("a quote that is not closed; a row is one line")]
    OpenQuote,
    #[error("more than {limit} {what}; cut the log")]
    TooMany { what: &'static str, limit: usize },
    #[error(
        "{field} fits blocks of {fitting}, which leaves open how many tokens an id stands for; give --tokens-per-id"
    )]
    UnclearIds { field: &'static str, fitting: String },
    #[error("{field} holds dates, so --time-unit has no effect; leave it out")]
    UnitOfDates { field: &'static str },
}

impl Problem {
    /// Whether one row is bad, so that the rows after it can still be read.
    pub(super) fn is_of_one_row(&self) -> bool {
        let of_the_log = matches!(self, Self::Io(_) | Self::Gzip(_) | Self::Empty { .. } | Self::UnknownHeader { .. });
        !of_the_log && !matches!(self, Self::TooMany { .. } | Self::UnclearIds { .. } | Self::UnitOfDates { .. })
    }
}

fn left_out(skipped: u64) -> String {
    match skipped {
        0 => String::new(),
        1 => " but 1 bad row, which was left out".to_owned(),
        skipped => format!(" but {skipped} bad rows, which were left out"),
    }
}

/// `1 row`, `2 rows`.
pub(crate) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
