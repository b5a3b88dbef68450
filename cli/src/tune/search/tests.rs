use std::sync::Arc;

use super::*;
use crate::bench::{Clock, TimerError};
use crate::tune::candidates::AXES;
use wgpu_paged_attention::reference::Mismatch;
use wgpu_paged_attention::testkit::Verdict;
use wgpu_paged_attention::wgpu::{AdapterInfo, Backend, DeviceType, Features, Limits};

/// A device whose times are a formula. Its clock moves by a second with each case that is made, and by what is timed.
struct Fake {
    now: Duration,
    us: fn(&DeviceProfile, Op) -> f64,
    /// Profiles that compute something wrong, and profiles that are refused.
    wrong: fn(&DeviceProfile) -> bool,
    refused: fn(&DeviceProfile) -> bool,
    /// What a time changes by, round by round: up to so much of it.
    jitter: f64,
    laps: u32,
    /// After so many, `cancel` is set.
    cancelled_after: u32,
    lost_after: u32,
    cancel: Arc<AtomicBool>,
    prepared: Vec<(DeviceProfile, Op)>,
    timed: Vec<DeviceProfile>,
}

impl Fake {
    fn new(us: fn(&DeviceProfile, Op) -> f64) -> Self {
        Self {
            now: Duration::ZERO,
            us,
            wrong: |_| false,
            refused: |_| false,
            jitter: 0.0,
            laps: 0,
            cancelled_after: u32::MAX,
            lost_after: u32::MAX,
            cancel: Arc::default(),
            prepared: Vec::new(),
            timed: Vec::new(),
        }
    }
}

impl Clock for Fake {
    fn now(&self) -> Duration {
        self.now
    }
}

impl Stand for Fake {
    type Case = (DeviceProfile, Op);

    fn prepare(&mut self, profile: &DeviceProfile, op: Op) -> Result<Self::Case, CaseError> {
        self.now += Duration::from_secs(1);
        self.prepared.push((profile.clone(), op));
        if (self.refused)(profile) { Err(Verdict::Lost.into()) } else { Ok((profile.clone(), op)) }
    }

    fn verify(&mut self, (profile, _): &Self::Case) -> Result<(), CaseError> {
        let mismatch = Mismatch::Value { index: 3, got: f32::NAN, want: 0.5, tolerance: 1e-6 };
        let wrong = CaseError::Wrong { sequence: 0, position: 0, verdict: Verdict::Output(mismatch) };
        if (self.wrong)(profile) { Err(wrong) } else { Ok(()) }
    }

    fn time_us(&mut self, (profile, op): &Self::Case) -> Result<f64, TimerError> {
        self.laps += 1;
        if self.laps > self.lost_after {
            return Err(TimerError::Lost);
        }
        self.cancel.fetch_or(self.laps >= self.cancelled_after, Ordering::Relaxed);
        self.timed.push(profile.clone());
        // The same numbers in every run, and no pattern that the rounds could follow.
        let noise = f64::from(self.laps.wrapping_mul(2_654_435_761) >> 16) / f64::from(u16::MAX);
        let us = (self.us)(profile, *op) * (1.0 + self.jitter * noise);
        self.now += Duration::from_secs_f64(us / 1e6);
        Ok(us)
    }
}

/// The profile of a GPU with subgroups of 32.
fn default() -> DeviceProfile {
    let mut info = AdapterInfo::new(DeviceType::DiscreteGpu, Backend::Vulkan);
    (info.subgroup_min_size, info.subgroup_max_size) = (32, 32);
    DeviceProfile::new(&info, Features::SUBGROUP, &Limits::default())
}

const AROUND: Surroundings = Surroundings { context: 2048, prompt: 2048, subgroup: 32, int64: false, matrices: None };

fn run_for(fake: &mut Fake, seconds: u64, seen: &mut dyn FnMut(Progress<'_>)) -> Result<Option<Found>, CaseError> {
    let time_budget = Duration::from_secs(seconds);
    let options = SearchOptions { axes: AXES, around: AROUND, noise: 0.05, time_budget };
    let cancel = Arc::clone(&fake.cancel);
    Search::new(fake, default(), &options, &cancel, seen).run()
}

fn run(fake: &mut Fake) -> Found {
    run_for(fake, 10_000, &mut |_| {}).unwrap().expect("the default was measured")
}

fn outcomes(found: &Found, setting: &str) -> Vec<Outcome> {
    let of = |tried: &&Tried| tried.differences.split(", ").any(|difference| difference == setting);
    found.tried.iter().filter(of).map(|tried| tried.outcome.clone()).collect()
}

/// Four loads in flight are the best, and splits of 512 keys; lanes and tiles as they are.
fn hill(profile: &DeviceProfile, op: Op) -> f64 {
    let far = |value: u32, best: u32| (f64::from(value) / f64::from(best)).log2().abs();
    let splits = if op == Op::Decode { far(profile.split_tokens, 512) } else { 0.0 };
    let own = default();
    let others = f64::from(profile.lane_comm != own.lane_comm) + f64::from(profile.tile_rows != own.tile_rows);
    let more = f64::from(profile.tile_tokens != own.tile_tokens) + f64::from(profile.unrolled != own.unrolled);
    let most = f64::from(profile.scoring != own.scoring) + f64::from(profile.subgroups != own.subgroups);
    1000.0 * (1.0 + 0.2 * (far(profile.loads, 4) + splits + others + more + most))
}

#[test]
fn what_is_the_fastest_is_found_setting_by_setting() {
    let mut fake = Fake::new(hill);
    let found = run(&mut fake);
    assert_eq!(found.differences, "loads = 4, split_tokens = 512");
    assert_eq!((found.profile.loads, found.profile.split_tokens, &found.ended), (4, 512, &None));
    let times: Vec<(Op, f64, f64)> =
        found.times.iter().map(|(op, times)| (*op, times.own_us.round(), times.default_us.round())).collect();
    assert_eq!(times, [(Op::Decode, 1000.0, 1600.0), (Op::Prefill, 1000.0, 1400.0)]);
    // Of the loads, two led before four did.
    assert_eq!(outcomes(&found, "loads = 2"), [Outcome::Led]);
    assert!(outcomes(&found, "split_tokens = 128").contains(&Outcome::Slower));
}

#[test]
fn nothing_is_timed_before_it_is_verified_in_every_operation_of_its_setting() {
    let mut fake = Fake::new(hill);
    run(&mut fake);
    for timed in &fake.timed {
        assert!(fake.prepared.iter().any(|(profile, _)| profile == timed), "{timed:?}");
    }
    // What took the lead was right in both.
    for op in OPS {
        assert!(fake.prepared.iter().any(|(profile, of)| (profile.split_tokens, *of) == (512, op)));
    }
}

#[test]
fn a_wrong_profile_is_dropped_however_fast_it_is() {
    let mut fake = Fake::new(|profile, op| if profile.loads == 2 { 1.0 } else { hill(profile, op) });
    fake.wrong = |profile| profile.loads == 2;
    let found = run(&mut fake);
    assert!(matches!(&outcomes(&found, "loads = 2")[..], [Outcome::Wrong(why)] if why.contains("element 3: got NaN")));
    assert!(fake.timed.iter().all(|profile| profile.loads != 2));
    assert_eq!(found.differences, "split_tokens = 512");
}

#[test]
fn a_refused_profile_is_dropped_and_the_others_go_on() {
    let mut fake = Fake::new(hill);
    fake.refused = |profile| profile.split_tokens == 128;
    let found = run(&mut fake);
    assert!(matches!(&outcomes(&found, "split_tokens = 128")[..], [Outcome::Refused(_)]));
    assert_eq!(found.differences, "loads = 4, split_tokens = 512");
}

#[test]
fn a_profile_that_is_slower_in_one_operation_never_wins() {
    // Decoding gains three quarters, prompts lose a tenth.
    let found = run(&mut Fake::new(|profile, op| match (profile.loads, op) {
        (1, _) => 1000.0,
        (_, Op::Decode) => 250.0,
        _ => 1100.0,
    }));
    assert_eq!(found.differences, "");
    assert_eq!(outcomes(&found, "loads = 2"), [Outcome::Slower]);
}

#[test]
fn the_default_wins_a_draw_whatever_the_noise() {
    for jitter in [0.0, 0.03, 0.3, 3.0] {
        let mut fake = Fake { jitter, ..Fake::new(|_, _| 1000.0) };
        let found = run(&mut fake);
        assert_eq!((found.differences, found.ended), (String::new(), None), "{jitter}");
    }
    // A gain within the noise is none.
    let found = run(&mut Fake::new(|profile, _| if profile.loads == 2 { 960.0 } else { 1000.0 }));
    assert_eq!(found.differences, "");
}

#[test]
fn a_slower_profile_never_wins_whatever_the_noise() {
    for jitter in [0.1, 0.5, 2.0] {
        let own = |profile: &DeviceProfile, _| if *profile == default() { 1000.0 } else { 1080.0 };
        let found = run(&mut Fake { jitter, ..Fake::new(own) });
        assert_eq!(found.differences, "", "{jitter}");
    }
}

#[test]
fn a_lead_that_does_not_last_is_given_up() {
    // Fast while it is new: the last rounds, over both operations, are the judge.
    let mut fake = Fake::new(hill);
    let found = run(&mut fake);
    let laps = fake.laps - 2 * 2 * (LAST_ROUNDS + 1);
    assert!(!found.differences.is_empty());
    struct Late(Fake, u32);
    impl Clock for Late {
        fn now(&self) -> Duration {
            self.0.now()
        }
    }
    impl Stand for Late {
        type Case = (DeviceProfile, Op);
        fn prepare(&mut self, profile: &DeviceProfile, op: Op) -> Result<Self::Case, CaseError> {
            self.0.prepare(profile, op)
        }
        fn verify(&mut self, case: &Self::Case) -> Result<(), CaseError> {
            self.0.verify(case)
        }
        fn time_us(&mut self, case: &Self::Case) -> Result<f64, TimerError> {
            let us = self.0.time_us(case)?;
            Ok(if self.0.laps > self.1 { 1000.0 } else { us })
        }
    }
    let options = SearchOptions { axes: AXES, around: AROUND, noise: 0.05, time_budget: Duration::from_secs(10_000) };
    let never = AtomicBool::new(false);
    let mut late = Late(Fake::new(hill), laps);
    let found = Search::new(&mut late, default(), &options, &never, &mut |_| {}).run().unwrap().unwrap();
    assert_eq!((&*found.differences, found.ended), ("", None));
    assert_eq!(found.tried.last().map(|tried| &tried.outcome), Some(&Outcome::NoFaster));
}

#[test]
fn profiles_for_which_there_is_no_time_are_not_prepared() {
    // Two seconds for the default, and one for each case.
    let mut fake = Fake::new(hill);
    let found = run_for(&mut fake, 6, &mut |_| {}).unwrap().unwrap();
    assert!(fake.now < Duration::from_secs(7), "{:?}", fake.now);
    assert!(found.tried.iter().any(|tried| tried.outcome == Outcome::NoTime));
    assert_eq!((found.times.len(), found.ended), (2, None));
}

#[test]
fn what_was_found_is_kept_when_a_search_is_interrupted() {
    let mut whole = Fake::new(hill);
    let (all, laps) = (run(&mut whole).tried.len(), whole.laps);
    let mut kept = Vec::new();
    for cancelled_after in (0..8).map(|eighths| 1 + laps * eighths / 8) {
        let mut fake = Fake { cancelled_after, ..Fake::new(hill) };
        let mut told = None;
        let found = run_for(&mut fake, 10_000, &mut |progress| {
            if let Progress::Found(found) = progress {
                told = Some(found.profile.clone());
            }
        });
        let Some(found) = found.unwrap() else {
            kept.push(0);
            continue;
        };
        assert_eq!(found.ended, Some(Ended::Cancelled));
        assert_eq!(found.profile, told.unwrap_or_else(default), "what was told last is what is kept");
        assert!(found.tried.len() <= all && found.times.len() == 2);
        kept.push(1 + found.profile.differences(&default()).len());
    }
    assert_eq!((kept[0], kept.last()), (0, Some(&3)), "nothing first, and both settings in the end: {kept:?}");
    assert!(kept.is_sorted() && kept.contains(&2), "{kept:?}");
}

#[test]
fn x04_a_lost_device_ends_the_search_and_what_was_found_is_kept() {
    let found = run(&mut Fake { lost_after: 200, ..Fake::new(hill) });
    assert_eq!(found.ended, Some(Ended::Failed("the device was lost while it worked".to_owned())));
    assert!(!found.differences.is_empty());
    let found = run(&mut Fake { lost_after: 1, ..Fake::new(hill) });
    assert!(matches!(found.ended, Some(Ended::Failed(_))) && found.times.is_empty(), "{:?}", found.ended);
    let mut fake = Fake { refused: |_| true, ..Fake::new(hill) };
    let error = run_for(&mut fake, 10_000, &mut |_| {}).expect_err("the default");
    assert!(error.to_string().contains("lost"), "{error}");
}
