//! A report for people, made once and shown as text or as HTML.

use super::{PageError, Plot, PlotError, html};
use crate::report::{Head, Table};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Page {
    pub head: Head,
    pub title: String,
    pub facts: Vec<(&'static str, String)>,
    pub notices: Vec<String>,
    pub sections: Vec<Section>,
    pub summary: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Section {
    pub heading: String,
    pub text: String,
    /// Each with its data in a table below it. Text leaves them out.
    pub plots: Vec<Plot>,
    pub tables: Vec<Table>,
}

impl Section {
    pub fn table(heading: &str, table: Table) -> Self {
        Self { heading: heading.to_owned(), tables: vec![table], ..Self::default() }
    }
}

impl Page {
    pub fn shown(&self) -> impl Iterator<Item = &Section> {
        let has_rows = |section: &Section| section.tables.iter().any(|table| !table.rows.is_empty());
        self.sections.iter().filter(move |section| !section.plots.is_empty() || has_rows(section))
    }

    pub fn plots(&self) -> impl Iterator<Item = &Plot> {
        self.shown().flat_map(|section| &section.plots)
    }

    pub fn to_text(&self) -> String {
        let facts = self.facts.iter().map(|(name, value)| format!("{name}: {value}"));
        let head: Vec<_> = facts.chain(self.notices.iter().cloned()).collect();
        let tables = self.shown().flat_map(|section| &section.tables).filter(|table| !table.rows.is_empty());
        let caption =
            |table: &Table| if table.caption.is_empty() { String::new() } else { format!("{}\n", table.caption) };
        let tables = tables.map(|table| format!("{}{table}", caption(table)));
        let parts = std::iter::once(head.join("\n")).chain(tables).chain([self.summary.join("\n")]);
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n")
    }

    pub fn to_html(&self) -> Result<String, PageError> {
        html::render(self)
    }

    pub fn to_svgs(&self) -> Result<Vec<(String, String)>, PlotError> {
        self.plots().map(|plot| Ok((plot.id.clone(), plot.to_svg_file()?))).collect()
    }
}
