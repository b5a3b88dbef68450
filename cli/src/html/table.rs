//! Tables of a page.

/// Words of more characters are broken into lines.
const MAX_LINE: usize = 40;

/// A table with a heading for each column; the first cell of a row is the row's heading.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// Unique on its page.
    pub id: String,
    /// What the numbers are.
    pub caption: String,
    /// Names of the columns, with units.
    pub header: Vec<String>,
    /// As many cells in each row as the header has.
    pub rows: Vec<Vec<String>>,
    /// Columns that hold words; those behind them hold numbers.
    pub words: usize,
}

impl Table {
    /// An empty table.
    pub fn new(id: impl Into<String>, caption: impl Into<String>, header: &[&str], words: usize) -> Self {
        let header = header.iter().map(|&name| name.to_owned()).collect();
        Self { id: id.into(), caption: caption.into(), header, rows: Vec::new(), words }
    }

    /// The class of a cell in a column, counted from 0.
    pub(super) fn class(&self, column: &usize, cell: &str) -> &'static str {
        match (*column < self.words, cell.chars().count() > MAX_LINE) {
            (true, false) => "word",
            (true, true) => "text",
            (false, _) => "number",
        }
    }
}
