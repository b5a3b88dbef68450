//! Kernels are compiled once and side by side, and how long those of a model take.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;
use std::time::Instant;

use crate::common::gpu;
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{AttentionSpec, KvCache};
use wgpu_paged_attention::plan::MAX_TILE_TOKENS;
use wgpu_paged_attention::testkit::CompileListener;

/// Heads of this width are this test's alone.
const OWN: &str = "paged_attention f16 d56 ";

/// The kernels of [`OWN`] that were compiled, those that are being compiled, and how many were at the same time.
#[derive(Default)]
struct Compiled {
    kernels: Vec<String>,
    open: HashSet<u64>,
    most: usize,
}

#[test]
fn every_class_is_compiled_once_and_side_by_side_whoever_asks() {
    let Some(gpu) = gpu() else { return };
    let compiled: Arc<Mutex<Compiled>> = Arc::default();
    let (begun, ended) = (Arc::clone(&compiled), Arc::clone(&compiled));
    let begin = move |number, kernel: &str| {
        if kernel.starts_with(OWN) {
            let Compiled { kernels, open, most } = &mut *begun.lock().unwrap();
            kernels.push(kernel.to_owned());
            open.insert(number);
            *most = open.len().max(*most);
        }
    };
    let end = move |number| {
        ended.lock().unwrap().open.remove(&number);
    };
    tracing::subscriber::set_global_default(CompileListener::new(begin, end)).unwrap();
    let config = CacheConfig::new(1, 1, 56).with_kv_dtype(KvDtype::F16).with_num_blocks(4).with_max_seq_len(64);
    let cache = KvCache::new(&gpu.device, &config.layout().unwrap()).unwrap();
    let attention = cache.attention(AttentionSpec::new(2)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| attention.warm_up(&cache, MAX_TILE_TOKENS).unwrap());
        }
    });
    let Compiled { kernels, open, most } = &*compiled.lock().unwrap();
    let classes = cache.schedule().tile_tokens.ilog2() as usize + 1;
    assert_eq!(
        (kernels.len(), kernels.iter().collect::<HashSet<_>>().len(), open.len()),
        (classes, classes, 0),
        "{kernels:?}"
    );
    assert!(*most > 1 || classes < 3 || available_parallelism().unwrap().get() == 1, "one after the other");
}

/// Mesa keeps compiled kernels of its own accord: `MESA_SHADER_CACHE_DISABLE=true` shows what a first start takes.
#[test]
#[ignore = "a measurement, for `--ignored --nocapture how_long`"]
fn how_long_the_kernels_of_a_model_take_to_compile() {
    let Some(gpu) = gpu() else { return };
    for kv_dtype in [KvDtype::F16, KvDtype::Int8, KvDtype::Int4] {
        let config = CacheConfig::new(1, 8, 128).with_kv_dtype(kv_dtype).with_num_blocks(16).with_max_seq_len(256);
        let cache = KvCache::new(&gpu.device, &config.layout().unwrap()).unwrap();
        let start = Instant::now();
        let attention = cache.attention(AttentionSpec::new(32)).unwrap();
        let decode = start.elapsed().as_millis();
        attention.warm_up(&cache, MAX_TILE_TOKENS).unwrap();
        println!("{} {kv_dtype}: decode {decode} ms, all {} ms", gpu.info.name, start.elapsed().as_millis());
    }
}
