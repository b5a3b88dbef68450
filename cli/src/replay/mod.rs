//! Serving a request log: continuous batching over the real block manager, paged and contiguous, on a clock of one's
//! choice.
//!
//! Requests come when the log says so, bursts included. Every step takes one token of each sequence that decodes and
//! chunks of the prompts of those that do not, up to [`ServeOptions::step_tokens`]; requests wait first come, first
//! served, and are let in when their whole prompt has room. When blocks run out, the last to come is preempted and
//! computed again later. Nothing is computed on a device, unless an observer does it; a [`Clock`] says how long a step
//! would have taken.

mod clock;
pub mod command;
pub mod cost;
mod execute;
mod options;
mod page;
mod progress;
mod record;
mod report;
mod request;
mod scheduler;
mod serve;
mod spread;
mod timeline;
mod tokens;

pub use clock::{Clock, ClockRecord, StepClock, StepWork};
pub use execute::{ExecuteOptions, ExecuteRecord, Executor, with_layers};
pub use options::{ServeError, ServeOptions};
pub use record::{PrefixRecord, ServeRecord, TimelinePoint};
pub use report::{LogRecord, ReplayReport};
use request::InService;
use scheduler::Scheduler;
pub use scheduler::{ObservedStep, ObserverError, StepObserver};
pub use serve::serve;
pub use spread::Spread;
use spread::{Values, to_millionth};

#[cfg(test)]
mod tests;
