use std::sync::atomic::AtomicBool;

use super::scheduler::ObserverError;
use super::*;
use crate::trace::{Log, PrefixIds, Request};
use wgpu_paged_attention::config::CacheConfig;

const CLOCK: StepClock = StepClock { step_s: 0.01 };

fn request(arrival_s: f64, prompt_tokens: u32, output_tokens: u32) -> Request {
    let arrival_ns = (arrival_s * 1e9).round() as u64;
    Request { arrival_ns, prompt_tokens, output_tokens, ..Request::default() }
}

fn log(requests: Vec<Request>) -> Log {
    let tokens_per_id = requests.iter().any(|request| !request.prefix.is_empty()).then_some(16);
    Log { name: "test".to_owned(), requests, tokens_per_id, ..Log::default() }
}

/// A cache of so many tokens, in blocks of 16; sequences are up to 128 tokens long.
fn options(tokens: u32) -> ServeOptions {
    let cache = CacheConfig::new(2, 2, 64).with_num_blocks(tokens / 16).with_max_seq_len(128).with_max_sequences(16);
    ServeOptions::new(cache)
}

fn run(log: &Log, options: &ServeOptions, paged: bool) -> ServeRecord {
    serve(log, options, paged, &CLOCK, None, &mut |_| {}, &AtomicBool::new(false)).unwrap()
}

#[test]
fn one_request_takes_one_step_per_token() {
    let record = run(&log(vec![request(5.0, 40, 3)]), &options(256), true);
    assert_eq!((record.steps, record.finished, record.output_tokens, record.prompt_tokens), (3, 1, 3, 40));
    assert!((record.elapsed_s - 0.03).abs() < 1e-6);
    let (first, between) = (record.time_to_first_token_s.unwrap(), record.time_between_tokens_s.unwrap());
    assert!((first.mean - 0.01).abs() < 1e-6 && (between.mean - 0.01).abs() < 1e-6);
    assert!((record.latency_s.unwrap().max - 0.03).abs() < 1e-6);
    // 40, 41 and 42 tokens in 48 places: K and V of the last token are never needed.
    let expected = (40.0 + 41.0 + 42.0) / 3.0 / 48.0;
    assert!((record.utilisation.unwrap().mean - expected).abs() < 1e-6);
    assert!((record.internal_fragmentation.unwrap().mean - (1.0 - expected)).abs() < 1e-6);
    // In one piece, 128 places are taken.
    let contiguous = run(&log(vec![request(5.0, 40, 3)]), &options(256), false);
    assert!((contiguous.utilisation.unwrap().mean - 41.0 / 128.0).abs() < 1e-6);
    assert_eq!(contiguous.steps, 3);
}

#[test]
fn prompts_are_computed_in_chunks_beside_decoding() {
    let options = ServeOptions { step_tokens: 10, ..options(256) };
    // Two steps of 10 and one of 5 for the first, whose answer then takes one token of each step.
    let record = run(&log(vec![request(0.0, 25, 4), request(0.0, 27, 1)]), &options, true);
    // 25 + 27 prompt tokens and 3 decoded ones, 10 to a step.
    assert_eq!(record.steps, 6);
    assert_eq!((record.finished, record.output_tokens), (2, 5));
}

#[test]
fn bursts_wait_and_gaps_are_skipped() {
    // A contiguous cache has room for two at a time, a paged one for all eight.
    let requests = (0..8).map(|_| request(0.0, 20, 12)).chain([request(100.0, 20, 12)]).collect();
    let log = log(requests);
    let (contiguous, paged) = (run(&log, &options(256), false), run(&log, &options(256), true));
    assert_eq!((contiguous.finished, paged.finished), (9, 9));
    assert_eq!(contiguous.concurrency.unwrap().max, 2.0);
    assert_eq!(paged.concurrency.unwrap().max, 8.0);
    // Four rounds of 12 steps, or one; then the last request.
    assert_eq!((contiguous.steps, paged.steps), (60, 24));
    assert_eq!(paged.queueing_s.unwrap().max, 0.0);
    assert!((contiguous.queueing_s.unwrap().max - 0.36).abs() < 1e-6);
    assert!((paged.elapsed_s - 100.12).abs() < 1e-6 && (paged.busy_s - 0.24).abs() < 1e-6);
}

#[test]
fn what_does_not_fit_is_counted() {
    let log = log(vec![request(0.0, 129, 5), request(0.0, 128, 5), request(0.0, 100, 200), request(1.0, 30, 0)]);
    for paged in [false, true] {
        let record = run(&log, &options(512), paged);
        assert_eq!((record.finished, record.refused, record.empty, record.cut), (2, 1, 1, 2));
        // One token after 128, and 29 after 100: a 129th place is not needed for the last.
        assert_eq!(record.output_tokens, 1 + 29);
    }
}

#[test]
fn the_last_to_come_gives_way_and_comes_back() {
    // Each grows to 63 tokens, four blocks; together they need 16 of the 10 that there are.
    let log = log((0..4).map(|n| request(f64::from(n) * 1e-3, 17, 47)).collect());
    let record = run(&log, &options(160), true);
    assert_eq!((record.finished, record.output_tokens), (4, 4 * 47));
    assert!(record.preemptions > 0 && record.recomputed_tokens > 0, "{record:?}");
    // No request is pushed out again and again.
    assert!(record.preemptions <= 4, "{}", record.preemptions);
    // The first is never touched: 47 steps.
    let between = record.time_between_tokens_s.unwrap();
    assert!(between.p50 < 0.0101 && between.max > 0.02, "{between:?}");
}

#[test]
fn whatever_is_computed_twice_is_counted() {
    struct Count(u64);
    impl StepObserver for Count {
        fn step(&mut self, step: &ObservedStep<'_>) -> Result<(), ObserverError> {
            self.0 += step.growth.iter().map(|growth| u64::from(growth.new_tokens)).sum::<u64>();
            Ok(())
        }
    }
    // Steps of few tokens, so that some are pushed out before their prompts are through.
    let log = log((0..6).map(|n| request(f64::from(n) * 1e-3, 40, 24)).collect());
    for step_tokens in [7, 16, 2048] {
        let options = ServeOptions { step_tokens, ..options(160) };
        let mut computed = Count(0);
        let cancel = AtomicBool::new(false);
        let record = serve(&log, &options, true, &CLOCK, Some(&mut computed), &mut |_| {}, &cancel).unwrap();
        assert!(record.preemptions > 0, "{step_tokens}");
        assert_eq!(record.recomputed_tokens, computed.0 - 6 * 63, "{step_tokens}");
    }
}

#[test]
fn x18_only_the_times_between_arrivals_matter_to_the_nanosecond() {
    let at = |start_ns: u64| {
        let request = |n: u64| Request { arrival_ns: start_ns + n / 4 * 999_999_999, ..request(0.0, 20, 12) };
        run(&log((0..20).map(request).collect()), &options(256), true)
    };
    let expected = at(0);
    assert!(expected.latency_s.unwrap().max > 0.1);
    // Unix time in nanoseconds is more than a float has digits for.
    for start_ns in [1_700_000_000_123_456_789, 1 << 63] {
        assert_eq!(at(start_ns), expected, "{start_ns}");
    }
}

#[test]
fn x18_a_replay_ends_before_its_clock_does() {
    let request_at = |arrival_ns| Request { arrival_ns, ..request(0.0, 20, 2) };
    let cancel = AtomicBool::new(false);
    let served = |last_ns| {
        serve(&log(vec![request_at(0), request_at(last_ns)]), &options(256), true, &CLOCK, None, &mut |_| {}, &cancel)
    };
    let record = served(i64::MAX as u64).unwrap();
    assert_eq!((record.finished, record.elapsed_s), (2, 9_223_372_036.874_776));
    assert_eq!(
        served(u64::MAX - 1).unwrap_err().to_string(),
        "the replay is longer than 584 years at step 3; give a clock with shorter steps"
    );
}

/// The same, all layers with a window of a block.
fn windowed(options: ServeOptions) -> ServeOptions {
    let cache = options.cache.clone().with_window(16);
    ServeOptions { window: Some(16), cache, ..options }
}

#[test]
fn blocks_that_leave_the_windows_let_others_in() {
    // The first needs 7 of 10 blocks for its prompt, 16 tokens a step, and gives back all but the last; the second needs
    // 4, which there are as soon as the first has given back one, after its second step.
    let options = ServeOptions { step_tokens: 16, ..windowed(options(160)) };
    let record = run(&log(vec![request(0.0, 112, 4), request(0.0, 64, 4)]), &options, true);
    assert_eq!(record.finished, 2);
    assert!((record.queueing_s.unwrap().max - 0.02).abs() < 1e-6, "{:?}", record.queueing_s);
}

#[test]
fn prefixes_are_found_once_each_and_recomputation_is_no_hit() {
    let with_ids = |arrival_s, ids: std::ops::RangeInclusive<u64>| Request {
        prefix: PrefixIds::new([ids]),
        ..request(arrival_s, 64, 8)
    };
    // A known share: the second and third find all but the last block of 16, the fourth nothing.
    let log = log(vec![with_ids(0.0, 0..=3), with_ids(1.0, 0..=3), with_ids(2.0, 0..=3), with_ids(3.0, 10..=13)]);
    let expected = f64::from(2 * 48) / f64::from(4 * 64);
    for _ in 0..2 {
        let prefix = run(&log, &options(512), true).prefix.unwrap();
        assert_eq!((prefix.prompt_tokens, prefix.hit_tokens), (256, 96));
        assert!((prefix.hit_share - expected).abs() < 1e-6);
        assert!((prefix.infinite_share - f64::from(2 * 63) / 256.0).abs() < 1e-6);
    }
    // The same under such a lack of blocks that sequences come back: they find their own prompts then.
    let crowd: Vec<_> = (0..6).map(|n| Request { output_tokens: 60, ..with_ids(0.0, 4 * n..=4 * n + 3) }).collect();
    let record = run(&self::log(crowd), &options(256), true);
    assert!(record.preemptions > 0);
    assert_eq!(record.prefix.unwrap().hit_tokens, 0);
    // Switched off, and in a contiguous cache, there is none.
    assert_eq!(run(&log, &ServeOptions { prefix_cache: false, ..options(512) }, true).prefix, None);
    assert_eq!(run(&log, &options(512), false).prefix, None);
}

#[test]
fn windows_give_blocks_back_while_sequences_live() {
    let windows = windowed(options(512));
    let log = log(vec![request(0.0, 16, 100)]);
    let (all, windowed) = (run(&log, &options(512), true), run(&log, &windows, true));
    let most = |record: &ServeRecord| record.timeline.iter().map(|point| point.reserved_tokens).max();
    assert_eq!(most(&all), Some(128));
    assert!(most(&windowed) <= Some(48), "{:?}", most(&windowed));
}

#[test]
fn observers_see_every_token_once() {
    struct Count(Vec<Vec<u32>>);
    impl StepObserver for Count {
        fn step(&mut self, step: &ObservedStep<'_>) -> Result<(), ObserverError> {
            assert!(step.manager.is_step_open());
            assert_eq!(step.plan.num_tokens(), step.growth.iter().map(|growth| growth.new_tokens).sum::<u32>());
            for growth in step.growth {
                assert_eq!(step.manager.seq_len(growth.seq), Ok(growth.len));
                self.0[growth.request].extend(growth.len..growth.len + growth.new_tokens);
            }
            Ok(())
        }
    }
    let log = log(vec![request(0.0, 30, 5), request(0.02, 17, 9)]);
    let mut seen = Count(vec![Vec::new(); 2]);
    let cancel = AtomicBool::new(false);
    serve(&log, &options(512), true, &CLOCK, Some(&mut seen), &mut |_| {}, &cancel).unwrap();
    assert_eq!(seen.0, [(0..34).collect::<Vec<_>>(), (0..25).collect()]);

    struct Refuse;
    impl StepObserver for Refuse {
        fn step(&mut self, _: &ObservedStep<'_>) -> Result<(), ObserverError> {
            Err("the device is gone".into())
        }
    }
    let error = serve(&log, &options(512), true, &CLOCK, Some(&mut Refuse), &mut |_| {}, &cancel).unwrap_err();
    assert_eq!(error.to_string(), "step 1: the device is gone");
}

#[test]
fn an_interrupted_replay_reports_what_it_has() {
    let cancel = AtomicBool::new(false);
    let log = log((0..20).map(|n| request(f64::from(n), 20, 5)).collect());
    let mut stop = |done| cancel.store(done >= 7, std::sync::atomic::Ordering::Relaxed);
    let record = serve(&log, &options(512), true, &CLOCK, None, &mut stop, &cancel).unwrap();
    assert_eq!((record.finished, record.unfinished), (7, 13));
}

#[test]
fn an_interrupted_replay_is_held_against_what_it_looked_up() {
    let with_ids = |n| Request { prefix: PrefixIds::new([0..=3]), ..request(f64::from(n), 64, 2) };
    let (log, cancel) = (log((0..20).map(with_ids).collect()), AtomicBool::new(false));
    let mut stop = |done| cancel.store(done >= 2, std::sync::atomic::Ordering::Relaxed);
    let record = serve(&log, &options(512), true, &CLOCK, None, &mut stop, &cancel).unwrap();
    let prefix = record.prefix.unwrap();
    assert_eq!((prefix.prompt_tokens, prefix.hit_tokens), (128, 48));
    assert!((prefix.infinite_share - 63.0 / 128.0).abs() < 1e-6, "{prefix:?}");
}

#[test]
fn impossible_requests_are_typed_errors() {
    let log = log(vec![request(0.0, 20, 5)]);
    let error = |options: &ServeOptions, clock: StepClock| {
        let cancel = AtomicBool::new(false);
        serve(&log, options, true, &clock, None, &mut |_| {}, &cancel).unwrap_err().to_string()
    };
    let none = ServeOptions { step_tokens: 0, ..options(512) };
    assert_eq!(error(&none, CLOCK), "step_tokens is 0; a step takes at least 1 token");
    let stands = error(&options(512), StepClock { step_s: 0.0 });
    assert_eq!(stands, "the clock gives 0 s for a step of 20 tokens; a step takes 1e-9 to 1e9 s");
    for step_s in [f64::NAN, f64::INFINITY, -1.0, 1e-12, 1e12] {
        let leaps = error(&options(512), StepClock { step_s });
        assert!(leaps.contains(&format!("the clock gives {step_s} s")), "{leaps}");
    }
    let mut poor = options(512);
    poor.cache = poor.cache.with_memory_budget_bytes(1000);
    assert!(error(&poor, CLOCK).starts_with("memory_budget_bytes is 1000, but one block of 16 tokens takes"));
}
