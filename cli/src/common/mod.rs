//! What several commands share: options that name files, what is printed, and exit statuses.

mod compiling;
pub mod files;
pub mod output;
pub mod process;
pub mod python_json;
pub mod values;

pub use files::{OutputFile, Report, ReportArgs, TableArgs};
pub use output::{Progress, print};
pub use process::{AdapterArgs, Backend, Failure, Status, cancel_on_ctrl_c, command_line};
pub use values::{clip, seconds, up_to};
