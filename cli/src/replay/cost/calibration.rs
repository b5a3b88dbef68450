//! A calibration: what was measured, what was fitted to it, and how far the fit is off.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::config::KvDtype;

use super::{Coefficients, Part};
use crate::bench::{CaseError, Ceilings, ModelShape, TimerError};
use crate::common::clip;
use crate::replay::StepWork;
use crate::report::Adapter;

pub const SCHEMA: u32 = 1;
const KIND: &str = "calibration";
const MAX_BYTES: u64 = 16 << 20;
/// Relative difference up to which a number in a file follows from others: they went through decimals.
const ROUNDING: f64 = 1e-6;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    pub adapter: Adapter,
    pub model: String,
    pub num_q_heads: u32,
    pub num_kv_heads: u32,
    pub head_dim: u32,
    #[serde(rename = "kv_format")]
    pub kv_dtype: KvDtype,
    pub block_size: u32,
    pub ceilings: Ceilings,
    /// Microseconds of submitting a step and waiting for it, whatever it computes; 0 where a clock of the device times the
    /// kernels alone.
    pub submit_us: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    pub what: String,
    pub part: Part,
    pub work: StepWork,
    /// Median over the rounds, per layer.
    pub measured_us: f64,
    pub predicted_us: f64,
    pub held_out: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    pub schema: u32,
    pub kind: String,
    pub setup: Setup,
    pub coefficients: Coefficients,
    pub points: Vec<Point>,
    /// Mean relative error of the points held out; 0.1 is 10 %.
    pub fit_error_mean: f64,
    pub fit_error_max: f64,
}

#[derive(Deserialize)]
struct Header {
    schema: Option<u64>,
    kind: Option<String>,
}

impl Calibration {
    /// Fits the model to the points that are not held out, and judges it by those that are. Predictions of the points given
    /// are replaced.
    pub fn fitted(setup: Setup, points: Vec<Point>) -> Result<Self, CalibrationError> {
        if let Some(point) = points.iter().find(|point| !(point.measured_us.is_finite() && point.measured_us > 0.0)) {
            let (field, value) = (point.what.clone(), point.measured_us.to_string());
            return Err(CalibrationError::Number { field, value });
        }
        let used = points.iter().filter(|point| !point.held_out);
        let (given, all) = (used.clone().count(), points.len());
        let too_few = CalibrationError::TooFewPoints { given, held_out: all - given };
        let fit = Coefficients::fitted(used.map(|point| (point.part, &point.work, point.measured_us)));
        let (Some(coefficients), true) = (fit, given < all) else { return Err(too_few) };
        let mut calibration = Self {
            schema: SCHEMA,
            kind: KIND.to_owned(),
            setup,
            coefficients,
            points,
            fit_error_mean: 0.0,
            fit_error_max: 0.0,
        };
        calibration.judge();
        Ok(calibration)
    }

    pub fn judge(&mut self) {
        for point in &mut self.points {
            point.predicted_us = self.coefficients.layer_us(point.part, &point.work);
        }
        let held_out = self.points.iter().filter(|point| point.held_out);
        let errors: Vec<f64> = held_out.map(|point| (point.predicted_us / point.measured_us - 1.0).abs()).collect();
        self.fit_error_mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
        self.fit_error_max = errors.iter().copied().fold(0.0, f64::max);
    }

    pub fn fit_points(&self) -> usize {
        self.points.iter().filter(|point| !point.held_out).count()
    }

    pub fn read(path: impl AsRef<Path>) -> Result<Self, CalibrationError> {
        let file = path.as_ref().display().to_string();
        let mut text = String::new();
        let read = File::open(path).and_then(|input| input.take(MAX_BYTES + 1).read_to_string(&mut text));
        let bytes = read.map_err(|source| CalibrationError::Io { file: file.clone(), source })? as u64;
        if bytes > MAX_BYTES {
            return Err(CalibrationError::TooLarge { file, bytes, limit: MAX_BYTES });
        }
        Self::from_json(&text, &file)
    }

    pub fn from_json(text: &str, file: &str) -> Result<Self, CalibrationError> {
        let damaged =
            |source: serde_json::Error| CalibrationError::Json { file: file.to_owned(), line: source.line(), source };
        // Before fields are missed that a calibration has and another file has not.
        let Header { schema, kind } = serde_json::from_str(text).map_err(damaged)?;
        let or_missing = |found: Option<String>| found.unwrap_or_else(|| "missing".to_owned());
        for (field, found, expected) in
            [("kind", kind, KIND.to_owned()), ("schema", schema.map(|schema| schema.to_string()), SCHEMA.to_string())]
        {
            if found.as_ref() != Some(&expected) {
                return Err(CalibrationError::Foreign {
                    file: file.to_owned(),
                    field,
                    found: clip(&or_missing(found)),
                    expected,
                });
            }
        }
        let calibration: Self = serde_json::from_str(text).map_err(damaged)?;
        let content = |source| CalibrationError::Content { file: file.to_owned(), source: Box::new(source) };
        calibration.check().map_err(content)?;
        Ok(calibration)
    }

    pub fn to_json(&self) -> Result<String, CalibrationError> {
        self.check()?;
        let damaged = |source| CalibrationError::Json { file: KIND.to_owned(), line: 0, source };
        Ok(serde_json::to_string_pretty(self).map_err(damaged)? + "\n")
    }

    pub fn check_fits(&self, shape: &ModelShape, kv_dtype: KvDtype, block_size: u32) -> Result<(), CalibrationError> {
        let Setup { num_q_heads, num_kv_heads, head_dim, .. } = self.setup;
        let heads = |q: u32, kv: u32, dim: u32| format!("{q}/{kv} x {dim}");
        let pairs = [
            (
                "heads",
                heads(num_q_heads, num_kv_heads, head_dim),
                heads(shape.num_q_heads, shape.num_kv_heads, shape.head_dim),
            ),
            ("the format", self.setup.kv_dtype.to_string(), kv_dtype.to_string()),
            ("blocks of", self.setup.block_size.to_string(), block_size.to_string()),
        ];
        match pairs.into_iter().find(|(_, found, wanted)| found != wanted) {
            Some((field, found, wanted)) => Err(CalibrationError::Mismatch { field, found, wanted }),
            None => Ok(()),
        }
    }

    /// Whether all numbers are possible, and those that follow from others do.
    fn check(&self) -> Result<(), CalibrationError> {
        let possible = |field: &str, value: Option<f64>, least: f64| match value {
            Some(value) if value.is_finite() && value >= least => Ok(()),
            value => {
                let value = value.map_or("null".to_owned(), |value| value.to_string());
                Err(CalibrationError::Number { field: field.to_owned(), value })
            }
        };
        for (field, coefficient) in self.coefficients.all() {
            possible(field, Some(coefficient), 0.0)?;
        }
        possible("submit_us", Some(self.setup.submit_us), 0.0)?;
        // Divided by, so they are not 0.
        let Ceilings { read_gb_s, fma_gflop_s, .. } = self.setup.ceilings;
        possible("read_gb_s", read_gb_s, f64::MIN_POSITIVE)?;
        possible("fma_gflop_s", fma_gflop_s, f64::MIN_POSITIVE)?;
        for point in &self.points {
            possible(&point.what, Some(point.measured_us), f64::MIN_POSITIVE)?;
        }
        let (given, held_out) = (self.fit_points(), self.points.len() - self.fit_points());
        if given == 0 || held_out == 0 {
            // Of nothing, the error would be 0.
            return Err(CalibrationError::TooFewPoints { given, held_out });
        }
        let mut judged = self.clone();
        judged.judge();
        let same = |field: &str, value: f64, expected: f64| match (value - expected).abs() <= ROUNDING * expected.abs()
        {
            true => Ok(()),
            false => Err(CalibrationError::Inconsistent { field: field.to_owned(), value, expected }),
        };
        for (point, again) in self.points.iter().zip(&judged.points) {
            same(&point.what, point.predicted_us, again.predicted_us)?;
        }
        same("fit_error_mean", self.fit_error_mean, judged.fit_error_mean)?;
        same("fit_error_max", self.fit_error_max, judged.fit_error_max)
    }
}

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
