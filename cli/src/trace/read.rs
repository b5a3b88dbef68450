//! From lines to requests.

use std::io::Read;

use csv::{ByteRecord, Reader, ReaderBuilder, Trim};

use super::input::Lines;
use super::rows::{Row, Rows};
use super::{Columns, MOONCAKE, Problem, ReadOptions, TraceError, forms};

pub(super) struct TraceReader<'r> {
    /// Splits the current line of a table; the lines themselves are also those of JSON.
    csv: Reader<Lines<'r>>,
    record: ByteRecord,
    columns: Option<(Columns, usize)>,
    pub(super) rows: Rows,
    file: String,
    skip_bad: bool,
    pub(super) skipped: u64,
    at_first_row: bool,
    done: bool,
}

impl<'r> TraceReader<'r> {
    pub(super) fn new(input: impl Read + 'r, name: &str, options: &ReadOptions) -> Result<Self, TraceError> {
        let wrong = |line, problem| TraceError { file: name.to_owned(), line, problem };
        let mut lines = Lines::new(input).map_err(|source| wrong(None, Problem::Io(source)))?;
        let has_text = lines.advance();
        if !has_text.map_err(|problem| at_line(name, lines.line, problem))? {
            return Err(wrong(None, Problem::Empty { skipped: 0 }));
        }
        let (line, is_json) = (Some(lines.line), lines.text().starts_with(b"{"));
        let mut csv = ReaderBuilder::new().has_headers(false).flexible(true).trim(Trim::All).from_reader(lines);
        let mut record = ByteRecord::new();
        let (form, columns) = if is_json {
            (&MOONCAKE, None)
        } else {
            split(&mut csv, &mut record).map_err(|problem| wrong(line, problem))?;
            let header: Vec<_> = record.iter().map(String::from_utf8_lossy).collect();
            let header: Vec<&str> = header.iter().map(|column| &**column).collect();
            let (form, columns) = forms::find(&header).map_err(|problem| wrong(line, problem))?;
            (form, Some((columns, header.len())))
        };
        let rows = Rows::new(form, options).map_err(|problem| wrong(None, problem))?;
        let (file, skip_bad, skipped) = (name.to_owned(), options.skip_bad, 0);
        Ok(Self { csv, record, columns, rows, file, skip_bad, skipped, at_first_row: is_json, done: false })
    }

    pub(super) fn error(&self, problem: Problem) -> TraceError {
        at_line(&self.file, self.csv.get_ref().line, problem)
    }

    fn read(&mut self) -> Result<Option<Row>, Problem> {
        if !std::mem::take(&mut self.at_first_row) && !self.csv.get_mut().advance()? {
            return Ok(None);
        }
        let Some((columns, expected)) = self.columns else {
            return self.rows.json(self.csv.get_ref().text()).map(Some);
        };
        split(&mut self.csv, &mut self.record)?;
        let (record, found) = (&self.record, self.record.len());
        if found != expected {
            return Err(Problem::FieldCount { found: found as u64, expected: expected as u64 });
        }
        let field = |column: usize| String::from_utf8_lossy(&record[column]);
        let fields = [columns.time, columns.prompt, columns.output].map(field);
        let ids = columns.ids.map(field).unwrap_or_default();
        self.rows.table(fields.each_ref().map(|field| &**field), &ids).map(Some)
    }
}

impl Iterator for TraceReader<'_> {
    type Item = Result<Row, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.done {
            match self.read() {
                Err(problem) if self.skip_bad && problem.is_of_one_row() => self.skipped += 1,
                Ok(Some(row)) => return Some(Ok(row)),
                ended => {
                    self.done = true;
                    return ended.map_err(|problem| self.error(problem)).transpose();
                }
            }
        }
        None
    }
}

fn at_line(file: &str, line: u64, problem: Problem) -> TraceError {
    let line = (!matches!(problem, Problem::Io(_))).then_some(line);
    TraceError { file: file.to_owned(), line, problem }
}

fn split(csv: &mut Reader<Lines<'_>>, record: &mut ByteRecord) -> Result<(), Problem> {
    csv.read_byte_record(record).map_err(|error| Problem::Io(error.into()))?;
    if csv.get_mut().take_open_quote() { Err(Problem::OpenQuote) } else { Ok(()) }
}
