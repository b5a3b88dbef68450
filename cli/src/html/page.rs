//! A report for people, made once and shown as text or as HTML.

use std::collections::HashSet;

use askama::Template;

use super::plot::CSS;
use super::{PageError, Plot, PlotError};
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
        render(self)
    }

    pub fn to_svgs(&self) -> Result<Vec<(String, String)>, PlotError> {
        self.plots().map(|plot| Ok((plot.id.clone(), plot.to_svg_file()?))).collect()
    }
}

#[derive(Template)]
#[template(path = "page.html")]
struct Html<'a> {
    page: &'a Page,
    sections: Vec<Drawn<'a>>,
    page_css: &'static str,
    plot_css: &'static str,
}

struct Drawn<'a> {
    section: &'a Section,
    plots: Vec<Figure<'a>>,
}

struct Figure<'a> {
    title: &'a str,
    svg: String,
    table: Table,
}

impl Html<'_> {
    fn head(&self) -> Vec<(&str, String)> {
        let Head { version, seed, .. } = &self.page.head;
        let seed = seed.map(|seed| ("seed", seed.to_string()));
        [("version", format!("wgpu-paged-attention {version}"))].into_iter().chain(seed).collect()
    }
}

fn render(page: &Page) -> Result<String, PageError> {
    let mut ids = HashSet::new();
    let tables = page.shown().flat_map(|section| &section.tables).map(|table| &table.id);
    for id in page.plots().map(|plot| &plot.id).chain(tables) {
        if !ids.insert(id) {
            return Err(PageError::DuplicateId { id: id.clone() });
        }
    }
    let sections = page.shown().map(|section| {
        let plots = section
            .plots
            .iter()
            .map(|plot| Ok(Figure { title: &plot.title, svg: plot.to_svg()?, table: plot.table() }));
        Ok(Drawn { section, plots: plots.collect::<Result<_, PageError>>()? })
    });
    let html = Html {
        page,
        sections: sections.collect::<Result<_, PageError>>()?,
        page_css: include_str!("page.css"),
        plot_css: CSS,
    };
    Ok(Template::render(&html)?)
}
