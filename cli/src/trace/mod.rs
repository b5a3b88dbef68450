//! Request logs: when requests came, how long their prompts were and how long their answers.
//!
//! Four forms are told apart by their first line:
//!
//! | form | first line |
//! |---|---|
//! | this project's | `arrival_s,prompt_tokens,output_tokens[,hash_ids]`, further columns ignored |
//! | Azure LLM inference traces | `TIMESTAMP,ContextTokens,GeneratedTokens`, dates and times |
//! | BurstGPT | `Timestamp,Model,Request tokens,Response tokens,...`, seconds |
//! | Mooncake | JSON, one object a line, with `timestamp` (ms), `input_length`, `output_length` and `hash_ids` |
//!
//! Columns may stand in any order. A byte order mark and CRLF line ends are accepted, and so is any of it compressed by
//! gzip, which is recognised by its first bytes. A row is one line. Logs are read as a stream: one line is held at a
//! time, and no line may be longer than [`MAX_LINE_BYTES`].
//!
//! `hash_ids` tells what a prompt consists of, block by block: prompts that begin with equal ids begin with equal tokens.
//! In a table they are separated by `;`, and `14-27` is short for all ids from 14 to 27; in JSON they are a list.

pub mod args;
mod error;
mod forms;
mod ids;
mod input;
mod read;
mod request;
mod rows;
mod sample;
mod seen;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use error::TraceError;
pub use read::TraceReader;
pub use request::{PrefixIds, Request};
pub use sample::{SampleError, sequence_lengths};
pub(crate) use seen::found_tokens;

/// The longest line of a log, in bytes; real ones stay below 10 KB.
pub const MAX_LINE_BYTES: usize = 1 << 20;
/// The most requests [`read_file`] collects: one GiB of them.
pub const MAX_REQUESTS: usize = 1 << 25;
/// The most ranges of ids that [`read_file`] collects: half a GiB of them.
pub const MAX_ID_RANGES: usize = 1 << 25;

/// How to read a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Leave out rows that cannot be read, and count them. A row that is earlier than the one before it is such a row,
    /// so a single time that is far too late takes those after it along.
    pub skip_bad: bool,
    /// Tokens that one id stands for. `None`: 512 in JSON, as Mooncake publishes; in a table the one power of two up to
    /// 4,096 for which the ids of every prompt are as many as its blocks, or its full blocks.
    pub tokens_per_id: Option<u32>,
}

/// A whole log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// Its name in reports; no path.
    pub name: String,
    /// At least one, in the order of their arrival.
    pub requests: Vec<Request>,
    /// Bad rows left out.
    pub skipped: u64,
    /// Tokens that one id of [`Request::prefix`] stands for; `None` if the log has no ids.
    pub tokens_per_id: Option<u32>,
}

/// Reads a whole log.
///
/// # Errors
/// A [`TraceError`] that names the file, and the line and field where there is one. A log without requests is an error.
pub fn read_file(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Log, TraceError> {
    let path = path.as_ref();
    let file = path.display().to_string();
    let input = File::open(path).map_err(|source| TraceError::Io { file: file.clone(), source })?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Log { name, ..read_all(input, file, options)? })
}

/// Reads a whole log from any source; `name` stands for the file in errors.
///
/// # Errors
/// As [`read_file`].
pub fn read_all(input: impl Read, name: impl Into<String>, options: &ReadOptions) -> Result<Log, TraceError> {
    let name = name.into();
    let mut reader = TraceReader::new(input, name.clone(), options)?;
    let (mut requests, mut id_ranges) = (Vec::new(), 0);
    while let Some(request) = reader.next().transpose()? {
        id_ranges += request.prefix.num_ranges();
        for (count, limit, what) in
            [(requests.len() + 1, MAX_REQUESTS, "requests"), (id_ranges, MAX_ID_RANGES, "ranges of ids")]
        {
            if count > limit {
                return Err(TraceError::TooMany { file: name, line: reader.line(), what, limit });
            }
        }
        requests.push(request);
    }
    let skipped = reader.skipped();
    if requests.is_empty() {
        return Err(TraceError::Empty { file: name, skipped });
    }
    let tokens_per_id = match reader.tokens_per_id() {
        _ if id_ranges == 0 => None,
        Some(tokens) => Some(tokens),
        None => Some(ids::tokens_per_id(&requests, &name)?),
    };
    Ok(Log { name, requests, skipped, tokens_per_id })
}

#[cfg(test)]
mod tests;
