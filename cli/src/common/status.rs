//! How the program ends.

use std::process::ExitCode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    /// A wrong result, a measurement that failed, or a report that could not be written.
    Failed = 1,
    Usage = 2,
    NoAdapter = 3,
    Interrupted = 130,
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status as u8)
    }
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub status: Status,
    /// What to print after `error: `, remedy included.
    pub message: String,
}

impl Failure {
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}
