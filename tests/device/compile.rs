//! Kernels are compiled once and side by side, and how long those of a model take.

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::sync::Mutex;
use std::thread::available_parallelism;
use std::time::Instant;

use crate::common::gpu;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{AttentionSpec, KvCache};
use wgpu_paged_attention::plan::MAX_TILE_TOKENS;

/// Heads of this width are this test's alone.
const OWN: &str = "paged_attention f16 d56 ";

/// The kernels of [`OWN`] that were compiled, how many are being compiled, and how many were at the same time.
static COMPILED: Mutex<(Vec<String>, u32, u32)> = Mutex::new((Vec::new(), 0, 0));

/// Hears of all threads what is compiled.
struct Listener;

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{value:?}").unwrap();
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.name() == "paged.compile"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut kernel = Fields(String::new());
        span.record(&mut kernel);
        if !kernel.0.starts_with(OWN) {
            return Id::from_u64(2);
        }
        let (kernels, open, most) = &mut *COMPILED.lock().unwrap();
        kernels.push(kernel.0);
        *open += 1;
        *most = (*most).max(*open);
        Id::from_u64(1)
    }

    fn try_close(&self, id: Id) -> bool {
        if id.into_u64() == 1 {
            COMPILED.lock().unwrap().1 -= 1;
        }
        true
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn every_class_is_compiled_once_and_side_by_side_whoever_asks() {
    let Some(gpu) = gpu() else { return };
    tracing::subscriber::set_global_default(Listener).unwrap();
    let config = CacheConfig::new(1, 1, 56).with_kv_dtype(KvDtype::F16).with_num_blocks(4).with_max_seq_len(64);
    let cache = KvCache::new(&gpu.device, &config.layout().unwrap()).unwrap();
    let attention = cache.attention(AttentionSpec::new(2)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| attention.warm_up(&cache, MAX_TILE_TOKENS).unwrap());
        }
    });
    let (kernels, open, most) = &*COMPILED.lock().unwrap();
    let classes = cache.schedule().tile_tokens.ilog2() as usize + 1;
    assert_eq!(
        (kernels.len(), kernels.iter().collect::<HashSet<_>>().len(), *open),
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
