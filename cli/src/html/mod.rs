//! A report for people: one HTML file that needs nothing else, no network and no script, and its plots as SVG; or text.
//!
//! The same [`Page`] gives the same bytes.

mod page;
pub mod plot;

pub use page::{Page, Section};
pub use plot::{Plot, PlotError};

#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error(transparent)]
    Plot(#[from] PlotError),
    #[error("two parts of the page have the id {id:?}; give each its own")]
    DuplicateId { id: String },
    #[error("the page cannot be written: {0}")]
    Template(#[from] askama::Error),
}

#[cfg(test)]
mod tests;
