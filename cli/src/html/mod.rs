//! A report one can look at: one HTML file that needs nothing else, no network and no script, and its plots as SVG.
//!
//! A [`Page`] is made of a report by `From`, one file of this module for each kind of report, and then written as text.
//! The same report gives the same bytes.

mod bench;
mod block_sizes;
mod html;
pub mod plot;
mod replay;
mod sizing;
mod table;

pub(crate) use plot::number;
pub use plot::{Plot, PlotError};
pub use table::Table;

/// What stands on a page, in its order.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The heading: what was done, and on what.
    pub title: String,
    /// Warnings that stand above everything else.
    pub notices: Vec<String>,
    /// Name and value of what the numbers depend on: adapter, versions, seed.
    pub facts: Vec<(String, String)>,
    /// The command line that gives these numbers again.
    pub command: String,
    /// The plots and tables.
    pub sections: Vec<Section>,
}

/// Plots and tables on one question.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Section {
    /// The question, as a heading.
    pub heading: String,
    /// What to know when reading the numbers.
    pub text: String,
    /// Each with its data in a table below it.
    pub plots: Vec<Plot>,
    /// Numbers that are not plotted.
    pub tables: Vec<Table>,
}

/// Why there is no page.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// A plot cannot be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// Two plots or tables have one id, so a link could mean either.
    #[error("two parts of the page have the id {id:?}; give each its own")]
    DuplicateId {
        /// The id.
        id: String,
    },
    /// The template could not be filled in.
    #[error("the page cannot be written: {0}")]
    Template(#[from] askama::Error),
}

impl Page {
    /// Every plot, in the order of the page.
    pub fn plots(&self) -> impl Iterator<Item = &Plot> {
        self.sections.iter().flat_map(|section| &section.plots)
    }

    /// The page as one HTML file.
    ///
    /// # Errors
    /// [`PageError`] if a plot has numbers that cannot be drawn, or an id occurs twice.
    pub fn to_html(&self) -> Result<String, PageError> {
        html::render(self)
    }

    /// Each plot's id and the plot as an SVG file of its own.
    ///
    /// # Errors
    /// [`PageError::Plot`] if a plot has numbers that cannot be drawn.
    pub fn to_svgs(&self) -> Result<Vec<(String, String)>, PageError> {
        self.plots().map(|plot| Ok((plot.id.clone(), plot.to_svg_file()?))).collect()
    }
}

#[cfg(test)]
mod browser_tests;
#[cfg(test)]
mod tests;
