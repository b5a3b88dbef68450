//! What several commands share: options that name files, what is printed, and exit statuses.

pub mod adapter;
pub mod files;
pub mod output;
pub mod process;
pub mod python_json;
pub mod status;
pub mod values;
