//! The search through the settings, whatever times it.

#[cfg(test)]
mod tests;

use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use wgpu_paged_attention::gpu::DeviceProfile;

use super::OPS;
use super::candidates::{Axis, Surroundings};
use super::entrant::{Entrant, Laps, Stand};
use super::found::{Ended, Found, Outcome, Progress, Tried};
use super::judge::{Standing, is_out, standing};
use crate::bench::{CaseError, Op};

/// Rounds of a first comparison; each later one has twice as many.
const FIRST_ROUNDS: u32 = 5;
/// Rounds of its own, for what leads its neighbours.
const DUEL_ROUNDS: u32 = 31;
const LAST_ROUNDS: u32 = 41;
/// The fewest, where time is short: fewer say nothing.
const LEAST_ROUNDS: u32 = 5;
/// Of the time: what a comparison may use beyond that.
const LAPS_SHARE: f64 = 0.05;
/// Of the time: what is used before the rounds at the end.
const SEARCH_SHARE: f64 = 0.8;

pub struct SearchOptions<'a> {
    pub axes: &'a [Axis],
    pub around: Surroundings,
    /// By how much, as a share, a time changes from one run of the program to the next.
    pub noise: f64,
    pub time_budget: Duration,
}

pub struct Search<'a, S: Stand> {
    stand: &'a mut S,
    options: &'a SearchOptions<'a>,
    cancel: &'a AtomicBool,
    progress: &'a mut dyn FnMut(Progress<'_>),
    /// Until when profiles are prepared, and until when they have more than the fewest rounds.
    ends: [Duration; 2],
    /// Axes that are done, and the name of this one.
    at: (usize, &'static str),
    default: Entrant<S::Case>,
    /// `None` while it is the default.
    best: Option<Entrant<S::Case>>,
    tried: Vec<Tried>,
    seen: Vec<DeviceProfile>,
    /// How long cases took to prepare.
    took: Vec<(Op, Duration)>,
}

impl<'a, S: Stand> Search<'a, S> {
    pub fn new(
        stand: &'a mut S,
        default: DeviceProfile,
        options: &'a SearchOptions<'a>,
        cancel: &'a AtomicBool,
        progress: &'a mut dyn FnMut(Progress<'_>),
    ) -> Self {
        let (start, budget) = (stand.now(), options.time_budget);
        Self {
            stand,
            options,
            cancel,
            progress,
            ends: [start + budget.mul_f64(SEARCH_SHARE), start + budget],
            at: (0, ""),
            default: Entrant::new(default.clone()),
            best: None,
            tried: Vec::new(),
            seen: vec![default],
            took: Vec::new(),
        }
    }

    /// Searches until nothing is left to try, the time is over, or `cancel` is set. `None` if that was before the device's own
    /// profile was measured.
    ///
    /// # Errors
    /// Where the device's own profile cannot be measured.
    pub fn run(mut self) -> Result<Option<Found>, CaseError> {
        for op in OPS {
            if self.is_cancelled() {
                return Ok(None);
            }
            let label = format!("{op}: the device's own profile");
            (self.progress)(Progress::At { done: 0, label: &label });
            let took = self.default.prepare(self.stand, op)?;
            self.took.push((op, took));
        }
        let ended = self.search().err();
        let found = Found { ended, ..self.found() };
        let nothing = found.ended == Some(Ended::Cancelled) && found.times.len() < OPS.len();
        Ok((!nothing).then_some(found))
    }

    fn search(&mut self) -> Result<(), Ended> {
        for op in OPS {
            let laps = self.laps(op, &[], FIRST_ROUNDS)?;
            self.default.set_times(op, laps.times(&laps.default));
        }
        self.tell();
        for (done, axis) in self.options.axes.iter().enumerate() {
            self.at = (done, axis.name);
            // From where it won, there are other neighbours.
            while self.improve(axis)? {
                self.tell();
            }
        }
        self.at = (self.options.axes.len(), "the best once more");
        self.confirm()
    }

    fn tell(&mut self) {
        let found = self.found();
        (self.progress)(Progress::Found(&found));
    }

    fn best(&self) -> &Entrant<S::Case> {
        self.best.as_ref().unwrap_or(&self.default)
    }

    fn found(&self) -> Found {
        let Entrant { profile, times, .. } = self.best();
        let differences = self.differences(profile);
        Found { profile: profile.clone(), differences, times: times.clone(), tried: self.tried.clone(), ended: None }
    }

    /// Tries the neighbours of the best profile; whether one of them took its place.
    fn improve(&mut self, axis: &Axis) -> Result<bool, Ended> {
        let mut profiles = (axis.neighbours)(&self.best().profile, &self.options.around);
        profiles.retain(|profile| !self.seen.contains(profile));
        self.seen.extend_from_slice(&profiles);
        let mut entrants: Vec<_> = profiles.into_iter().map(Entrant::new).collect();
        for (place, &op) in axis.ops.iter().enumerate() {
            let ready = self.all_ready(entrants, op)?;
            entrants = self.heat(ready, op, place + 1 == axis.ops.len())?;
        }
        let Some(mut first) = entrants.pop() else { return Ok(false) };
        let standing = self.duel(&mut first, axis.ops, DUEL_ROUNDS)?;
        if standing != Standing::Faster {
            self.record(&first, outcome(standing));
            return Ok(false);
        }
        // What leads is right in all operations, also where its setting changes no time.
        entrants = vec![first];
        for op in OPS {
            entrants = self.all_ready(entrants, op)?;
        }
        let Some(mut first) = entrants.pop() else { return Ok(false) };
        self.record(&first, Outcome::Led);
        first.inherit(self.best());
        self.best = Some(first);
        Ok(true)
    }

    /// Those whose cases are made, and right.
    fn all_ready(&mut self, entrants: Vec<Entrant<S::Case>>, op: Op) -> Result<Vec<Entrant<S::Case>>, Ended> {
        let mut ready = Vec::new();
        for mut entrant in entrants {
            if self.is_cancelled() {
                return Err(Ended::Cancelled);
            }
            match self.prepare(&mut entrant, op) {
                None => ready.push(entrant),
                Some(outcome) => self.record(&entrant, outcome),
            }
        }
        Ok(ready)
    }

    /// Makes an entrant's case unless it has one, or says why it has none.
    fn prepare(&mut self, entrant: &mut Entrant<S::Case>, op: Op) -> Option<Outcome> {
        if entrant.case(op).is_some() {
            return None;
        }
        let longest = self.took.iter().filter(|(of, _)| *of == op).map(|(_, took)| *took).max();
        if self.stand.now() + longest.unwrap_or_default() > self.ends[0] {
            return Some(Outcome::NoTime);
        }
        let label = format!("{op}: {}", self.differences(&entrant.profile));
        (self.progress)(Progress::At { done: self.at.0, label: &label });
        match entrant.prepare(self.stand, op) {
            Ok(took) => {
                self.took.push((op, took));
                None
            }
            Err(error @ CaseError::Wrong { .. }) => Some(Outcome::Wrong(error.to_string())),
            Err(error) => Some(Outcome::Refused(error.to_string())),
        }
    }

    /// Times the entrants: who is surely slower leaves, and in the last heat the slower half, until one is left.
    fn heat(&mut self, mut left: Vec<Entrant<S::Case>>, op: Op, last: bool) -> Result<Vec<Entrant<S::Case>>, Ended> {
        let mut rounds = FIRST_ROUNDS;
        while !left.is_empty() {
            let laps = self.laps(op, &left, rounds)?;
            let all = std::mem::take(&mut left);
            for (mut entrant, own) in all.into_iter().zip(&laps.entrants) {
                entrant.set_times(op, laps.times(own));
                if is_out(own, &laps.best, self.options.noise) {
                    self.record(&entrant, Outcome::Slower);
                } else {
                    left.push(entrant);
                }
            }
            left.sort_by(|a, b| a.over_best().total_cmp(&b.over_best()));
            if !last {
                break;
            }
            let half = left.split_off(left.len().div_ceil(2));
            half.iter().for_each(|entrant| self.record(entrant, Outcome::NoFaster));
            if left.len() <= 1 {
                break;
            }
            rounds *= 2;
        }
        Ok(left)
    }

    /// Times an entrant in rounds of its own. It is faster if it is so in one operation and slower in none: than the best, and
    /// than the default.
    fn duel(&mut self, entrant: &mut Entrant<S::Case>, ops: &[Op], rounds: u32) -> Result<Standing, Ended> {
        let mut faster = false;
        for &op in ops {
            let laps = self.laps(op, slice::from_ref(entrant), rounds)?;
            let own = &laps.entrants[0];
            entrant.set_times(op, laps.times(own));
            let standings = [&laps.best, &laps.default].map(|others| standing(own, others, self.options.noise));
            if standings.contains(&Standing::Slower) {
                return Ok(Standing::Slower);
            }
            faster |= standings[0] == Standing::Faster;
        }
        Ok(if faster { Standing::Faster } else { Standing::Even })
    }

    /// Holds what was found against the default in all operations; the default wins a draw.
    fn confirm(&mut self) -> Result<(), Ended> {
        let Some(mut best) = self.best.take() else { return Ok(()) };
        (self.progress)(Progress::At { done: self.at.0, label: self.at.1 });
        let standing = self.duel(&mut best, &OPS, LAST_ROUNDS);
        match standing {
            Ok(standing) if standing != Standing::Faster => self.record(&best, outcome(standing)),
            // Also where there was no time to judge: it has won before.
            _ => self.best = Some(best),
        }
        standing.map(drop)
    }

    /// Times the default, the best and the entrants in turn. The first round warms up.
    fn laps(&mut self, op: Op, entrants: &[Entrant<S::Case>], rounds: u32) -> Result<Laps, Ended> {
        let mut laps = Laps::new(entrants.len());
        let end = self.ends[1].min(self.stand.now() + self.options.time_budget.mul_f64(LAPS_SHARE));
        for round in 0..=rounds {
            if self.is_cancelled() {
                return Err(Ended::Cancelled);
            }
            if round > LEAST_ROUNDS && self.stand.now() > end {
                break;
            }
            let stand = &mut *self.stand;
            let mut lap = |entrant: &Entrant<_>| entrant.case(op).map(|case| stand.time_us(case)).transpose();
            let default = lap(&self.default)?;
            let best = self.best.as_ref().map_or(Ok(default), &mut lap)?;
            let own = entrants.iter().map(&mut lap).collect::<Result<Vec<_>, _>>()?;
            if round > 0 {
                laps.default.extend(default);
                laps.best.extend(best);
                laps.entrants.iter_mut().zip(own).for_each(|(times, us)| times.extend(us));
            }
        }
        Ok(laps)
    }

    fn record(&mut self, entrant: &Entrant<S::Case>, outcome: Outcome) {
        let differences = self.differences(&entrant.profile);
        self.tried.push(Tried { axis: self.at.1, differences, times: entrant.times.clone(), outcome });
    }

    /// The settings that are others than the default's.
    fn differences(&self, profile: &DeviceProfile) -> String {
        profile.differences(&self.default.profile).join(", ")
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

fn outcome(standing: Standing) -> Outcome {
    if standing == Standing::Slower { Outcome::Slower } else { Outcome::NoFaster }
}
