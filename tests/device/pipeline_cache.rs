//! Kernels that are kept in a file: what comes back is used and right, and what must not is refused.

use std::path::PathBuf;

use crate::common::{gpu, gpu_featureless};
use wgpu_paged_attention::blocks::BlockId;
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{
    AppendSpec, AttentionSpec, ClearValue, DeviceError, ExternalElement, ExternalLayout, ExternalOrder, GpuError,
    KvCache, PipelineCacheError, load_pipeline_cache, save_pipeline_cache,
};
use wgpu_paged_attention::plan::{BlockCopy, MAX_TILE_TOKENS};
use wgpu_paged_attention::testkit::{Gpu, TestEngine, skip};
use wgpu_paged_attention::wgpu;

const HEADS: u32 = 2;

fn config() -> CacheConfig {
    let config = CacheConfig::new(2, HEADS, 16).with_kv_dtype(KvDtype::F32).with_num_blocks(8);
    config.with_max_seq_len(64).with_max_sequences(4)
}

/// A device that has pipeline caches.
fn caching() -> Option<Gpu> {
    let gpu = gpu()?;
    let offers = gpu.device.features().contains(wgpu::Features::PIPELINE_CACHE);
    if !offers {
        assert_ne!(gpu.info.backend, wgpu::Backend::Vulkan, "the recommended features lack it");
        skip(None, &format!("{} has no pipeline caches", gpu.info.backend));
    }
    offers.then_some(gpu)
}

/// A folder of this test's own, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("paged-pipelines-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("pipelines")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An engine all of whose kernels come from a pipeline cache, and what it answers.
fn answers(gpu: &Gpu, pipelines: wgpu::PipelineCache) -> Vec<u32> {
    let mut engine = TestEngine::plain(gpu, &config(), HEADS);
    engine.cache.set_pipeline_cache(pipelines);
    assert!(engine.cache.pipeline_cache().is_some());
    engine.appender = engine.cache.appender(AppendSpec::new()).unwrap();
    engine.attention = engine.cache.attention(AttentionSpec::new(HEADS)).unwrap();
    engine.attention.warm_up(&engine.cache, MAX_TILE_TOKENS).unwrap();
    engine.cache.warm_up().unwrap();
    let seq = engine.seq_of(&[1, 2, 3, 4, 5, 6, 7]);
    engine.look(seq, 8)
}

#[test]
fn a_second_device_answers_the_same_with_the_kernels_of_the_first() {
    let (Some(first), Some(second)) = (caching(), caching()) else { return };
    let folder = Folder::new("round");
    let path = folder.file();
    // Without a file the cache is empty.
    let pipelines = load_pipeline_cache(&first.device, &path).unwrap();
    assert!(!path.exists());
    let answered = answers(&first, pipelines.clone());
    save_pipeline_cache(&pipelines, &first.device, &path).unwrap();
    let held = pipelines.get_data().unwrap();
    assert!(std::fs::read(&path).unwrap().ends_with(&held));
    let loaded = load_pipeline_cache(&second.device, &path).unwrap();
    // What a driver makes of its data is its own affair, but that it took none would be ours.
    assert!(loaded.get_data().unwrap().len() >= held.len());
    assert_eq!(answers(&second, loaded), answered);
}

#[test]
fn every_kernel_that_is_compiled_for_a_cache_is_looked_up_in_it() {
    // wgpu refuses a pipeline cache of another device wherever it is used.
    let (Some(gpu), Some(other)) = (caching(), caching()) else { return };
    let folder = Folder::new("other");
    let mut cache = KvCache::new(&gpu.device, &config().layout().unwrap()).unwrap();
    let attention = cache.attention(AttentionSpec::new(HEADS)).unwrap();
    // Its kernel for the tables came with the attention; this one has none yet.
    let mut fresh = KvCache::new(&gpu.device, &config().layout().unwrap()).unwrap();
    for cache in [&mut cache, &mut fresh] {
        cache.set_pipeline_cache(load_pipeline_cache(&other.device, &folder.file()).unwrap());
    }
    let refused = |what: &str, result: Result<(), GpuError>| {
        let error = result.expect_err(what);
        assert!(matches!(error, GpuError::Device(DeviceError::Validation { .. })), "{what}: {error}");
    };
    if cache.schedule().tile_tokens > 1 {
        refused("warm_up of an attention", attention.warm_up(&cache, MAX_TILE_TOKENS));
    }
    refused("attention", cache.attention(AttentionSpec::new(HEADS)).map(drop));
    refused("appender", cache.appender(AppendSpec::new()).map(drop));
    refused("warm_up", cache.warm_up());
    let encoder = || gpu.device.create_command_encoder(&Default::default());
    let [a, b] = [0, 1].map(|block| BlockId::new(block).unwrap());
    refused("copy_blocks", cache.copy_blocks(&mut encoder(), &[BlockCopy { source: a, target: b }]));
    refused("clear_blocks", cache.clear_blocks(&mut encoder(), &[a], ClearValue::Poison));
    let external = ExternalLayout { order: ExternalOrder::TokenMajor, element: ExternalElement::F32 };
    refused("transfer", cache.transfer(external).map(drop));

    let mut engine = TestEngine::plain(&gpu, &config(), HEADS);
    engine.cache = fresh;
    engine.plan = engine.cache.new_plan();
    let seq = engine.seq();
    engine.reserve(&[(seq, &[1, 2])]);
    refused("begin_step", engine.cache.begin_step(&mut encoder(), &engine.plan).map(drop));
}

#[test]
fn a_device_without_the_feature_is_refused_by_name() {
    let (Some(bare), Some(gpu)) = (gpu_featureless(), caching()) else { return };
    let folder = Folder::new("bare");
    assert_eq!(load_pipeline_cache(&bare.device, &folder.file()).unwrap_err(), PipelineCacheError::Unsupported);
    let pipelines = load_pipeline_cache(&gpu.device, &folder.file()).unwrap();
    let error = save_pipeline_cache(&pipelines, &bare.device, &folder.file()).unwrap_err();
    assert_eq!(error, PipelineCacheError::Unsupported);
    assert!(error.to_string().contains("PIPELINE_CACHE") && !folder.file().exists(), "{error}");
}

#[test]
fn a_damaged_or_cut_file_is_refused_and_left_as_it_is() {
    let Some(gpu) = caching() else { return };
    let folder = Folder::new("damaged");
    let path = folder.file();
    let pipelines = load_pipeline_cache(&gpu.device, &path).unwrap();
    save_pipeline_cache(&pipelines, &gpu.device, &path).unwrap();
    let good = std::fs::read(&path).unwrap();
    let load = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let loaded = load_pipeline_cache(&gpu.device, &path).map(drop);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        loaded
    };
    // Magic, length, checksum, version, adapter, and the last byte of the data.
    for at in [0, 9, 20, 50, 60, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(load(&bad).is_err(), "byte {at}");
    }
    // Nothing, within each of the parts, and the last byte.
    for len in [0, 4, 12, 40, 48, 55, good.len() - 1] {
        assert!(matches!(load(&good[..len]), Err(PipelineCacheError::Truncated { .. })), "{len}");
    }
    assert!(matches!(load(&[&good[..], b"x"].concat()), Err(PipelineCacheError::Trailing { .. })));
    assert_eq!(load(&good), Ok(()));
    // A folder is no file.
    for error in [
        load_pipeline_cache(&gpu.device, &folder.0).unwrap_err(),
        save_pipeline_cache(&pipelines, &gpu.device, &folder.0).unwrap_err(),
    ] {
        assert!(matches!(error, PipelineCacheError::Io { .. }), "{error}");
    }
    // A file cannot lie in a file.
    assert!(matches!(
        save_pipeline_cache(&pipelines, &gpu.device, &path.join("inside")),
        Err(PipelineCacheError::Io { .. })
    ));
    assert_eq!(std::fs::read(&path).unwrap(), good);
}

#[test]
fn a_lost_device_says_so() {
    let (Some(gpu), Some(lost)) = (caching(), caching()) else { return };
    let folder = Folder::new("lost");
    lost.device.destroy();
    let error = load_pipeline_cache(&lost.device, &folder.file()).unwrap_err();
    assert_eq!(error, PipelineCacheError::Device(DeviceError::Lost));
    assert!(load_pipeline_cache(&gpu.device, &folder.file()).is_ok());
}
