//! What several commands share: options that name files, what is printed, and exit statuses.

pub mod files;
pub mod output;
pub mod status;
