//! Tables, made once and shown as text or in a page.

use std::fmt;

use comfy_table::{CellAlignment, presets};

/// Words of more characters are broken into lines in a page.
const MAX_LINE: usize = 40;

pub type Column<'a, T> = (&'a str, &'a dyn Fn(&T) -> Option<String>);

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    pub id: String,
    pub caption: String,
    pub header: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Columns that hold words; the others hold numbers.
    pub words: usize,
}

impl Table {
    pub fn new(id: impl Into<String>, caption: impl Into<String>, header: &[&str], words: usize) -> Self {
        let header = header.iter().map(|&name| name.to_owned()).collect();
        Self { id: id.into(), caption: caption.into(), header, rows: Vec::new(), words }
    }

    /// What every column says of every row; a column that says nothing of any row is left out.
    pub fn of<'a, T: 'a>(
        id: impl Into<String>,
        caption: impl Into<String>,
        words: usize,
        rows: impl IntoIterator<Item = &'a T> + Clone,
        columns: &[Column<'_, T>],
    ) -> Self {
        let says = |(_, cell): &&Column<'_, T>| rows.clone().into_iter().any(|row| cell(row).is_some());
        let words = columns[..words].iter().filter(says).count();
        let columns: Vec<_> = columns.iter().filter(says).collect();
        let header: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
        let mut table = Self::new(id, caption, &header, words);
        let cells = |row| columns.iter().map(|(_, cell)| cell(row).unwrap_or_else(|| "–".to_owned())).collect();
        table.rows = rows.clone().into_iter().map(cells).collect();
        table
    }

    pub fn class(&self, column: &usize, cell: &str) -> &'static str {
        match (*column < self.words, cell.chars().count() > MAX_LINE) {
            (true, false) => "word",
            (true, true) => "text",
            (false, _) => "number",
        }
    }
}

/// As Markdown: what is measured is often pasted somewhere.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(&self.header);
        table.add_rows(&self.rows);
        for column in table.column_iter_mut().skip(self.words) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        write!(f, "{table}")
    }
}
