//! Measuring: what a device can do at best, and what paged attention makes of it.

pub mod accounting;
pub mod args;
pub mod case;
pub mod ceilings;
pub mod command;
pub mod figures;
pub mod groups;
pub mod inputs;
pub mod lens;
pub mod models;
pub mod options;
pub mod report;
pub mod rounds;
pub mod runner;
pub mod stats;
pub mod timer;
