//! Sides timed in alternation: one run of each to a round, so that a drift of the clocks meets all of them alike.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Case, Clock, PassTimer, TimerError, Work};

#[derive(Clone, Debug)]
pub struct Rounds {
    /// The fewest, however long they take, and the most. One more goes before them to warm up.
    pub count: RangeInclusive<u32>,
    pub deadline: Duration,
}

impl Rounds {
    /// Calls `round` for each, with whether it counts: the first warms up.
    pub fn each<C: Clock>(
        &self,
        clock: &mut C,
        mut round: impl FnMut(&mut C, bool) -> Result<(), TimerError>,
    ) -> Result<(), TimerError> {
        for number in 0..=*self.count.end() {
            if number > *self.count.start() && clock.now() > self.deadline {
                break;
            }
            round(clock, number > 0)?;
        }
        Ok(())
    }

    /// Times all sides; of each, the microseconds of every round. Once `cancel` is set nothing more is timed.
    pub fn time(
        &self,
        timer: &mut PassTimer,
        sides: &[(&Case, &Work)],
        cancel: &AtomicBool,
    ) -> Result<Vec<Vec<f64>>, TimerError> {
        let mut times_us = vec![Vec::new(); sides.len()];
        self.each(timer, |timer, counts| {
            if cancel.load(Ordering::Relaxed) {
                return Ok(());
            }
            for ((case, work), times_us) in sides.iter().zip(&mut times_us) {
                let sample = case.time(work, timer)?;
                times_us.extend(counts.then(|| timer.time_us(&sample)));
            }
            Ok(())
        })?;
        Ok(times_us)
    }
}
