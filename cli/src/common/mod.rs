//! What several commands share: options that name files, what is printed, and exit statuses.

mod compiling;
pub mod files;
pub mod output;
pub mod process;
pub mod profile;
pub mod python_json;
pub mod values;

pub use files::{OutputFile, Report, ReportArgs, TableArgs};
pub use output::{Progress, print};
pub use process::{AdapterArgs, Backend, Failure, Status, cancel_on_ctrl_c, command_line};
pub use profile::{ChosenProfile, ProfileArgs, described, read_profile};
pub use values::{clip, seconds, up_to};
