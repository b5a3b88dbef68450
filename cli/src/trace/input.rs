//! The bytes under the parsers: decompressed, line by line, no line longer than the limit.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use super::{MAX_LINE_BYTES, TraceError};

/// The first bytes of a gzip member.
const GZIP: [u8; 2] = [0x1F, 0x8B];

/// Hands out one line at a time, and holds no more than that.
pub(super) struct Lines<'r> {
    /// Name of the log in errors.
    pub(super) file: String,
    /// Number of the current line, from 1.
    pub(super) line: u64,
    input: Box<dyn BufRead + 'r>,
    compressed: bool,
    text: Vec<u8>,
    /// The rest of the current line is still to be read.
    unfinished: bool,
}

impl<'r> Lines<'r> {
    /// Lines of the input, or of what is compressed in it.
    pub(super) fn new(mut input: impl Read + 'r, file: String) -> Result<Self, TraceError> {
        let mut start = Vec::new();
        if let Err(source) = input.by_ref().take(GZIP.len() as u64).read_to_end(&mut start) {
            return Err(TraceError::Io { file, source });
        }
        let compressed = start == GZIP;
        let input = BufReader::new(io::Cursor::new(start).chain(input));
        let input: Box<dyn BufRead + 'r> =
            if compressed { Box::new(BufReader::new(MultiGzDecoder::new(input))) } else { Box::new(input) };
        Ok(Self { file, line: 0, input, compressed, text: Vec::new(), unfinished: false })
    }

    /// Goes on to the next line that is not blank; `false` after the last one.
    ///
    /// # Errors
    /// [`TraceError::LineTooLong`], after which one may go on, or a failed read.
    pub(super) fn advance(&mut self) -> Result<bool, TraceError> {
        loop {
            if self.unfinished {
                self.input.skip_until(b'\n').map_err(|source| self.failed(source))?;
                self.unfinished = false;
            }
            self.line += 1;
            self.text.clear();
            let mut input = (&mut self.input).take(MAX_LINE_BYTES as u64 + 1);
            let read = input.read_until(b'\n', &mut self.text).map_err(|source| self.failed(source))?;
            if read > MAX_LINE_BYTES {
                self.unfinished = self.text.last() != Some(&b'\n');
                return Err(TraceError::LineTooLong { file: self.file.clone(), line: self.line });
            }
            if self.line == 1 && self.text.starts_with("\u{feff}".as_bytes()) {
                self.text.drain(..3);
            }
            if read == 0 || !self.text().is_empty() {
                return Ok(read != 0);
            }
        }
    }

    /// The current line without spaces around it.
    pub(super) fn text(&self) -> &[u8] {
        self.text.trim_ascii()
    }

    fn failed(&self, source: io::Error) -> TraceError {
        let file = self.file.clone();
        let of_decoder = matches!(
            source.kind(),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
        );
        if self.compressed && of_decoder {
            TraceError::Gzip { file, line: self.line, source }
        } else {
            TraceError::Io { file, source }
        }
    }
}
