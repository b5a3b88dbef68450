//! The bytes under the parsers: decompressed, line by line, no line longer than the limit.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use super::{MAX_LINE_BYTES, Problem};

const GZIP: [u8; 2] = [0x1F, 0x8B];

pub(super) struct Lines<'r> {
    /// Number of the current line, from 1.
    pub(super) line: u64,
    input: Box<dyn BufRead + 'r>,
    compressed: bool,
    text: Vec<u8>,
    unfinished: bool,
    /// Bytes of the current line that were handed out to a parser of tables.
    handed_out: usize,
    open_quote: bool,
}

impl<'r> Lines<'r> {
    pub(super) fn new(mut input: impl Read + 'r) -> io::Result<Self> {
        let mut start = Vec::new();
        input.by_ref().take(GZIP.len() as u64).read_to_end(&mut start)?;
        let compressed = start == GZIP;
        let input = BufReader::new(io::Cursor::new(start).chain(input));
        let input: Box<dyn BufRead + 'r> =
            if compressed { Box::new(BufReader::new(MultiGzDecoder::new(input))) } else { Box::new(input) };
        let (text, unfinished) = (Vec::new(), false);
        Ok(Self { line: 0, input, compressed, text, unfinished, handed_out: 0, open_quote: false })
    }

    pub(super) fn advance(&mut self) -> Result<bool, Problem> {
        loop {
            if self.unfinished {
                self.input.skip_until(b'\n').map_err(|source| self.failed(source))?;
                self.unfinished = false;
            }
            self.line += 1;
            self.text.clear();
            self.handed_out = 0;
            let mut input = (&mut self.input).take(MAX_LINE_BYTES as u64 + 1);
            let read = input.read_until(b'\n', &mut self.text).map_err(|source| self.failed(source))?;
            self.unfinished = read > MAX_LINE_BYTES && self.text.last() != Some(&b'\n');
            if self.text().contains(&b'\r') {
                return Err(Problem::CarriageReturn);
            }
            if read > MAX_LINE_BYTES {
                return Err(Problem::LineTooLong);
            }
            if self.line == 1 && self.text.starts_with("\u{feff}".as_bytes()) {
                self.text.drain(..3);
            }
            if read == 0 || !self.text().is_empty() {
                return Ok(read != 0);
            }
        }
    }

    pub(super) fn text(&self) -> &[u8] {
        self.text.trim_ascii()
    }

    pub(super) fn take_open_quote(&mut self) -> bool {
        std::mem::take(&mut self.open_quote)
    }

    fn failed(&self, source: io::Error) -> Problem {
        let of_decoder = matches!(
            source.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
        );
        if self.compressed && of_decoder { Problem::Gzip(source) } else { Problem::Io(source) }
    }
}

/// Hands the current line to a parser of tables, and a line end. A parser that wants more is within a quoted field, which
/// is then closed for it: a row is one line.
impl Read for Lines<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let line = self.text.trim_ascii();
        self.open_quote = self.handed_out > line.len();
        let mut rest = &line[self.handed_out.min(line.len())..];
        let mut end: &[u8] = if self.open_quote { b"\"\n" } else { b"\n" };
        let read = rest.read(buffer)?;
        let read = read + end.read(&mut buffer[read..])?;
        self.handed_out += read;
        Ok(read)
    }
}
