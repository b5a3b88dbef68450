//! The bytes under the parsers: a bounded read per line, and a line end after the last line.

use std::io::{self, BufReader, Chain, Cursor, Read};

use super::MAX_LINE_BYTES;

/// The start of the input, read to look at, and then all of it again.
type Peeked<R> = Chain<Cursor<Vec<u8>>, R>;

/// Limits what is read for one line. The parsers above keep reading until a line ends; this is what stops them.
pub(super) struct LineLimit<R> {
    input: BufReader<Peeked<R>>,
    read_for_line: usize,
    last: u8,
    /// Set once a read was refused.
    pub(super) exceeded: bool,
}

impl<R: Read> LineLimit<R> {
    /// Drops a byte order mark, and tells whether the input begins as JSON.
    pub(super) fn new(mut input: R) -> io::Result<(Self, bool)> {
        let mut start = Vec::new();
        input.by_ref().take(3).read_to_end(&mut start)?;
        if start == b"\xEF\xBB\xBF" {
            start.clear();
            input.by_ref().take(1).read_to_end(&mut start)?;
        }
        let is_json = start.trim_ascii_start().first() == Some(&b'{');
        let input = BufReader::new(Cursor::new(start).chain(input));
        Ok((Self { input, read_for_line: 0, last: b'\n', exceeded: false }, is_json))
    }

    /// Starts the count for another line.
    pub(super) fn next_line(&mut self) {
        self.read_for_line = 0;
    }
}

impl<R: Read> Read for LineLimit<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read_for_line > MAX_LINE_BYTES {
            self.exceeded = true;
            return Err(io::Error::other("line too long"));
        }
        let read = self.input.read(buffer)?;
        self.read_for_line += read;
        match (read, buffer) {
            (0, [first, ..]) if self.last != b'\n' => {
                // A last line without an end would be counted differently from all others.
                *first = b'\n';
                self.last = b'\n';
                Ok(1)
            }
            (0, _) => Ok(0),
            (_, buffer) => {
                self.last = buffer[read - 1];
                Ok(read)
            }
        }
    }
}
