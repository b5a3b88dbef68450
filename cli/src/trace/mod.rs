//! Request logs: when requests came, how long their prompts were and how long their answers.
//!
//! Times are exact and kept in nanoseconds since the first request, 292 years of them at most. A column's name gives their
//! unit (`arrival_s`), or `--time-unit` does; else Unix times, fractions, a `chat_id` and the load that a unit would make
//! give it away; a doubt is a warning. Dates may have an offset from UTC (`Z`, `+02:00`), all of a log or none; without, they
//! are read as UTC.
//!
//! Four forms are told apart by their first line:
//!
//! | form | first line |
//! |---|---|
//! | this project's | `arrival_s,prompt_tokens,output_tokens[,hash_ids]`, further columns ignored |
//! | Azure LLM inference traces | `TIMESTAMP,ContextTokens,GeneratedTokens`, dates and times |
//! | BurstGPT | `Timestamp,Model,Request tokens,Response tokens,...`, seconds as published |
//! | Mooncake, Qwen-Bailian | JSON, one object a line: `timestamp`, `input_length`, `output_length`, `hash_ids`; milliseconds, or with `chat_id` seconds |
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
mod time;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use error::Problem;
pub use error::TraceError;
pub(crate) use error::count;
use forms::{BAILIAN, BAILIAN_TOKENS_PER_ID, Columns, Form, MOONCAKE, MOONCAKE_TOKENS_PER_ID};
use read::TraceReader;
pub use request::{PrefixIds, Request};
pub use sample::{SampleError, sequence_lengths};
pub(crate) use seen::found_tokens;
pub use time::TimeUnit;
use time::{Clock, Times};

const MAX_LINE_BYTES: usize = 1 << 20;
const MAX_REQUESTS: usize = 1 << 25;
const MAX_ID_RANGES: usize = 1 << 25;

/// A load beyond any device's, of so many requests at least.
const MIN_LOAD: usize = 10;
const MAX_ARRIVALS_PER_S: f64 = 1000.0;
const MAX_TOKENS_PER_S: f64 = 1e6;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Leave out rows that cannot be read, and count them. A row that is earlier than the one before it is such a row,
    /// so a single time that is far too late takes those after it along.
    pub skip_bad: bool,
    /// Tokens that one id stands for, 1 or more. `None`: 512 in JSON, as Mooncake publishes, or 16 with a `chat_id`; in a
    /// table the one power of two up to 4,096 for which the ids of every prompt are as many as its blocks, or its full
    /// blocks.
    pub tokens_per_id: Option<u32>,
    pub time_unit: Option<TimeUnit>,
    /// The unit does not matter, only that times do not go back: they are taken as nanoseconds.
    pub any_unit: bool,
}

impl ReadOptions {
    /// For the lengths of requests alone: what an id stands for does not matter, so a log that leaves it open is as good
    /// as any.
    pub const LENGTHS: Self = Self { skip_bad: false, tokens_per_id: Some(1), time_unit: None, any_unit: true };
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    pub name: String,
    pub requests: Vec<Request>,
    pub skipped: u64,
    /// Tokens that one id of [`Request::prefix`] stands for; `None` if the log has no ids.
    pub tokens_per_id: Option<u32>,
    /// In which unit the log tells the time, and how that is known; `None` for drawn requests.
    pub time: Option<(TimeUnit, String)>,
    /// What speaks for another unit.
    pub time_doubt: Option<String>,
}

impl Log {
    /// Arrivals and tokens per second if they are more than any device serves, as where a log is read in a wrong unit.
    pub fn overload(&self) -> Option<(f64, f64)> {
        let (last, tokens) = (self.requests.last()?.arrival_ns, self.requests.iter().map(Request::tokens).sum::<u64>());
        // Requests that all come at once have a second.
        let seconds = if last > 0 { last as f64 / 1e9 } else { 1.0 };
        let rates = ((self.requests.len() - 1) as f64 / seconds, tokens as f64 / seconds);
        (self.requests.len() >= MIN_LOAD && is_overload(rates)).then_some(rates)
    }
}

fn is_overload((arrivals, tokens): (f64, f64)) -> bool {
    arrivals > MAX_ARRIVALS_PER_S || tokens > MAX_TOKENS_PER_S
}

pub fn read_file(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Log, TraceError> {
    let path = path.as_ref();
    let file = path.display().to_string();
    let wrong = |source| TraceError { file: file.clone(), line: None, problem: Problem::Io(source) };
    let input = File::open(path).map_err(wrong)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Log { name, ..read_all(input, &file, options)? })
}

fn read_all(input: impl Read, name: &str, options: &ReadOptions) -> Result<Log, TraceError> {
    let mut reader = TraceReader::new(input, name, options)?;
    let (mut rows, mut id_ranges) = (Vec::new(), 0);
    while let Some(row) = reader.next().transpose()? {
        id_ranges += row.1.prefix.ranges().len();
        for (count, limit, what) in
            [(rows.len() + 1, MAX_REQUESTS, "requests"), (id_ranges, MAX_ID_RANGES, "ranges of ids")]
        {
            if count > limit {
                return Err(reader.error(Problem::TooMany { what, limit }));
            }
        }
        rows.push(row);
    }
    let wrong = |problem| TraceError { file: name.to_owned(), line: None, problem };
    let (times, skipped) = (&reader.rows.times, reader.skipped);
    if rows.is_empty() {
        return Err(wrong(Problem::Empty { skipped }));
    }
    let tokens = rows.iter().map(|(_, request)| request.tokens()).sum();
    let (unit, by, time_doubt) = times.unit(rows.len(), tokens).map_err(wrong)?;
    let at = |(arrival, request)| Request { arrival_ns: time::nanoseconds(arrival, unit), ..request };
    let requests: Vec<Request> = rows.into_iter().map(at).collect();
    let tokens_per_id = match reader.rows.tokens_per_id {
        _ if id_ranges == 0 => None,
        Some(tokens) => Some(tokens),
        None => Some(ids::tokens_per_id(&requests).map_err(wrong)?),
    };
    Ok(Log { name: name.to_owned(), requests, skipped, tokens_per_id, time: Some((unit, by)), time_doubt })
}

#[cfg(test)]
mod tests;
