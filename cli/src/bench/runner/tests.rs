use std::cell::Cell;

use super::*;
use crate::bench::models::ModelShape;
use wgpu_paged_attention::reference::Mismatch;
use wgpu_paged_attention::testkit::test_device;

/// A timer that writes down what it is asked for. Its clock moves by 1 ms with each timed run, and nowhere else.
#[derive(Default)]
struct Fake {
    log: Vec<String>,
    now: Cell<Duration>,
    /// This mode computes something wrong.
    wrong: Option<Mode>,
    /// Timed runs after which the device is lost.
    lost_after: Option<usize>,
    /// What is timed first after a ceiling takes twice as long, and whether the next run is that.
    slow_first: bool,
    is_first: bool,
}

impl Clock for Fake {
    fn now(&self) -> Duration {
        self.now.get()
    }
}

impl Timer for Fake {
    type Case = Mode;
    type Work = Op;

    fn prepare(&mut self, inputs: &CaseInputs, mode: Mode) -> Result<Mode, CaseError> {
        self.log.push(format!("prepare {} {}", inputs.longest(), mode.name()));
        Ok(mode)
    }

    fn check(&mut self, case: &Mode, op: Op) -> Result<(Op, Sample, f64), CaseError> {
        self.log.push(format!("check {op} {}", case.name()));
        if self.wrong == Some(*case) {
            let mismatch = Mismatch::Value { index: 3, got: f32::NAN, want: 0.5, tolerance: 1e-6 };
            return Err(CaseError::Wrong { sequence: 0, position: 0, verdict: Verdict::Output(mismatch) });
        }
        Ok((op, Sample { gpu_us: None, wall_us: 9000.0 }, 1e-7))
    }

    fn time(&mut self, case: &Mode, work: &Op) -> Result<Sample, TimerError> {
        self.log.push(format!("{work} {}", case.name()));
        let timed = self.log.iter().filter(|line| !line.contains("check") && !line.contains("prepare")).count();
        if self.lost_after.is_some_and(|after| timed > after) {
            return Err(TimerError::Lost);
        }
        self.now.set(self.now() + Duration::from_millis(1));
        let slow = if std::mem::take(&mut self.is_first) && self.slow_first { 2.0 } else { 1.0 };
        // Paging costs a tenth.
        Ok(Sample { gpu_us: None, wall_us: slow * if *case == Mode::Paged { 1100.0 } else { 1000.0 } })
    }

    fn read_gb_s(&mut self) -> Result<f64, TimerError> {
        self.is_first = true;
        Ok(10.0)
    }

    fn fma_gflop_s(&mut self) -> Result<f64, TimerError> {
        Ok(100.0)
    }

    fn accuracy(&mut self, _: u64, index: usize) -> Result<Figure, Verdict> {
        self.log.push(format!("accuracy {index}"));
        Err(Verdict::Lost)
    }

    fn timing(&self) -> Timing {
        Timing::Wall
    }

    fn time_us(&self, sample: &Sample) -> f64 {
        sample.wall_us
    }

    /// While something is timed, another program has a core for half of the time.
    fn core_time(&self) -> Option<ThreadTimes> {
        let now = self.now().as_nanos() as u64;
        Some(CoreTime { ran: now, waited: now }.into())
    }
}

fn group(ops: &[Op], context: u32) -> Group {
    let inputs = CaseInputs::new(ModelShape::custom(2, 1, 8).unwrap(), vec![context], 1);
    let sides = [Mode::Paged, Mode::Contiguous].map(|mode| (inputs.clone(), mode)).to_vec();
    Group { ops: ops.to_vec(), sides, comparisons: Vec::new() }
}

fn options(samples: Option<u32>, time_budget: Duration) -> BenchOptions {
    BenchOptions { samples, time_budget, ..BenchOptions::default() }
}

/// Runs the groups; `seen` gets what is reported meanwhile.
fn run_all(fake: &mut Fake, options: &BenchOptions, groups: &[Group], seen: &mut dyn FnMut(Progress<'_>)) -> Report {
    let report = Report::new(String::new(), 1, Adapter::default(), Default::default());
    Run::new(fake, options, 9, report).all(groups, 0, &AtomicBool::new(false), seen)
}

const LONG: Duration = Duration::from_secs(1000);

#[test]
fn cases_are_checked_first_and_then_alternate_after_a_round_that_warms_up() {
    let mut fake = Fake::default();
    let report = run_all(&mut fake, &options(Some(2), LONG), &[group(&[Op::Append, Op::Decode], 17)], &mut |_| {});
    let mut expected = ["prepare 17 paged", "prepare 17 contiguous"].map(str::to_owned).to_vec();
    expected.extend(["check append paged", "check append contiguous"].map(str::to_owned));
    let rounds = |op: &str| {
        let [paged, contiguous] = ["paged", "contiguous"].map(|mode| format!("{op} {mode}"));
        [&paged, &contiguous, &contiguous, &paged, &paged, &contiguous].map(String::clone)
    };
    expected.extend(rounds("append"));
    expected.extend(["check decode paged", "check decode contiguous"].map(str::to_owned));
    expected.extend(rounds("decode"));
    assert_eq!(fake.log, expected);
    let samples: Vec<usize> = report.results.iter().map(|result| result.samples_us.len()).collect();
    assert_eq!(samples, [2, 2, 2, 2], "the round that warms up does not count");
    assert!(report.results.iter().all(|result| result.cold_us == Some(9000.0)));
    let ratios: Vec<f64> = report.pairs.iter().map(|pair| pair.paged_over_contiguous).collect();
    assert_eq!(ratios, [1.1, 1.1]);
}

#[test]
fn a_quotient_does_not_tell_which_side_comes_first_after_a_ceiling() {
    let ratio = |slow_first, places: [usize; 2]| {
        let mut fake = Fake { slow_first, ..Fake::default() };
        let measure = Measure::Ratio(vec![places[0]], vec![places[1]]);
        let comparisons = vec![Comparison { what: String::new(), measure, limit: None }];
        let group = Group { comparisons, ..group(&[Op::Decode], 17) };
        let figure = run_all(&mut fake, &options(Some(5), LONG), &[group], &mut |_| {}).figures.remove(0);
        (figure.measured, figure.samples)
    };
    for slow_first in [false, true] {
        assert_eq!(ratio(slow_first, [0, 1]), (1.1, 4), "{slow_first}");
        assert_eq!(ratio(slow_first, [1, 0]), (1.0 / 1.1, 4), "{slow_first}");
    }
}

#[test]
fn rounds_end_at_the_deadline_but_never_before_the_fewest() {
    let rounds = |budget_ms, samples| {
        let options = options(samples, Duration::from_millis(budget_ms));
        let report = run_all(&mut Fake::default(), &options, &[group(&[Op::Decode], 17)], &mut |_| {});
        report.results[0].samples_us.len() as u32
    };
    assert_eq!(rounds(0, None), LEAST_SAMPLES);
    // A round takes 2 ms: after the one that warms up and seven others, 16 ms are over.
    assert_eq!(rounds(15, None), 7);
    assert_eq!(rounds(1000, None), 9, "the most");
    assert_eq!(rounds(0, Some(30)), 30, "a number that was asked for is kept");
}

#[test]
fn groups_share_the_time_that_is_left() {
    let groups = [17, 18, 19].map(|context| group(&[Op::Decode], context));
    let report = run_all(&mut Fake::default(), &options(None, Duration::from_millis(45)), &groups, &mut |_| {});
    let counts: Vec<usize> = report.results.iter().step_by(2).map(|result| result.samples_us.len()).collect();
    assert_eq!(counts, [7, 7, 6]);
}

#[test]
fn a_wrong_case_has_no_time_and_the_other_side_goes_on() {
    let mut fake = Fake { wrong: Some(Mode::Paged), ..Fake::default() };
    let report = run_all(&mut fake, &options(Some(2), LONG), &[group(&[Op::Decode], 17)], &mut |_| {});
    assert!(!fake.log.contains(&"decode paged".to_owned()), "{:?}", fake.log);
    assert_eq!((report.results.len(), report.results[0].mode, report.pairs.len()), (1, Mode::Contiguous, 0));
    assert_eq!((report.failures.len(), report.failures[0].mode), (1, Mode::Paged));
    assert!(report.failures[0].error.contains("element 3: got NaN"), "{:?}", report.failures);
}

#[test]
fn cores_that_others_had_in_timed_runs_are_noted() {
    let options = options(Some(2), LONG);
    let report = run_all(&mut Fake::default(), &options, &[group(&[Op::Append, Op::Decode], 17)], &mut |_| {});
    assert_eq!(report.waiting_share, Some(0.5));
    assert!(report.notes.iter().any(|note| note.contains("for 50.0 % of the time")), "{:?}", report.notes);
}

#[test]
fn x04_a_device_lost_between_rounds_fails_both_sides() {
    let mut fake = Fake { lost_after: Some(3), ..Fake::default() };
    let report = run_all(&mut fake, &options(Some(9), LONG), &[group(&[Op::Decode], 17)], &mut |_| {});
    assert!(report.results.is_empty());
    let errors: Vec<&str> = report.failures.iter().map(|failure| &*failure.error).collect();
    assert_eq!(errors, ["the device was lost while it worked"; 2]);
}

#[test]
fn a_run_stops_after_the_group_in_which_it_was_cancelled() {
    let (cancel, mut fake, mut messages) = (AtomicBool::new(false), Fake::default(), Vec::new());
    let groups = [17, 18].map(|context| group(&[Op::Decode], context));
    let report = Report::new(String::new(), 1, Adapter::default(), Default::default());
    let report =
        Run::new(&mut fake, &options(Some(1), LONG), 9, report).all(
            &groups,
            1,
            &cancel,
            &mut |progress| match progress {
                Progress::Report(report) => {
                    assert_eq!(report.results.len(), 2, "what was measured is worth saving");
                    cancel.store(true, Ordering::Relaxed);
                }
                Progress::Message(message) => messages.push(message.to_owned()),
                _ => {}
            },
        );
    assert_eq!(report.results.len(), 2);
    assert_eq!(messages[0], "stopped before all cases were measured");
    assert!(fake.log.iter().all(|line| !line.contains("18")), "{:?}", fake.log);
}

#[test]
fn figures_made_of_errors_come_last_and_may_fail() {
    let mut fake = Fake::default();
    let report = Report::new(String::new(), 1, Adapter::default(), Default::default());
    let never = AtomicBool::new(false);
    let options = options(Some(1), LONG);
    let report = Run::new(&mut fake, &options, 9, report).all(&[group(&[Op::Decode], 17)], 2, &never, &mut |_| {});
    assert_eq!(fake.log[fake.log.len() - 2..], ["accuracy 0", "accuracy 1"]);
    assert_eq!(report.failures.iter().filter(|failure| failure.op == "accuracy").count(), 2);
}

#[test]
fn x04_a_lost_device_ends_a_run_with_the_reason() {
    let Some(gpu) = test_device() else { return };
    gpu.device.destroy();
    let options = BenchOptions { cases: vec!["1,17,2,1,8".parse().unwrap()], ..BenchOptions::default() };
    let ended = run(&gpu, &ChosenProfile::of(&gpu), &options, "", &AtomicBool::new(false), &mut |_| {});
    let reason = match ended {
        Ok(report) => report.failures.first().map_or_else(String::new, |failure| failure.error.clone()),
        Err(error) => error.to_string(),
    };
    assert!(reason.contains("lost"), "{reason}");
}
