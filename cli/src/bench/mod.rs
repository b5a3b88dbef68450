//! Measuring: what a device can do at best, and what paged attention makes of it.

pub mod accounting;
pub mod args;
pub mod case;
pub mod ceilings;
pub mod command;
mod cores;
pub mod figures;
pub mod groups;
pub mod inputs;
pub mod lens;
pub mod measure;
pub mod models;
pub mod options;
pub mod report;
pub mod runner;
pub mod stats;
pub mod timer;

pub use accounting::{Cost, pairs};
pub use case::{Case, CaseError, Work};
pub use ceilings::CeilingKernels;
use cores::{CoreTime, ThreadTimes};
pub(crate) use groups::rotated_layers;
pub use groups::{Comparison, Group, Measure};
pub use inputs::CaseInputs;
use inputs::Kind;
pub use lens::LengthList;
pub use models::{CaseSpec, MAX_BATCH, MAX_CONTEXT, ModelShape, measured};
pub use options::{BenchOptions, Lengths, Op};
pub use report::{CaseResult, Ceilings, Failure, Figure, Limit, Mode, Pair, Report, Timing};
pub use runner::{BenchError, Timer};
pub use stats::{Summary, Warning, fold, median, warnings};
pub use timer::{Clock, PassTimer, Rounds, Sample, TimerError};
