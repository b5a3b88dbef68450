//! The cache as an engine uses it: steps, encoders, threads, and input that must be refused.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::engine::{Request, TestEngine};
use crate::common::{gpu, pool_words, profiles, with_splits};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::error::LayoutError;
use wgpu_paged_attention::gpu::{
    AppendIo, AttentionIo, AttentionSpec, DeviceError, DeviceProfile, GpuError, KvCache, LaneComm,
};
use wgpu_paged_attention::plan::{RawTables, StepPlan, Tables};
use wgpu_paged_attention::testkit::{Gpu, Scenario, ScenarioSpec, changed};
use wgpu_paged_attention::wgpu;

const HEADS: u32 = 2;
const DIM: u32 = 16;
const ROW: usize = (HEADS * DIM) as usize;

fn config(num_blocks: u32) -> CacheConfig {
    let config = CacheConfig::new(2, HEADS, DIM).with_kv_dtype(KvDtype::F32).with_num_blocks(num_blocks);
    config.with_max_seq_len(256).with_max_sequences(8)
}

fn engine(gpu: &Gpu) -> TestEngine {
    TestEngine::plain(gpu, &config(8), HEADS)
}

#[test]
fn a_step_recorded_into_a_later_encoder_stays_right_after_it_is_dropped() {
    let Some(gpu) = gpu() else { return };
    let mut engine = engine(&gpu);
    let (a, b) = (engine.seq(), engine.seq());
    let (mut begun, mut recorded) = (engine.encoder(), engine.encoder());
    let request: [Request<'_>; 1] = [(a, &[1, 2, 3])];
    let io = engine.io(&request);
    engine.reserve(&request);
    let step = engine.begin(&mut begun);
    gpu.submit(begun);
    engine.record(&mut recorded, &step, &io);
    engine.commit(&request);
    drop(step);
    // would take the first step's words, if they came back too early
    let mut other = engine.encoder();
    engine.record_step(&mut other, &[(b, &[7, 8])]);
    gpu.submit(recorded);
    gpu.submit(other);
    let outs: Vec<_> = io.into_iter().map(|io| io.out).collect();
    engine.assert_right(&engine.read(&outs), &[(a, 0), (a, 1), (a, 2)]);
}

#[test]
fn threads_may_begin_steps_while_another_polls() {
    let Some(gpu) = gpu() else { return };
    let engine = engine(&gpu);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                gpu.device.poll(wgpu::PollType::Poll).unwrap();
            }
        });
        let workers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let plan = engine.cache.new_plan();
                    (0..200).all(|_| engine.cache.begin_step(&mut engine.encoder(), &plan).is_ok())
                })
            })
            .collect();
        let fine = workers.into_iter().all(|worker| worker.join().is_ok_and(|fine| fine));
        done.store(true, Ordering::Relaxed);
        assert!(fine, "a healthy device was taken for a lost one");
    });
}

#[test]
fn a_pool_of_the_cache_is_no_argument() {
    let Some(gpu) = gpu() else { return };
    let mut engine = engine(&gpu);
    let seq = engine.seq();
    let request: [Request<'_>; 1] = [(seq, &[1, 2])];
    let io = engine.io(&request);
    engine.reserve(&request);
    let before = pool_words(&gpu, &engine.cache);
    let mut encoder = engine.encoder();
    let step = engine.cache.begin_step(&mut encoder, &engine.plan).unwrap();
    let good = gpu.storage("good", &vec![1.0_f32; 4 * ROW]);
    let own = &engine.cache.head_shards(0).unwrap()[0].v;
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let io = AppendIo::new(good.slice(..), own.slice(..));
        let error = engine.cache.append(&mut pass, &engine.appender, &step, 0, io).unwrap_err();
        assert!(error.to_string().starts_with("v and the pool of V share a buffer"), "{error}");
        let io = AttentionIo::new(good.slice(..), own.slice(..));
        let error = engine.cache.attend(&mut pass, &engine.attention, &step, 0, io).unwrap_err();
        assert!(error.to_string().starts_with("out and the pool of V share a buffer"), "{error}");
    }
    gpu.submit(encoder);
    assert_eq!(before, pool_words(&gpu, &engine.cache), "a refused call wrote");

    // and the same step can still be recorded right
    let mut encoder = engine.encoder();
    engine.record(&mut encoder, &step, &io);
    engine.finish_right(encoder, &request, &io);
}

#[test]
fn plans_steps_and_attentions_of_another_cache_are_refused() {
    let Some(gpu) = gpu() else { return };
    let (mut one, twin) = (engine(&gpu), engine(&gpu));
    let seq = one.seq();
    one.reserve(&[(seq, &[1])]);
    let mut encoder = one.encoder();
    let smaller = KvCache::new(&gpu.device, &config(4).layout().unwrap()).unwrap();
    let error = smaller.begin_step(&mut encoder, &one.plan).unwrap_err();
    assert!(error.to_string().starts_with("plan was made for another cache"), "{error}");
    let mut own_splits = StepPlan::new(changed(&one.cache.schedule(), |it| it.split_tokens = 3));
    let tables = RawTables::new(Tables::Dense { block_table: &[0], max_blocks: 1, seq_lens: &[1] });
    own_splits.plan_tables(one.cache.layout(), &tables).unwrap();
    let error = one.cache.begin_step(&mut encoder, &own_splits).unwrap_err();
    assert!(error.to_string().starts_with("plan was made with Schedule { split_tokens: 3"), "{error}");

    let step = one.cache.begin_step(&mut encoder, &one.plan).unwrap();
    let (a, b) = (gpu.storage("a", &[0.0_f32; ROW]), gpu.storage("b", &[0.0_f32; ROW]));
    let mut pass = encoder.begin_compute_pass(&Default::default());
    let io = AppendIo::new(a.slice(..), b.slice(..));
    let error = twin.cache.append(&mut pass, &twin.appender, &step, 0, io).unwrap_err();
    assert!(error.to_string().starts_with("step was made for another cache"), "{error}");
    let io = AttentionIo::new(a.slice(..), b.slice(..));
    let error = one.cache.attend(&mut pass, &twin.attention, &step, 0, io).unwrap_err();
    assert!(error.to_string().starts_with("attention was made for another cache"), "{error}");
}

#[test]
fn attentions_and_profiles_that_make_no_sense_are_refused() {
    // R11
    let Some(gpu) = gpu() else { return };
    let engine = engine(&gpu);
    for num_q_heads in [0, 1, 3] {
        let error = engine.cache.attention(AttentionSpec::new(num_q_heads)).unwrap_err();
        assert!(error.to_string().starts_with(&format!("num_q_heads is {num_q_heads}, not")), "{error}");
    }
    for scale in [f32::NAN, f32::INFINITY, 0.0, -1.0, f32::MAX] {
        let error = engine.cache.attention(AttentionSpec::new(HEADS).with_scale(scale)).unwrap_err();
        assert!(matches!(error, GpuError::Spec(ref spec) if spec.option == "scale"), "{error}");
    }
    let profile = DeviceProfile::of(&gpu.device);
    let refused = |profile: &DeviceProfile| {
        let error = KvCache::with_profile(&gpu.device, &config(8).layout().unwrap(), profile.clone()).unwrap_err();
        assert!(matches!(error, GpuError::Spec(_)), "{error}");
    };
    refused(&with_splits(&profile, 0));
    for tile_tokens in [0, 3, 32] {
        refused(&changed(&profile, |it| it.tile_tokens = tile_tokens));
    }
    for tile_rows in [0, 65] {
        refused(&changed(&profile, |it| it.tile_rows = tile_rows));
    }
    for lanes in [0, 2, 48, 512] {
        refused(&changed(&profile, |it| it.lane_comm = LaneComm::Workgroup { lanes }));
    }
    refused(&changed(&profile, |it| it.lane_comm = LaneComm::Subgroup { lanes: 128 }));

    // a split as long as the longest row needs more loop rounds than this many
    let tight = changed(&profile, |it| it.max_loop_rounds = 10);
    let cache = KvCache::with_profile(&gpu.device, &config(8).layout().unwrap(), tight).unwrap();
    let attention = cache.attention(AttentionSpec::new(HEADS)).unwrap();
    let mut plan = cache.new_plan();
    let tables = RawTables::new(Tables::Dense { block_table: &[0; 8], max_blocks: 8, seq_lens: &[128] });
    plan.plan_tables(cache.layout(), &tables).unwrap();
    let mut encoder = engine.encoder();
    let step = cache.begin_step(&mut encoder, &plan).unwrap();
    let (q, out) = (gpu.storage("q", &[0.0_f32; ROW]), gpu.storage("out", &[0.0_f32; ROW]));
    let io = AttentionIo::new(q.slice(..), out.slice(..));
    let error =
        cache.attend(&mut encoder.begin_compute_pass(&Default::default()), &attention, &step, 0, io).unwrap_err();
    assert!(matches!(error, GpuError::Device(DeviceError::LoopRounds { limit: 10, .. })), "{error}");
}

#[test]
fn a_layer_beyond_one_binding_is_cut_by_heads_and_still_right() {
    // W01: three head shards of 2, 2 and 1 heads; one head beyond the limit is refused with both numbers
    let Some(gpu) = gpu() else { return };
    // blocks so large that two heads' pools take more than any other argument of the scenario
    let spec = ScenarioSpec { lse: true, block_size: 128, ..ScenarioSpec::decode(10, 5, 24, &[40, 1, 90]) };
    let scenario = Scenario::random(&spec, 4).unwrap();
    let head_bytes = scenario.layout.k_shard_bytes(1);
    for profile in profiles(&gpu) {
        let small = changed(&with_splits(&profile, 32), |it| it.max_binding_bytes = 2 * head_bytes + 64);
        assert_eq!(scenario.layout.head_shards(small.max_binding_bytes).unwrap().count, 3);
        let got = scenario.run(&gpu, &small, None).unwrap();
        scenario.judge(&got).unwrap();
        let tiny = changed(&profile, |it| it.max_binding_bytes = head_bytes - 1);
        let error = KvCache::with_profile(&gpu.device, &scenario.layout, tiny).unwrap_err();
        assert!(matches!(error, GpuError::Layout(LayoutError::HeadTooLarge { .. })), "{error}");
    }
}
