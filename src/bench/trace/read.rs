//! From lines to requests.

use std::io::{BufRead, BufReader, Read};

use csv::{ByteRecord, ReaderBuilder, Terminator, Trim};
use jiff::civil::DateTime;

use super::input::LineLimit;
use super::{Request, TraceError};

/// One of the tables: where its columns are called what, and how it tells the time.
struct Table {
    time: &'static str,
    prompt: &'static str,
    output: &'static str,
    clock: Clock,
}

#[derive(Clone, Copy)]
enum Clock {
    Seconds,
    Milliseconds,
    /// Date and time of day; the first request is at 0.
    Calendar,
}

const TABLES: [Table; 3] = [
    Table { time: "arrival_s", prompt: "prompt_tokens", output: "output_tokens", clock: Clock::Seconds },
    Table { time: "TIMESTAMP", prompt: "ContextTokens", output: "GeneratedTokens", clock: Clock::Calendar },
    Table { time: "Timestamp", prompt: "Request tokens", output: "Response tokens", clock: Clock::Seconds },
];

const MOONCAKE: Table =
    Table { time: "timestamp", prompt: "input_length", output: "output_length", clock: Clock::Milliseconds };

/// Reads a log request by request. After an error it ends.
pub struct TraceReader<R> {
    source: Source<R>,
    rows: Rows,
    done: bool,
}

enum Source<R> {
    Csv { reader: csv::Reader<LineLimit<R>>, record: ByteRecord, columns: [usize; 3] },
    Json { reader: BufReader<LineLimit<R>>, buffer: Vec<u8>, line: u64 },
}

impl<R: Read> TraceReader<R> {
    /// Reads the header; `name` stands for the file in errors.
    ///
    /// # Errors
    /// [`TraceError::UnknownHeader`], [`TraceError::MissingColumn`], [`TraceError::Empty`] or a failed read.
    pub fn new(input: R, name: impl Into<String>) -> Result<Self, TraceError> {
        let file = name.into();
        let (input, is_json) = LineLimit::new(input).map_err(|source| TraceError::Io { file: file.clone(), source })?;
        if is_json {
            let source = Source::Json { reader: BufReader::new(input), buffer: Vec::new(), line: 0 };
            return Ok(Self { source, rows: Rows::new(file, &MOONCAKE), done: false });
        }
        // Lines end at '\n' alone, so that its count is the line number; trimming takes the '\r' before it.
        let mut reader = ReaderBuilder::new().trim(Trim::All).terminator(Terminator::Any(b'\n')).from_reader(input);
        let header = match reader.byte_headers() {
            Ok(header) => header.clone(),
            Err(error) => return Err(csv_error(error, &file, &reader, 1)),
        };
        let (table, columns) = find_columns(&header, &file)?;
        let source = Source::Csv { reader, record: ByteRecord::new(), columns };
        Ok(Self { source, rows: Rows::new(file, table), done: false })
    }

    fn read(&mut self) -> Result<Option<Request>, TraceError> {
        match &mut self.source {
            Source::Csv { reader, record, columns } => loop {
                reader.get_mut().next_line();
                let start = reader.position().line();
                match reader.read_byte_record(record) {
                    Ok(false) => return Ok(None),
                    Ok(true) => {}
                    // A line of spaces or of a single '\r' is as empty as one without anything. Fields are not
                    // trimmed yet where their number is wrong.
                    Err(error) if matches!(error.kind(), csv::ErrorKind::UnequalLengths { .. }) && is_blank(record) => {
                        continue;
                    }
                    Err(error) => return Err(csv_error(error, &self.rows.file, reader, start)),
                }
                if is_blank(record) {
                    continue;
                }
                // Every record has ended with its line, so the reader stands on the next one.
                let line = reader.position().line() - 1;
                let fields = columns.map(|column| String::from_utf8_lossy(&record[column]));
                return self.rows.request(line, fields.each_ref().map(|field| &**field)).map(Some);
            },
            Source::Json { reader, buffer, line } => loop {
                buffer.clear();
                *line += 1;
                reader.get_mut().next_line();
                let read = reader.read_until(b'\n', buffer).map_err(|source| {
                    let file = self.rows.file.clone();
                    if reader.get_ref().exceeded {
                        TraceError::LineTooLong { file, line: *line }
                    } else {
                        TraceError::Io { file, source }
                    }
                })?;
                if read == 0 {
                    return Ok(None);
                }
                let text = buffer.trim_ascii();
                if !text.is_empty() {
                    return self.rows.json(*line, text).map(Some);
                }
            },
        }
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.read().transpose();
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}

fn is_blank(record: &ByteRecord) -> bool {
    record.len() == 1 && record[0].trim_ascii().is_empty()
}

/// The table whose columns are in the header, by the one that has most of them.
fn find_columns(header: &ByteRecord, file: &str) -> Result<(&'static Table, [usize; 3]), TraceError> {
    let mut best: Option<(&Table, [Option<usize>; 3])> = None;
    let count = |columns: &[Option<usize>; 3]| columns.iter().flatten().count();
    for table in &TABLES {
        let columns = [table.time, table.prompt, table.output]
            .map(|name| header.iter().position(|column| column == name.as_bytes()));
        if count(&columns) > best.as_ref().map_or(0, |(_, columns)| count(columns)) {
            best = Some((table, columns));
        }
    }
    let Some((table, columns)) = best else {
        let file = file.to_owned();
        if header.is_empty() || is_blank(header) {
            return Err(TraceError::Empty { file });
        }
        let header: Vec<_> = header.iter().map(String::from_utf8_lossy).collect();
        return Err(TraceError::UnknownHeader { file, header: clip(&header.join(",")) });
    };
    let missing = |column| TraceError::MissingColumn { file: file.to_owned(), line: 1, column };
    Ok((
        table,
        [
            columns[0].ok_or_else(|| missing(table.time))?,
            columns[1].ok_or_else(|| missing(table.prompt))?,
            columns[2].ok_or_else(|| missing(table.output))?,
        ],
    ))
}

/// `start` is the line on which reading began; the reader itself may have gone on through an open quote.
fn csv_error<R: Read>(error: csv::Error, file: &str, reader: &csv::Reader<LineLimit<R>>, start: u64) -> TraceError {
    let file = file.to_owned();
    match error.into_kind() {
        csv::ErrorKind::Io(_) if reader.get_ref().exceeded => TraceError::LineTooLong { file, line: start },
        csv::ErrorKind::Io(source) => TraceError::Io { file, source },
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            TraceError::FieldCount { file, line: reader.position().line() - 1, found: len, expected: expected_len }
        }
        other => TraceError::Io { file, source: std::io::Error::other(format!("{other:?}")) },
    }
}

/// Turns the texts of one row into a request, and keeps the time going forward.
struct Rows {
    file: String,
    table: &'static Table,
    start: Option<DateTime>,
    previous_s: f64,
}

impl Rows {
    fn new(file: String, table: &'static Table) -> Self {
        Self { file, table, start: None, previous_s: 0.0 }
    }

    fn request(&mut self, line: u64, [time, prompt, output]: [&str; 3]) -> Result<Request, TraceError> {
        Ok(Request {
            arrival_s: self.arrival(line, time)?,
            prompt_tokens: self.tokens(line, self.table.prompt, prompt)?,
            output_tokens: self.tokens(line, self.table.output, output)?,
        })
    }

    fn json(&mut self, line: u64, text: &[u8]) -> Result<Request, TraceError> {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(text)
            .map_err(|source| TraceError::Json { file: self.file.clone(), line, source })?;
        let field = |column| match object.get(column) {
            // A number's text, so that it meets the same checks as a field of a table.
            Some(value) => Ok(value.to_string()),
            None => Err(TraceError::MissingColumn { file: self.file.clone(), line, column }),
        };
        let fields = [field(self.table.time)?, field(self.table.prompt)?, field(self.table.output)?];
        self.request(line, fields.each_ref().map(String::as_str))
    }

    fn arrival(&mut self, line: u64, value: &str) -> Result<f64, TraceError> {
        let field = self.table.time;
        let wrong = |expected| TraceError::Time { file: self.file.clone(), line, field, value: clip(value), expected };
        let arrival_s = match self.table.clock {
            Clock::Seconds => number(value).ok_or_else(|| wrong("a finite number of seconds, 0 or later"))?,
            Clock::Milliseconds => {
                number(value).ok_or_else(|| wrong("a finite number of milliseconds, 0 or later"))? / 1e3
            }
            Clock::Calendar => {
                let time: DateTime =
                    value.parse().map_err(|_| wrong("a date and time like 2023-11-16 18:17:03.97996"))?;
                time.duration_since(*self.start.get_or_insert(time)).as_secs_f64()
            }
        };
        if arrival_s < self.previous_s {
            return Err(TraceError::Unsorted { file: self.file.clone(), line, field, value: clip(value) });
        }
        self.previous_s = arrival_s;
        Ok(arrival_s)
    }

    fn tokens(&self, line: u64, field: &'static str, value: &str) -> Result<u32, TraceError> {
        value.parse().map_err(|_| TraceError::Tokens { file: self.file.clone(), line, field, value: clip(value) })
    }
}

/// A finite number from 0 on. Minus zero becomes zero.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0).map(|value| value + 0.0)
}

/// Enough of a text to recognise it in a message.
fn clip(text: &str) -> String {
    text.chars().take(80).collect()
}
