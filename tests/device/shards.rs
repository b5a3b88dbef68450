//! One manager and one plan drive several caches: the shards of tensor-parallel heads, each on a device of its own.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use wgpu_paged_attention::blocks::{CacheManager, SeqId};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{AppendIo, AppendSpec, Appender, Attention, AttentionIo, AttentionSpec, KvCache};
use wgpu_paged_attention::plan::StepPlan;
use wgpu_paged_attention::testkit::{Gpu, SENTINEL};

use crate::common::engine::narrow;
use crate::common::{bits, gpu};

const LAYERS: u32 = 2;
const HEADS: u32 = 4;
const GROUP: u32 = 2;
const DIM: u32 = 32;
const STEPS: usize = 40;

/// The KV heads from `first` on, with their query heads.
struct Shard {
    gpu: Gpu,
    cache: KvCache,
    appender: Appender,
    attention: Attention,
    first: u32,
    heads: u32,
}

fn config(heads: u32) -> CacheConfig {
    CacheConfig::new(LAYERS, heads, DIM)
        .with_kv_dtype(KvDtype::Int8)
        .with_num_blocks(120)
        .with_max_seq_len(320)
        .with_max_sequences(6)
}

impl Shard {
    fn new(gpu: Gpu, first: u32, heads: u32) -> Self {
        let cache = KvCache::with_profile(&gpu.device, &config(heads).layout().unwrap(), narrow(&gpu)).unwrap();
        let appender = cache.appender(AppendSpec::new()).unwrap();
        let attention = cache.attention(AttentionSpec::new(heads * GROUP)).unwrap();
        Self { gpu, cache, appender, attention, first, heads }
    }

    /// Runs a step on this shard's part of the rows. Returns the outputs, `[layers][tokens, heads of the shard, DIM]`.
    fn step(&self, plan: &StepPlan, rows: &[Vec<f32>; 3]) -> Vec<Vec<f32>> {
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let step = self.cache.begin_step(&mut encoder, plan).unwrap();
        let part = |rows: &[f32], per_head: u32| {
            let (width, dim) = ((HEADS * per_head * DIM) as usize, (per_head * DIM) as usize);
            let range = self.first as usize * dim..(self.first + self.heads) as usize * dim;
            rows.chunks(width).flat_map(|row| row[range.clone()].to_vec()).collect::<Vec<_>>()
        };
        let [q, k, v] = [(0, GROUP), (1, 1), (2, 1)].map(|(at, per_head)| part(&rows[at], per_head));
        let buffers = [("q", &q), ("k", &k), ("v", &v)].map(|(name, rows)| self.gpu.storage(name, rows));
        let [q, k, v] = &buffers;
        let mut outs = Vec::new();
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for layer in 0..LAYERS {
            let out = self.gpu.storage("out", &vec![SENTINEL; (q.size() / 4) as usize]);
            let append = AppendIo::new(k.slice(..), v.slice(..));
            self.cache.append(&mut pass, &self.appender, &step, layer, append).unwrap();
            let attend = AttentionIo::new(q.slice(..), out.slice(..));
            self.cache.attend(&mut pass, &self.attention, &step, layer, attend).unwrap();
            outs.push(out);
        }
        drop(pass);
        self.gpu.submit(encoder);
        outs.iter().map(|out| self.gpu.read(out).unwrap()).collect()
    }
}

/// Forks, cuts and releases between steps, and what the next step brings.
fn requests(rng: &mut StdRng, manager: &mut CacheManager, seqs: &mut Vec<SeqId>) -> Vec<(SeqId, u32)> {
    match rng.random_range(0..7) {
        0 | 1 if seqs.len() > 2 => manager.release(seqs.swap_remove(0)).unwrap(),
        2..=4 if seqs.len() < 6 && !seqs.is_empty() => {
            let fork = manager.fork(seqs[rng.random_range(0..seqs.len())]).unwrap();
            seqs.push(fork);
        }
        5 if !seqs.is_empty() => {
            let seq = seqs[rng.random_range(0..seqs.len())];
            let len = manager.seq_len(seq).unwrap();
            manager.truncate(seq, len.saturating_sub(rng.random_range(0..9))).unwrap();
        }
        _ if seqs.len() < 6 => seqs.push(manager.create_sequence().unwrap()),
        _ => {}
    }
    let more = |seq: &SeqId| {
        let room = 320 - manager.seq_len(*seq).unwrap();
        let prompt = if manager.seq_len(*seq).unwrap() == 0 { rng.random_range(1..90) } else { 1 };
        (*seq, prompt.min(room))
    };
    seqs.iter().map(more).collect()
}

/// Whether shards on two devices give what one cache of all heads gives, step by step; `skipped` is a step that the second
/// shard leaves out.
fn agree(skipped: Option<usize>) -> Option<bool> {
    let (one, two, three) = (gpu()?, gpu()?, gpu()?);
    let whole = Shard::new(one, 0, HEADS);
    let shards = [Shard::new(two, 0, 2), Shard::new(three, 2, 2)];
    let mut manager = CacheManager::new(shards[0].cache.layout()).unwrap();
    let mut twin = CacheManager::new(whole.cache.layout()).unwrap();
    let (mut plan, mut twin_plan) = (shards[0].cache.new_plan(), whole.cache.new_plan());
    let [mut rng, mut twin_rng] = [(); 2].map(|()| StdRng::seed_from_u64(11));
    let (mut seqs, mut twin_seqs) = (Vec::new(), Vec::new());
    let mut values = StdRng::seed_from_u64(12);
    let (mut copies, mut same) = (0, true);
    for at in 0..STEPS {
        let batch = requests(&mut rng, &mut manager, &mut seqs);
        let twin_batch = requests(&mut twin_rng, &mut twin, &mut twin_seqs);
        let step = manager.step(&batch, &mut plan).unwrap();
        let twin_step = twin.step(&twin_batch, &mut twin_plan).unwrap();
        let rows = step.plan().num_rows();
        copies += step.plan().copies().len();
        let rows = [GROUP, 1, 1].map(|per_head| {
            (0..rows * HEADS * per_head * DIM).map(|_| values.random_range(-2.0..2.0_f32)).collect::<Vec<_>>()
        });
        let want = whole.step(twin_step.plan(), &rows);
        for shard in &shards {
            if shard.first > 0 && skipped == Some(at) {
                continue;
            }
            for (got, want) in shard.step(step.plan(), &rows).iter().zip(&want) {
                let width = (GROUP * DIM) as usize;
                let range = shard.first as usize * width..(shard.first + shard.heads) as usize * width;
                let want = want.chunks(HEADS as usize * width).flat_map(|row| row[range.clone()].to_vec());
                same &= bits(got) == bits(&want.collect::<Vec<_>>());
            }
        }
        step.commit();
        twin_step.commit();
    }
    assert!(copies > 3, "{copies} blocks were copied");
    Some(same)
}

#[test]
fn shards_on_two_devices_give_the_bits_of_one_cache() {
    let Some(same) = agree(None) else { return };
    assert!(same);
}

#[test]
fn a_shard_that_left_out_a_step_is_noticed() {
    let Some(same) = agree(Some(9)) else { return };
    assert!(!same);
}

#[test]
fn a_cache_of_another_shape_is_refused_by_the_name_of_what_differs() {
    let Some(gpu) = gpu() else { return };
    let layout = config(2).layout().unwrap();
    let (mut manager, mut plan) = (CacheManager::new(&layout).unwrap(), StepPlan::new(Default::default()));
    let seq = manager.create_sequence().unwrap();
    manager.reserve(&[(seq, 1)], &mut plan).unwrap();
    let others = [
        (config(3), "num_kv_heads is 2, while that of this one is 3"),
        (config(2).with_num_layers(1), "num_layers is 2, while that of this one is 1"),
        (config(2).with_v_head_dim(16), "v_head_dim is 32, while that of this one is 16"),
        (config(2).with_block_size(32), "block_size is 16, while that of this one is 32"),
        (config(2).with_num_blocks(119), "num_blocks is 120, while that of this one is 119"),
        (config(2).with_max_seq_len(300), "max_seq_len is 320, while that of this one is 300"),
        (config(2).with_max_sequences(5), "max_sequences is 6, while that of this one is 5"),
        (config(2).with_kv_dtype(KvDtype::F16), "kv_dtype is int8, while that of this one is f16"),
    ];
    for (config, difference) in others {
        let cache = KvCache::new(&gpu.device, &config.layout().unwrap()).unwrap();
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let error = cache.begin_step(&mut encoder, &plan).unwrap_err().to_string();
        assert!(error.starts_with("plan was made for another cache, whose ") && error.contains(difference), "{error}");
    }
    manager.rollback(&mut plan).unwrap();
}
