//! Measuring: what a device can do at best, and what paged attention makes of it.

pub mod accounting;
pub mod models;
pub mod report;
pub mod seed;
pub mod stats;
pub mod trace;
pub mod workload;
