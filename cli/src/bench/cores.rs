//! Whether this program had the cores that it wanted, as Linux counts it.

use std::fs;

/// Of all threads since they began, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// On a core.
    pub ran: u64,
    /// Ready to run, while other threads had the cores.
    pub waited: u64,
}

impl CoreTime {
    /// Until now; nothing where the system does not say.
    pub fn now() -> Self {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        // A thread that has just ended has no file any more.
        let times = tasks.filter_map(|task| Self::parse(&fs::read_to_string(task.path().join("schedstat")).ok()?));
        times.fold(Self::default(), Self::plus)
    }

    fn parse(schedstat: &str) -> Option<Self> {
        let mut numbers = schedstat.split_whitespace().map(|number| number.parse().ok());
        Some(Self { ran: numbers.next()??, waited: numbers.next()?? })
    }

    pub fn plus(self, other: Self) -> Self {
        Self { ran: self.ran.saturating_add(other.ran), waited: self.waited.saturating_add(other.waited) }
    }

    pub fn since(self, start: Self) -> Self {
        Self { ran: self.ran.saturating_sub(start.ran), waited: self.waited.saturating_sub(start.waited) }
    }

    /// Waiting as a share of both; `None` of no time.
    pub fn waiting_share(self) -> Option<f64> {
        let (ran, waited) = (self.ran as f64, self.waited as f64);
        (ran + waited > 0.0).then(|| waited / (ran + waited))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_waiting_is_that_of_the_time_between() {
        let start = CoreTime::parse("1000 500 7\n").unwrap();
        let end = CoreTime::parse("1600 700 9").unwrap();
        assert_eq!(end.since(start), CoreTime { ran: 600, waited: 200 });
        assert_eq!(end.since(start).waiting_share(), Some(0.25));
        assert_eq!(start.since(end).waiting_share(), None, "a thread that ended takes its time along");
        assert_eq!((CoreTime::parse(""), CoreTime::parse("12 x")), (None, None));
    }

    #[test]
    fn time_that_is_counted_grows() {
        let start = CoreTime::now();
        let sum = (0..50_000_000_u64).fold(0, |sum, number| std::hint::black_box(sum ^ number));
        let end = CoreTime::now();
        // Systems that do not count say nothing.
        assert!(end == CoreTime::default() || end.since(start).ran > 0, "{start:?} {end:?} {sum}");
    }
}
