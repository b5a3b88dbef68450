//! Layers that attend to another layer's K and V, and layers that rotate in ways of their own.

use crate::common::{bits, gpu};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::blocks::CacheManager;
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{AppendIo, AppendSpec, Appender, AttentionIo, AttentionSpec, KvCache, QueryIo};
use wgpu_paged_attention::reference::{
    Heads, QueryRow, Rotary, Scoring, attend_rows, compare, inverse_frequencies, rms_norm, rotate,
};
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;
use wgpu_paged_attention::{RotarySpec, RotaryStyle};

const DIM: usize = 12;
const Q_HEADS: usize = 4;
const KV_HEADS: usize = 2;
const EPS: f32 = 1e-6;
/// Tokens of the prompt, and of each step after it.
const STEPS: [u32; 3] = [9, 1, 1];
const TOKENS: usize = 11;

/// What the projections of a layer give, all tokens of a sequence, and the weights of its norms.
struct Layer {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    base: f64,
}

impl Layer {
    fn random(seed: u64, base: f64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut rows = |len: usize, low: f32| (0..len).map(|_| rng.random_range(low..2.0)).collect();
        let (q, k, v) = (
            rows(TOKENS * Q_HEADS * DIM, -2.0),
            rows(TOKENS * KV_HEADS * DIM, -2.0),
            rows(TOKENS * KV_HEADS * DIM, -2.0),
        );
        Self { q, k, v, q_norm: rows(DIM, 0.5), k_norm: rows(DIM, 0.5), base }
    }

    fn changed(&self, rows: &[f32], heads: usize, weights: &[f32]) -> Vec<f32> {
        let inv_freq = inverse_frequencies(self.base, DIM);
        let rotary = Rotary::new(false, &inv_freq);
        let row =
            |(at, row): (usize, &[f32])| rotate(&rotary, &rms_norm(row, weights, EPS.into()), (at / heads) as i64);
        rows.chunks(DIM).enumerate().flat_map(row).map(|x| x as f32).collect()
    }

    /// Attention of all tokens of this layer's queries to the K and V of `owner`.
    fn expected(&self, owner: &Self) -> Vec<f64> {
        let q = self.changed(&self.q, Q_HEADS, &self.q_norm);
        let k = owner.changed(&owner.k, KV_HEADS, &owner.k_norm);
        let places: Vec<_> = (0..TOKENS).map(|at| QueryRow { position: at as i64, seq_len: at + 1 }).collect();
        let (heads, scoring) = (Heads::new(Q_HEADS, KV_HEADS, DIM), Scoring::new(1.0 / (DIM as f64).sqrt()));
        let key = |_, at: usize, head: usize| &k[(at * KV_HEADS + head) * DIM..][..DIM];
        let value = |_, at: usize, head: usize| &owner.v[(at * KV_HEADS + head) * DIM..][..DIM];
        attend_rows(&heads, &scoring, &q, &places, key, value).output
    }

    fn upload(&self, gpu: &Gpu, tokens: std::ops::Range<usize>) -> [wgpu::Buffer; 7] {
        let part = |rows: &[f32]| {
            let row = rows.len() / TOKENS;
            gpu.storage("rows", &rows[tokens.start * row..tokens.end * row])
        };
        let blank = vec![9.0_f32; tokens.len() * Q_HEADS * DIM];
        let [rotated, out] = ["rotated", "out"].map(|label| gpu.storage(label, &blank));
        let [k_norm, q_norm] = [&self.k_norm, &self.q_norm].map(|weights| gpu.storage("weights", weights));
        [part(&self.k), part(&self.v), part(&self.q), rotated, out, k_norm, q_norm]
    }
}

fn cache(gpu: &Gpu, num_layers: u32) -> (KvCache, CacheManager) {
    let config = CacheConfig::new(num_layers, KV_HEADS as u32, DIM as u32).with_kv_dtype(KvDtype::F32);
    let layout = config.with_block_size(4).with_num_blocks(8).with_max_seq_len(32).layout().unwrap();
    (KvCache::new(&gpu.device, &layout).unwrap(), CacheManager::new(&layout).unwrap())
}

fn appender(cache: &KvCache, base: f32) -> Appender {
    let rotary = RotarySpec::new(RotaryStyle::HalfSplit, DIM as u32).with_base(base);
    let spec = AppendSpec::for_attention(&AttentionSpec::new(Q_HEADS as u32));
    cache.appender(spec.with_qk_norm(EPS).with_rotary(rotary)).unwrap()
}

/// Runs the steps of a sequence through `layers`, of which those that `own` K and V append them to layers of the cache, in
/// order; the others attend to the last of these. Returns what every layer's attention put out.
fn serve(gpu: &Gpu, layers: &[(&Layer, bool)]) -> Vec<Vec<f32>> {
    let (cache, mut manager) = cache(gpu, layers.iter().filter(|(_, own)| *own).count() as u32);
    let attention = cache.attention(AttentionSpec::new(Q_HEADS as u32)).unwrap();
    let appenders: Vec<_> = layers.iter().map(|(layer, _)| appender(&cache, layer.base as f32)).collect();
    let (mut plan, seq) = (cache.new_plan(), manager.create_sequence().unwrap());
    let mut outputs = vec![Vec::new(); layers.len()];
    for step_tokens in STEPS {
        let first = manager.seq_len(seq).unwrap() as usize;
        manager.reserve(&[(seq, step_tokens)], &mut plan).unwrap();
        let tokens = first..first + step_tokens as usize;
        let io: Vec<_> = layers.iter().map(|(layer, _)| layer.upload(gpu, tokens.clone())).collect();
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let step = cache.begin_step(&mut encoder, &plan).unwrap();
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            let mut owned = 0;
            for (((_, owns), appender), io) in layers.iter().zip(&appenders).zip(&io) {
                let [k, v, q, rotated, out, k_norm, q_norm] = io.each_ref().map(|buffer| buffer.slice(..));
                if *owns {
                    let io = AppendIo::new(k, v).with_queries(q, rotated).with_k_norm(k_norm).with_q_norm(q_norm);
                    cache.append(&mut pass, appender, &step, owned, io).unwrap();
                    owned += 1;
                } else {
                    let io = QueryIo::new(q, rotated).with_q_norm(q_norm);
                    cache.rotate_queries(&mut pass, appender, &step, io).unwrap();
                }
                cache.attend(&mut pass, &attention, &step, owned - 1, AttentionIo::new(rotated, out)).unwrap();
            }
        }
        gpu.submit(encoder);
        manager.commit(&mut plan).unwrap();
        for (output, io) in outputs.iter_mut().zip(&io) {
            output.extend(gpu.read::<f32>(&io[4]).unwrap());
        }
    }
    outputs
}

#[test]
fn a_layer_attends_to_the_k_and_v_of_another_with_queries_of_its_own() {
    let Some(gpu) = gpu() else { return };
    let (owner, sharing) = (Layer::random(1, 100.0), Layer::random(2, 100.0));
    let [own, shared, again] = &serve(&gpu, &[(&owner, true), (&sharing, false), (&owner, false)])[..] else {
        unreachable!("three layers");
    };
    compare(own, &owner.expected(&owner), 1e-5, 1e-5).unwrap();
    compare(shared, &sharing.expected(&owner), 1e-5, 1e-5).unwrap();
    // The same queries give the same bits, beside an append or alone.
    assert_eq!(bits(own), bits(again));
    // Faults that this would show: a layer's own K, and queries that were not rotated for their positions.
    assert!(compare(shared, &sharing.expected(&sharing), 1e-3, 1e-3).is_err());
    let elsewhere = Layer { base: 90.0, ..Layer::random(2, 0.0) };
    assert!(compare(shared, &elsewhere.expected(&owner), 1e-3, 1e-3).is_err());
}

#[test]
fn layers_rotate_by_bases_of_their_own() {
    let Some(gpu) = gpu() else { return };
    let (local, global) = (Layer::random(3, 10.0), Layer::random(4, 1000.0));
    let outputs = serve(&gpu, &[(&local, true), (&global, true)]);
    for (layer, output) in [&local, &global].into_iter().zip(&outputs) {
        compare(output, &layer.expected(layer), 1e-5, 1e-5).unwrap();
        let wrong = Layer { base: 1010.0 - layer.base, ..Layer::random(if layer.base < 50.0 { 3 } else { 4 }, 0.0) };
        assert!(compare(output, &wrong.expected(&wrong), 1e-3, 1e-3).is_err());
    }
}
