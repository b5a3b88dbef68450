//! Schedules run through the real kernels: what the oracle says of them, and that it notices a wrong table.

use std::sync::atomic::AtomicBool;

use crate::bench::models::ModelShape;
use crate::replay::execute::ExecuteRecord;
use crate::replay::{ExecuteOptions, Executor, ServeOptions, ServeRecord, StepClock, serve, with_layers};
use crate::trace::{Log, PrefixIds, Request};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::testkit::{Gpu, test_device};

const CLOCK: StepClock = StepClock { step_s: 0.01 };

fn shape() -> ModelShape {
    ModelShape::custom(4, 2, 32).unwrap()
}

/// Prompts that share their first blocks, and answers that fill a small pool until one has to give way.
fn log() -> Log {
    let request = |number: u64| Request {
        arrival_ns: number * 20_000_000,
        prompt_tokens: 40 + 3 * number as u32,
        output_tokens: 25,
        prefix: PrefixIds::new([1..=2, 100 + number..=100 + number]),
    };
    Log {
        name: "shared".to_owned(),
        requests: (0..6).map(request).collect(),
        tokens_per_id: Some(16),
        ..Log::default()
    }
}

fn cache() -> CacheConfig {
    CacheConfig::new(8, 2, 32).with_block_size(8).with_num_blocks(26).with_max_seq_len(128).with_max_sequences(8)
}

fn execute(gpu: &Gpu, cache: &CacheConfig, options: ExecuteOptions) -> (ServeRecord, ExecuteRecord) {
    let mut executor = Executor::new(gpu, cache, options).unwrap();
    let serving = ServeOptions { step_tokens: 48, schedule: executor.schedule(), ..ServeOptions::new(cache.clone()) };
    let cancel = AtomicBool::new(false);
    let served = serve(&log(), &serving, true, &CLOCK, Some(&mut executor), &mut |_| {}, &cancel).unwrap();
    (served, executor.record)
}

fn options() -> ExecuteOptions {
    ExecuteOptions { steps: 1000, ..ExecuteOptions::new(shape()) }
}

#[test]
fn a_whole_schedule_agrees_with_the_oracle() {
    let Some(gpu) = test_device() else { return };
    for kv_dtype in [KvDtype::F16, KvDtype::Int8] {
        let cache = with_layers(&cache().with_kv_dtype(kv_dtype), 2).unwrap();
        let (served, executed) = execute(&gpu, &cache, options());
        // Every difficulty is there: shared blocks, sequences that gave way, chunks beside decoding.
        let prefix = served.prefix.as_ref().unwrap();
        assert!(prefix.hit_tokens > 0 && served.preemptions > 0, "{served:?}");
        assert_eq!(served.finished, 6);
        assert_eq!((executed.steps, executed.layers), (served.steps, 2));
        assert_eq!(executed.checked_rows, 16 * executed.steps);
        assert_eq!(executed.wrong_rows, 0, "{kv_dtype}: {:?}", executed.wrong);
        assert!(executed.max_abs_error > 0.0 && executed.max_abs_error < 1e-5, "{}", executed.max_abs_error);
    }
}

#[test]
fn fewer_layers_change_nothing_of_the_schedule() {
    let fewer = with_layers(&cache(), 1).unwrap();
    assert_eq!((fewer.num_layers(), fewer.num_blocks()), (1, Some(26)));
    let budget = cache().with_memory_budget_bytes(1 << 20);
    let fewer = with_layers(&budget, 1).unwrap();
    assert_eq!(fewer.num_blocks(), Some(budget.layout().unwrap().num_blocks()));
    let served = |cache: &CacheConfig| {
        let cancel = AtomicBool::new(false);
        serve(&log(), &ServeOptions::new(cache.clone()), true, &CLOCK, None, &mut |_| {}, &cancel).unwrap()
    };
    assert_eq!(served(&fewer), served(&budget));
}

#[test]
fn windows_and_a_limit_of_steps_are_kept() {
    let Some(gpu) = test_device() else { return };
    let cache = with_layers(&cache(), 1).unwrap();
    let (served, executed) = execute(&gpu, &cache, ExecuteOptions { window: Some(20), steps: 7, ..options() });
    assert_eq!(executed.steps, 7);
    assert!(served.steps > 7);
    assert_eq!(executed.wrong_rows, 0, "{:?}", executed.wrong);
}

#[test]
fn a_wrong_block_in_a_table_is_noticed() {
    let Some(gpu) = test_device() else { return };
    let cache = with_layers(&cache(), 1).unwrap();
    let (_, executed) = execute(&gpu, &cache, ExecuteOptions { wrong_block_at: Some(6), ..options() });
    assert!(executed.wrong_rows > 0, "nothing was noticed: {executed:?}");
    let first = &executed.wrong[0];
    assert!(first.step >= 6, "right steps are not called wrong: {first:?}");
    assert!(first.error.contains("got"), "{first:?}");
}

#[test]
fn executing_twice_gives_the_same_record() {
    let Some(gpu) = test_device() else { return };
    let cache = with_layers(&cache(), 1).unwrap();
    let once = execute(&gpu, &cache, ExecuteOptions { steps: 12, ..options() });
    assert_eq!(execute(&gpu, &cache, ExecuteOptions { steps: 12, ..options() }), once);
}
