//! What a serving step costs on an adapter: a model with few terms, fitted to times of the real kernels.
//!
//! A layer takes
//!
//! ```text
//! append      fixed + token · tokens
//! decode      fixed + sequence · sequences + key · keys               where sequences decode
//! prefill     fixed + token · tokens + pair · (query, key) pairs      where prompts are computed
//! ```
//!
//! microseconds, none of whose coefficients is negative, and a step takes its layers and once the time of a submission. Keys
//! are those that a query sees, in layers with a window no more than that.
//!
//! Medians of small steps give the coefficients: the least squares of relative errors, so that short steps count as much as
//! long ones. Other steps are measured beside them, batches of unequal lengths and mixed ones among them, and take no part
//! in the fit; how far the model is from these is its stated error.
//!
//! The linear layers are in no measurement. What they cost at least follows from the ceilings measured on the same device:
//! weights are read once a step, and multiplied with every token. [`CalibratedClock`] adds this bound, or leaves it out.

mod calibration;
mod clock;
mod coefficients;
#[cfg(test)]
mod device_tests;
mod fit;
mod measure;
#[cfg(test)]
mod tests;

pub use calibration::{CalibrateError, Calibration, Point, Setup};
pub use clock::{CalibratedClock, Layers};
pub use coefficients::{Coefficients, Part};
pub use measure::{CalibrateOptions, calibrate};
