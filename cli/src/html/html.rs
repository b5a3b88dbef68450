//! From a [`Page`] to HTML.

use std::collections::HashSet;

use askama::Template;

use super::plot::CSS;
use super::{Page, PageError, Section, Table};

/// Where the template finds what it names.
#[derive(Template)]
#[template(path = "page.html")]
struct Html<'a> {
    page: &'a Page,
    sections: Vec<Drawn<'a>>,
    page_css: &'static str,
    plot_css: &'static str,
}

/// A section whose plots are drawn.
struct Drawn<'a> {
    section: &'a Section,
    plots: Vec<Figure<'a>>,
}

/// A plot and its numbers.
struct Figure<'a> {
    title: &'a str,
    svg: String,
    table: Table,
}

pub(super) fn render(page: &Page) -> Result<String, PageError> {
    let mut ids = HashSet::new();
    let tables = page.sections.iter().flat_map(|section| &section.tables).map(|table| &table.id);
    for id in page.plots().map(|plot| &plot.id).chain(tables) {
        if !ids.insert(id) {
            return Err(PageError::DuplicateId { id: id.clone() });
        }
    }
    let sections = page.sections.iter().map(|section| {
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
    Ok(html.render()?)
}
