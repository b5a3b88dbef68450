//! What can be wrong with a calibration.

use crate::bench::case::CaseError;
use crate::bench::timer::TimerError;

/// Why a device was not calibrated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The device cannot even be timed.
    #[error(transparent)]
    Timer(#[from] TimerError),
    /// A step could not be run, or its result is wrong.
    #[error("calibration, {what}: {source}")]
    Case {
        /// The step.
        what: String,
        /// What is wrong with it.
        source: CaseError,
    },
    /// A ceiling has no finite value.
    #[error("the ceiling {what} could not be measured")]
    NoCeiling {
        /// Which one.
        what: &'static str,
    },
    /// It was ended before there were enough times.
    #[error("the calibration was stopped before it was done")]
    Cancelled,
    /// The times cannot be fitted.
    #[error(transparent)]
    Fit(#[from] CalibrationError),
}

/// Why a calibration cannot be made of points, or read from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The file could not be read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Larger than any calibration.
    #[error("{file}: {bytes} bytes or more; a calibration has at most {limit}")]
    TooLarge {
        /// The file.
        file: String,
        /// Its size as far as it was read.
        bytes: u64,
        /// The largest that is read.
        limit: u64,
    },
    /// It is not the JSON of a calibration.
    #[error("{file}:{line}: no calibration: {source}")]
    Json {
        /// The file.
        file: String,
        /// Line, counted from 1.
        line: usize,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// Another kind of file, or one of another version.
    #[error("{file}: {field} is {found}, where {expected} is wanted")]
    Foreign {
        /// The file.
        file: String,
        /// The field that tells.
        field: &'static str,
        /// What it says.
        found: String,
        /// What this program reads.
        expected: String,
    },
    /// What is wrong with the content of a file.
    #[error("{file}: {source}")]
    Content {
        /// The file.
        file: String,
        /// What is wrong.
        source: Box<Self>,
    },
    /// A number is outside of its range.
    #[error("{field} is {value}, which no measurement gives")]
    Number {
        /// The field.
        field: String,
        /// Its value.
        value: String,
    },
    /// What the points say is not what the coefficients say.
    #[error("{field} {value} does not follow from coefficients and points, which give {expected}; calibrate again")]
    Inconsistent {
        /// The field.
        field: String,
        /// Its value.
        value: f64,
        /// What it should be.
        expected: f64,
    },
    /// Too little was measured.
    #[error(
        "{given} points to fit and {held_out} held out; an append, a decode and a prefill are needed, and one to judge"
    )]
    TooFewPoints {
        /// Points for the fit.
        given: usize,
        /// Points for the error.
        held_out: usize,
    },
    /// It was made for something else.
    #[error("calibrated for {field} {found}, but {wanted} is asked for; calibrate again")]
    Mismatch {
        /// What differs.
        field: &'static str,
        /// As it was calibrated.
        found: String,
        /// As it is asked for.
        wanted: String,
    },
}
