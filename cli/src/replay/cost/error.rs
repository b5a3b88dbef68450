//! What can be wrong with a calibration.

use crate::bench::{CaseError, TimerError};

#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    #[error(transparent)]
    Timer(#[from] TimerError),
    #[error("calibration, {what}: {source}")]
    Case { what: String, source: CaseError },
    #[error("the ceiling {what} could not be measured")]
    NoCeiling { what: &'static str },
    #[error("the calibration was stopped before it was done")]
    Cancelled,
    #[error(transparent)]
    Fit(#[from] CalibrationError),
}

#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    #[error("{file}: {source}")]
    Io { file: String, source: std::io::Error },
    #[error("{file}: {bytes} bytes or more; a calibration has at most {limit}")]
    TooLarge { file: String, bytes: u64, limit: u64 },
    #[error("{file}:{line}: no calibration: {source}")]
    Json { file: String, line: usize, source: serde_json::Error },
    #[error("{file}: {field} is {found}, where {expected} is wanted")]
    Foreign { file: String, field: &'static str, found: String, expected: String },
    #[error("{file}: {source}")]
    Content { file: String, source: Box<Self> },
    #[error("{field} is {value}, which no measurement gives")]
    Number { field: String, value: String },
    #[error("{field} {value} does not follow from coefficients and points, which give {expected}; calibrate again")]
    Inconsistent { field: String, value: f64, expected: f64 },
    #[error(
        "{given} points to fit and {held_out} held out; an append, a decode and a prefill are needed, and one to judge"
    )]
    TooFewPoints { given: usize, held_out: usize },
    #[error("calibrated for {field} {found}, but {wanted} is asked for; calibrate again")]
    Mismatch { field: &'static str, found: String, wanted: String },
}
