//! Engines of the shapes that several files use.

use wgpu_paged_attention::blocks::ManagerOptions;
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{AttentionSpec, DeviceProfile};
use wgpu_paged_attention::testkit::changed;
pub use wgpu_paged_attention::testkit::{Gpu, Request, StepIo, TestEngine};

const Q_HEADS: u32 = 6;
const HEADS: u32 = 3;

/// Two layers of three heads, V narrower than K, in blocks of 16.
pub fn config(format: KvDtype, num_blocks: u32) -> CacheConfig {
    CacheConfig::new(2, HEADS, 40)
        .with_v_head_dim(24)
        .with_kv_dtype(format)
        .with_num_blocks(num_blocks)
        .with_max_seq_len(128)
        .with_max_sequences(8)
}

/// The device's own profile, but token by token: wide tiles take a software driver long to compile, and what they do is
/// tested elsewhere.
pub fn narrow(gpu: &Gpu) -> DeviceProfile {
    changed(&DeviceProfile::of(&gpu.device), |it| it.tile_tokens = 1)
}

/// Such a profile with bindings so small that every head is a head shard of its own; a step's arguments fit if there are
/// some 64 blocks.
pub fn cut_by_heads(gpu: &Gpu, config: &CacheConfig) -> DeviceProfile {
    let layout = config.layout().unwrap();
    let head_bytes = layout.k_shard_bytes(1).max(layout.v_shard_bytes(1));
    changed(&narrow(gpu), |it| it.max_binding_bytes = 2 * head_bytes - 1)
}

/// An engine of [`config`].
pub fn small_engine(gpu: &Gpu, profile: &DeviceProfile, config: &CacheConfig, options: &ManagerOptions) -> TestEngine {
    TestEngine::new(gpu, profile, config, options, AttentionSpec::new(Q_HEADS))
}

/// The same, whose queries see a window.
pub fn windowed(
    gpu: &Gpu,
    profile: &DeviceProfile,
    config: &CacheConfig,
    options: &ManagerOptions,
    window: u32,
) -> TestEngine {
    TestEngine::new(gpu, profile, config, options, AttentionSpec::new(Q_HEADS).with_window(window))
}

/// Tokens of a prompt.
pub fn words(count: u32) -> Vec<u32> {
    (100..100 + count).collect()
}
