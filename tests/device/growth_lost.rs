//! What is refused after a resize: steps that were begun before, and all that reaches pools whose copy did not run.

use wgpu_paged_attention::blocks::{CacheManager, SeqId};
use wgpu_paged_attention::gpu::{ClearValue, DeviceError, GpuError, KvCache, Step};
use wgpu_paged_attention::plan::BlockCopy;
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;

use crate::common::engine::{StepIo, TestEngine, words};
use crate::common::{block_id, gpu, pool_words};
use crate::growth::{config, engine};

#[test]
fn a_step_that_was_begun_before_the_cache_shrank_is_refused() {
    let Some(gpu) = gpu() else { return };
    let mut engine = engine(&gpu, 300, 500);
    let seq = engine.seq();
    let request: [(SeqId, &[u32]); 1] = [(seq, &[1, 2])];
    let io = engine.io(&request);
    engine.reserve(&request);
    let mut encoder = engine.encoder();
    let old = engine.begin(&mut encoder);
    gpu.submit(encoder);
    // One layer is enough: the cache has as many blocks as its smallest. That it has grown again since does not bring the
    // blocks back.
    for num_blocks in [200, 300] {
        let mut encoder = engine.encoder();
        engine.cache.resize_layer(&mut encoder, 1, num_blocks).unwrap();
        gpu.submit(encoder);
        let before = pool_words(&gpu, &engine.cache);
        let mut encoder = engine.encoder();
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let append = engine.cache.append(&mut pass, &engine.appender, &old, 0, io[0].append());
        let attend = engine.cache.attend(&mut pass, &engine.attention, &old, 0, io[0].attend());
        for error in [append.unwrap_err(), attend.unwrap_err()] {
            assert!(matches!(&error, GpuError::Argument(argument) if argument.name == "step"), "{error:?}");
            assert_eq!(
                error.to_string(),
                "step was begun before the cache shrank from 300 blocks to 200; begin it again, or shrink the cache after \
                 its last append and attend"
            );
        }
        drop(pass);
        gpu.submit(encoder);
        assert_eq!(pool_words(&gpu, &engine.cache), before);
    }
    // A cache that only grows keeps all blocks of the step.
    let mut encoder = engine.encoder();
    let step = engine.begin(&mut encoder);
    engine.cache.resize_layer(&mut encoder, 1, 400).unwrap();
    engine.record(&mut encoder, &step, &io);
    engine.finish_right(encoder, &request, &io);
}

/// How an encoder comes to nothing.
#[derive(Clone, Copy, Debug)]
enum Lost {
    Dropped,
    Refused,
}

impl Lost {
    fn lose(self, gpu: &Gpu, mut encoder: wgpu::CommandEncoder) {
        let Self::Refused = self else { return };
        // A copy past the end of its buffer: wgpu refuses all that the encoder holds.
        let [short, long] = [4, 64].map(|words| gpu.storage("copied", &vec![0_u32; words]));
        encoder.copy_buffer_to_buffer(&long, 0, &short, 0, long.size());
        let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
        gpu.queue.submit([encoder.finish()]);
        gpu.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        assert!(pollster::block_on(scope.pop()).is_some(), "the encoder is not refused");
    }
}

/// What all calls that reach the pools say of a layer whose copy did not run.
fn assert_lost(engine: &TestEngine, layer: u32, begun: &Step, io: &StepIo) {
    let (cache, blocks) = (&engine.cache, [block_id(1)]);
    let mut encoder = engine.encoder();
    let copy = [BlockCopy { source: block_id(1), target: block_id(2) }];
    let mut results = vec![
        cache.begin_step(&mut encoder, &engine.plan).map(drop),
        cache.swap_out(&mut encoder, &blocks).map(drop),
        cache.clear_blocks(&mut encoder, &blocks, ClearValue::Zeros),
        cache.copy_blocks(&mut encoder, &copy),
    ];
    let mut pass = encoder.begin_compute_pass(&Default::default());
    results.push(cache.append(&mut pass, &engine.appender, begun, 0, io.append()));
    results.push(cache.attend(&mut pass, &engine.attention, begun, 0, io.attend()));
    for result in results {
        let error = result.unwrap_err();
        assert!(
            matches!(error, GpuError::Device(DeviceError::ResizeNotSubmitted { layer: at }) if at == layer),
            "{error}"
        );
        assert!(error.to_string().starts_with(&format!("the encoder that was to copy layer {layer} ")), "{error}");
    }
}

#[test]
fn a_copy_that_did_not_run_is_an_error_until_its_layer_is_resized_again() {
    let Some(gpu) = gpu() else { return };
    for lost in [Lost::Dropped, Lost::Refused] {
        // Also where the layer was resized twice, and where it comes back as it was.
        for (sizes, then) in [(&[400][..], 400), (&[450, 400], 350), (&[280, 400], 300), (&[280], 290)] {
            let mut engine = engine(&gpu, 300, 500);
            let seq = engine.seq_of(&words(30));
            let request: [(SeqId, &[u32]); 1] = [(seq, &[7])];
            let io = engine.io(&request);
            engine.reserve(&request);
            let mut encoder = engine.encoder();
            let begun = engine.begin(&mut encoder);
            gpu.submit(encoder);
            let mut encoder = engine.encoder();
            for &num_blocks in sizes {
                engine.cache.resize_layer(&mut encoder, 1, num_blocks).unwrap();
            }
            lost.lose(&gpu, encoder);
            assert_lost(&engine, 1, &begun, &io[0]);
            let mut encoder = engine.encoder();
            engine.cache.resize_layer(&mut encoder, 0, 400).unwrap();
            assert_lost(&engine, 1, &begun, &io[0]);

            engine.cache.resize_layer(&mut encoder, 1, then).unwrap();
            engine.manager.rollback(&mut engine.plan).unwrap();
            engine.cache.resize_layer(&mut encoder, 0, then).unwrap();
            engine.manager.resize(then).unwrap();
            engine.reserve(&request);
            let step = engine.begin(&mut encoder);
            engine.record(&mut encoder, &step, &io);
            engine.finish_right(encoder, &request, &io);
            engine.step_right(&[(seq, &[8, 9])]);
        }
    }
}

#[test]
fn a_lost_device_is_an_error_of_growth_too() {
    let Some(gpu) = gpu() else { return };
    let layout = config(300, 500).layout().unwrap();
    let mut cache = KvCache::new(&gpu.device, &layout).unwrap();
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    gpu.device.destroy();
    let error = cache.resize_layer(&mut encoder, 0, 400).unwrap_err();
    assert!(matches!(error, GpuError::Device(DeviceError::Lost)), "{error}");
    assert_eq!(cache.layout(), &layout);
    assert_eq!(CacheManager::new(cache.layout()).unwrap().num_blocks(), 300);
}
