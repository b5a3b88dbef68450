//! A profile in the race: its caches and its times.

use std::time::Duration;

use wgpu_paged_attention::gpu::DeviceProfile;

use super::judge::ratio;
use crate::bench::{CaseError, Clock, Op, TimerError, median};

/// What profiles are measured with.
pub trait Stand: Clock {
    type Case;
    /// A cache with this profile, filled, and its kernels.
    fn prepare(&mut self, profile: &DeviceProfile, op: Op) -> Result<Self::Case, CaseError>;
    /// Runs it once and compares it with the oracle.
    fn verify(&mut self, case: &Self::Case) -> Result<(), CaseError>;
    /// Microseconds of a layer.
    fn time_us(&mut self, case: &Self::Case) -> Result<f64, TimerError>;
}

/// Medians over the same rounds, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    pub default_us: f64,
    pub own_us: f64,
    /// The median of the quotients, own over default.
    pub over_default: f64,
    /// And own over the best profile so far.
    pub over_best: f64,
}

/// The times of every round.
pub struct Laps {
    pub default: Vec<f64>,
    pub best: Vec<f64>,
    pub entrants: Vec<Vec<f64>>,
}

impl Laps {
    pub fn new(entrants: usize) -> Self {
        Self { default: Vec::new(), best: Vec::new(), entrants: vec![Vec::new(); entrants] }
    }

    pub fn times(&self, own: &[f64]) -> Times {
        let middle = |laps: &[f64]| median(laps).unwrap_or(f64::INFINITY);
        Times {
            default_us: middle(&self.default),
            own_us: middle(own),
            over_default: ratio(own, &self.default),
            over_best: ratio(own, &self.best),
        }
    }
}

pub struct Entrant<C> {
    pub profile: DeviceProfile,
    cases: Vec<(Op, C)>,
    pub times: Vec<(Op, Times)>,
}

impl<C> Entrant<C> {
    pub fn new(profile: DeviceProfile) -> Self {
        Self { profile, cases: Vec::new(), times: Vec::new() }
    }

    pub fn case(&self, op: Op) -> Option<&C> {
        self.cases.iter().find(|(of, _)| *of == op).map(|(_, case)| case)
    }

    /// Makes the case of an operation and compares it with the oracle: what is wrong has no time. Returns how long that took.
    pub fn prepare<S: Stand<Case = C>>(&mut self, stand: &mut S, op: Op) -> Result<Duration, CaseError> {
        let start = stand.now();
        let case = stand.prepare(&self.profile, op)?;
        stand.verify(&case)?;
        self.cases.push((op, case));
        Ok(stand.now().saturating_sub(start))
    }

    pub fn set_times(&mut self, op: Op, times: Times) {
        self.times.retain(|(of, _)| *of != op);
        self.times.push((op, times));
    }

    /// Operations that its setting does not concern are as they were.
    pub fn inherit(&mut self, former: &Self) {
        for &(op, times) in &former.times {
            if !self.times.iter().any(|(of, _)| *of == op) {
                self.times.push((op, times));
            }
        }
    }

    /// The product over the operations.
    pub fn over_best(&self) -> f64 {
        self.times.iter().map(|(_, times)| times.over_best).product()
    }
}
