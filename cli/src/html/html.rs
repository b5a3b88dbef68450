//! From a [`Page`] to HTML.

use std::collections::HashSet;

use askama::Template;

use super::plot::CSS;
use super::{Page, PageError, Section};
use crate::report::{Head, Table};

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
    /// Facts about the program, which text leaves out.
    fn head(&self) -> Vec<(&str, String)> {
        let Head { version, seed, .. } = &self.page.head;
        let seed = seed.map(|seed| ("seed", seed.to_string()));
        [("version", format!("wgpu-paged-attention {version}"))].into_iter().chain(seed).collect()
    }
}

pub(super) fn render(page: &Page) -> Result<String, PageError> {
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
    Ok(html.render()?)
}
