//! Whether this program had the cores that it wanted, as Linux counts it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;

/// Of one thread or of several, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// On a core.
    pub ran: u64,
    /// Ready to run, while other threads had the cores.
    pub waited: u64,
}

impl CoreTime {
    fn parse(schedstat: &str) -> Option<Self> {
        let mut numbers = schedstat.split_whitespace().map(|number| number.parse().ok());
        Some(Self { ran: numbers.next()??, waited: numbers.next()?? })
    }

    pub fn plus(self, other: Self) -> Self {
        Self { ran: self.ran.saturating_add(other.ran), waited: self.waited.saturating_add(other.waited) }
    }

    fn since(self, start: Self) -> Self {
        Self { ran: self.ran.saturating_sub(start.ran), waited: self.waited.saturating_sub(start.waited) }
    }

    /// Waiting as a share of both; `None` of no time.
    pub fn waiting_share(self) -> Option<f64> {
        let (ran, waited) = (self.ran as f64, self.waited as f64);
        (ran + waited > 0.0).then(|| waited / (ran + waited))
    }
}

/// Of each thread since it began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadTimes(BTreeMap<OsString, CoreTime>);

impl ThreadTimes {
    /// Until now; nothing where the system does not say.
    pub fn now() -> Self {
        let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        // A thread that has just ended has no file any more.
        let time = |path: std::path::PathBuf| CoreTime::parse(&fs::read_to_string(path.join("schedstat")).ok()?);
        Self(tasks.filter_map(|task| Some((task.file_name(), time(task.path())?))).collect())
    }

    /// Of all threads that are still there. One that ended takes its time along, which must not count against the others.
    pub fn since(&self, start: &Self) -> CoreTime {
        let of_thread =
            |(thread, end): (&OsString, &CoreTime)| end.since(start.0.get(thread).copied().unwrap_or_default());
        self.0.iter().map(of_thread).fold(CoreTime::default(), CoreTime::plus)
    }
}

#[cfg(test)]
impl From<CoreTime> for ThreadTimes {
    fn from(time: CoreTime) -> Self {
        Self(BTreeMap::from([("1".into(), time)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(times: &[(&str, &str)]) -> ThreadTimes {
        ThreadTimes(times.iter().map(|(thread, text)| (thread.into(), CoreTime::parse(text).unwrap())).collect())
    }

    #[test]
    fn the_share_of_waiting_is_that_of_the_time_between() {
        let start = threads(&[("1", "1000 500 7\n")]);
        let end = threads(&[("1", "1600 700 9")]);
        assert_eq!(end.since(&start), CoreTime { ran: 600, waited: 200 });
        assert_eq!(end.since(&start).waiting_share(), Some(0.25));
        assert_eq!(start.since(&start).waiting_share(), None);
        assert_eq!((CoreTime::parse(""), CoreTime::parse("12 x")), (None, None));
    }

    #[test]
    fn a_thread_that_ended_or_began_meanwhile_leaves_the_others_their_share() {
        let start = threads(&[("1", "1000 500 7"), ("2", "900000 10 1")]);
        let end = threads(&[("1", "1600 700 9"), ("3", "600 200 9")]);
        assert_eq!(end.since(&start), CoreTime { ran: 1200, waited: 400 });
    }

    #[test]
    fn time_that_is_counted_grows() {
        let start = ThreadTimes::now();
        let sum = (0..50_000_000_u64).fold(0, |sum, number| std::hint::black_box(sum ^ number));
        let end = ThreadTimes::now();
        // Systems that do not count say nothing.
        assert!(end == ThreadTimes::default() || end.since(&start).ran > 0, "{start:?} {end:?} {sum}");
    }
}
