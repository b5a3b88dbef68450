//! Why a log could not be read.

use std::io;

use super::MAX_LINE_BYTES;

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
    /// Compressed data that ends early, or that no decoder understands.
    #[error("{file}:{line}: damaged or truncated gzip data: {source}")]
    Gzip {
        /// Name of the log.
        file: String,
        /// Line that was being read.
        line: u64,
        /// What the decoder said.
        source: io::Error,
    },
    /// There is no first line, or no request after it.
    #[error("{file}: no requests in it{}", left_out(*.skipped))]
    Empty {
        /// Name of the log.
        file: String,
        /// Bad rows left out.
        skipped: u64,
    },
    /// The first line is that of no known form.
    #[error(
        "{file}:{line}: unknown header {header:?}; expected arrival_s,prompt_tokens,output_tokens or the header of an Azure \
         or BurstGPT trace, or JSON lines of Mooncake"
    )]
    UnknownHeader {
        /// Name of the log.
        file: String,
        /// Line of the header.
        line: u64,
        /// The line, shortened.
        header: String,
    },
    /// A column or JSON field that the form needs is not there.
    #[error("{file}:{line}: no column {column:?}")]
    MissingColumn {
        /// Name of the log.
        file: String,
        /// Line without it.
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
    /// The ids of a prompt's blocks cannot be read.
    #[error("{file}:{line}: {field} {value:?} is not {expected}")]
    Ids {
        /// Name of the log.
        file: String,
        /// Line.
        line: u64,
        /// Column or JSON field.
        field: &'static str,
        /// The id in question, shortened.
        value: String,
        /// What the form wants there.
        expected: &'static str,
    },
    /// A prompt has more ids than blocks.
    #[error("{file}:{line}: {field} has {ids} ids, but a prompt of {prompt_tokens} tokens has at most {limit}")]
    TooManyIds {
        /// Name of the log.
        file: String,
        /// Line.
        line: u64,
        /// Column or JSON field.
        field: &'static str,
        /// Ids given; saturates.
        ids: u64,
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// The most it may have.
        limit: u32,
    },
    /// A line is too long.
    #[error("{file}:{line}: a line longer than {MAX_LINE_BYTES} bytes")]
    LineTooLong {
        /// Name of the log.
        file: String,
        /// The line.
        line: u64,
    },
    /// A quoted field does not end with its line.
    #[error("{file}:{line}: a quote that is not closed; a row is one line")]
    OpenQuote {
        /// Name of the log.
        file: String,
        /// The line.
        line: u64,
    },
    /// The log has more requests, or ids, than fit.
    #[error("{file}:{line}: more than {limit} {what}; cut the log")]
    TooMany {
        /// Name of the log.
        file: String,
        /// Line of the first that is too much.
        line: u64,
        /// Requests, or ranges of ids.
        what: &'static str,
        /// The most that are read.
        limit: usize,
    },
    /// Nothing tells how many tokens an id stands for.
    #[error(
        "{file}: {field} fits blocks of {fitting}, so how many tokens an id stands for is not clear; give it (tokens per id)"
    )]
    UnclearIds {
        /// Name of the log.
        file: String,
        /// Column or JSON field.
        field: &'static str,
        /// The powers of two that agree with every row, or none.
        fitting: String,
    },
    /// An id cannot stand for no tokens.
    #[error("{file}: tokens_per_id is 0; give 1 or more")]
    ZeroTokensPerId {
        /// Name of the log.
        file: String,
    },
}

impl TraceError {
    /// Whether it is one row that is bad, so that the rows after it can still be read.
    pub(super) fn is_of_one_row(&self) -> bool {
        match self {
            // Of a table's header it is found before there are rows.
            Self::MissingColumn { .. }
            | Self::FieldCount { .. }
            | Self::Json { .. }
            | Self::Tokens { .. }
            | Self::Time { .. }
            | Self::Unsorted { .. }
            | Self::Ids { .. }
            | Self::TooManyIds { .. }
            | Self::LineTooLong { .. }
            | Self::OpenQuote { .. } => true,
            Self::Io { .. }
            | Self::Gzip { .. }
            | Self::Empty { .. }
            | Self::UnknownHeader { .. }
            | Self::TooMany { .. }
            | Self::UnclearIds { .. }
            | Self::ZeroTokensPerId { .. } => false,
        }
    }
}

fn left_out(skipped: u64) -> String {
    if skipped == 0 { String::new() } else { format!(" but {skipped} bad rows, which were left out") }
}
