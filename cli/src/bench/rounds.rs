//! Sides timed in alternation: one run of each to a round, so that a drift of the clocks meets all of them alike.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::case::{Case, Work};
use super::timer::{Timer, TimerError};

/// How many rounds there are.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// The fewest, however long they take, and the most. One more goes before them to warm up.
    pub count: RangeInclusive<u32>,
    /// From here on the fewest are enough.
    pub deadline: Instant,
}

impl Rounds {
    /// Times all sides; of each, the microseconds of every round. Once `cancel` is set no further round begins.
    ///
    /// # Errors
    /// [`TimerError`].
    pub fn time(
        &self,
        timer: &mut Timer,
        sides: &[(&Case, &Work)],
        cancel: &AtomicBool,
    ) -> Result<Vec<Vec<f64>>, TimerError> {
        let mut times_us = vec![Vec::new(); sides.len()];
        for round in 0..=*self.count.end() {
            let enough = round > *self.count.start() && Instant::now() > self.deadline;
            if enough || cancel.load(Ordering::Relaxed) {
                break;
            }
            for ((case, work), times_us) in sides.iter().zip(&mut times_us) {
                let sample = case.time(work, timer)?;
                if round > 0 {
                    times_us.push(timer.time_us(&sample));
                }
            }
        }
        Ok(times_us)
    }
}
