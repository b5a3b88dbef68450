//! What several commands share: options that name files, what is printed, and exit statuses.

pub mod adapter;
pub mod files;
pub mod output;
pub mod process;
pub mod python_json;
pub mod status;
pub mod values;

pub use adapter::AdapterArgs;
pub use files::{OutputFile, Report, ReportArgs, TableArgs};
pub use output::{Progress, print};
pub use process::{cancel_on_ctrl_c, command_line};
pub use status::{Failure, Status};
pub use values::{clip, seconds, up_to};
