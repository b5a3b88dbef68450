//! From lines to requests.

use std::borrow::Cow;
use std::io::Read;

use csv_core::{ReadRecordResult, Reader, ReaderBuilder, Terminator};

use super::forms::{self, Columns, MOONCAKE, MOONCAKE_TOKENS_PER_ID};
use super::input::Lines;
use super::rows::Rows;
use super::{ReadOptions, Request, TraceError};

/// Reads a log request by request. After an error it ends.
pub struct TraceReader<'r> {
    lines: Lines<'r>,
    parser: Parser,
    rows: Rows,
    skip_bad: bool,
    skipped: u64,
    /// The current line is the first row, not yet handed out.
    at_first_row: bool,
    done: bool,
}

enum Parser {
    Table { record: Box<Record>, columns: Columns },
    Json,
}

impl<'r> TraceReader<'r> {
    /// Reads the header; `name` stands for the file in errors.
    ///
    /// # Errors
    /// [`TraceError::UnknownHeader`], [`TraceError::MissingColumn`], [`TraceError::Empty`],
    /// [`TraceError::ZeroTokensPerId`], or a failed read.
    pub fn new(input: impl Read + 'r, name: impl Into<String>, options: &ReadOptions) -> Result<Self, TraceError> {
        let file = name.into();
        if options.tokens_per_id == Some(0) {
            return Err(TraceError::ZeroTokensPerId { file });
        }
        let mut lines = Lines::new(input, file.clone())?;
        if !lines.advance()? {
            return Err(TraceError::Empty { file, skipped: 0 });
        }
        let is_json = lines.text().starts_with(b"{");
        let (parser, rows) = if is_json {
            let tokens_per_id = options.tokens_per_id.unwrap_or(MOONCAKE_TOKENS_PER_ID);
            (Parser::Json, Rows::new(file, &MOONCAKE, Some(tokens_per_id)))
        } else {
            let mut record = Box::<Record>::default();
            record.read(&lines)?;
            let header: Vec<Cow<str>> = (0..record.num_fields).map(|column| record.field(column)).collect();
            let header: Vec<&str> = header.iter().map(|column| &**column).collect();
            let (form, columns) = forms::find(&header, &file, lines.line)?;
            (Parser::Table { record, columns }, Rows::new(file, form, options.tokens_per_id))
        };
        let skip_bad = options.skip_bad;
        Ok(Self { lines, parser, rows, skip_bad, skipped: 0, at_first_row: is_json, done: false })
    }

    /// Bad rows left out so far.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The line read last, from 1.
    pub fn line(&self) -> u64 {
        self.lines.line
    }

    /// Tokens of one id, if known before all rows are.
    pub(super) fn tokens_per_id(&self) -> Option<u32> {
        self.rows.tokens_per_id
    }

    fn read(&mut self) -> Result<Option<Request>, TraceError> {
        if !std::mem::take(&mut self.at_first_row) && !self.lines.advance()? {
            return Ok(None);
        }
        let line = self.lines.line;
        let request = match &mut self.parser {
            Parser::Json => self.rows.json(line, self.lines.text()),
            Parser::Table { record, columns } => {
                let expected = record.num_fields;
                record.read(&self.lines)?;
                let found = std::mem::replace(&mut record.num_fields, expected);
                if found != expected {
                    let (found, expected) = (found as u64, expected as u64);
                    return Err(TraceError::FieldCount { file: self.rows.file.clone(), line, found, expected });
                }
                let fields = [columns.time, columns.prompt, columns.output].map(|column| record.field(column));
                let ids = columns.ids.map_or(Cow::Borrowed(""), |column| record.field(column));
                self.rows.table(line, fields.each_ref().map(|field| &**field), &ids)
            }
        };
        request.map(Some)
    }
}

impl Iterator for TraceReader<'_> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            match self.read() {
                Err(error) if self.skip_bad && error.is_of_one_row() => self.skipped += 1,
                Ok(Some(request)) => return Some(Ok(request)),
                ended => {
                    self.done = true;
                    return ended.transpose();
                }
            }
        }
        None
    }
}

/// The fields of one line of a table.
struct Record {
    parser: Reader,
    text: Vec<u8>,
    ends: Vec<usize>,
    /// Fields of the last line read.
    num_fields: usize,
}

impl Default for Record {
    fn default() -> Self {
        // A '\r' before the line's end belongs to the last field, from which it is trimmed.
        let parser = ReaderBuilder::new().terminator(Terminator::Any(b'\n')).build();
        Self { parser, text: Vec::new(), ends: Vec::new(), num_fields: 0 }
    }
}

impl Record {
    /// Splits the current line, which is not blank.
    fn read(&mut self, lines: &Lines<'_>) -> Result<(), TraceError> {
        let line = lines.text();
        self.parser.reset();
        // A field is no longer than its text, and every comma ends one.
        self.text.resize(line.len() + 1, 0);
        self.ends.resize(line.len() + 1, 0);
        let (_, _, written, num_ends) = self.parser.read_record(line, &mut self.text, &mut self.ends);
        let (result, _, _, last) =
            self.parser.read_record(b"\n", &mut self.text[written..], &mut self.ends[num_ends..]);
        if result != ReadRecordResult::Record {
            return Err(TraceError::OpenQuote { file: lines.file.clone(), line: lines.line });
        }
        self.num_fields = num_ends + last;
        Ok(())
    }

    fn field(&self, column: usize) -> Cow<'_, str> {
        let start = if column == 0 { 0 } else { self.ends[column - 1] };
        String::from_utf8_lossy(self.text[start..self.ends[column]].trim_ascii())
    }
}
