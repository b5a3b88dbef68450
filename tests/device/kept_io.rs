//! Engines that come with the same buffers in every step: their bind groups are kept, and steps of any size use them.

use crate::common::engine::{StepIo, TestEngine, words};
use crate::common::{gpu, profiles, with_splits};
use wgpu_paged_attention::blocks::{ManagerOptions, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::gpu::{AttentionSpec, DeviceProfile};
use wgpu_paged_attention::testkit::{Gpu, SENTINEL, changed};

/// Tokens of the largest step.
const ROOM: u32 = 60;
const Q_HEADS: u32 = 4;

/// The buffers of all layers, with room for any step.
fn buffers(gpu: &Gpu, engine: &TestEngine) -> Vec<StepIo> {
    let layout = engine.cache.layout();
    let (kv_heads, q_heads) = (layout.num_kv_heads(), Q_HEADS);
    let buffer = |heads: u32, dim: u32| gpu.storage("kept", &vec![SENTINEL; (ROOM * heads * dim) as usize]);
    (0..layout.num_layers())
        .map(|_| StepIo {
            k: buffer(kv_heads, layout.head_dim()),
            v: buffer(kv_heads, layout.v_head_dim()),
            q: buffer(q_heads, layout.head_dim()),
            out: buffer(q_heads, layout.v_head_dim()),
        })
        .collect()
}

/// Runs a step in these buffers, `order` giving the set of each layer, and holds its outputs against the oracle.
fn step(engine: &mut TestEngine, kept: &[StepIo], order: &[usize], requests: &[(SeqId, &[u32])]) {
    let fresh = engine.io(requests);
    engine.reserve(requests);
    let mut encoder = engine.encoder();
    let step = engine.begin(&mut encoder);
    for (fresh, kept) in fresh.iter().zip(kept) {
        for (from, to) in [(&fresh.k, &kept.k), (&fresh.v, &kept.v), (&fresh.q, &kept.q), (&fresh.out, &kept.out)] {
            encoder.copy_buffer_to_buffer(from, 0, to, 0, from.size());
        }
    }
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for (layer, &set) in (0..).zip(order) {
            engine.cache.append(&mut pass, &engine.appender, &step, layer, kept[set].append()).unwrap();
            engine.cache.attend(&mut pass, &engine.attention, &step, layer, kept[set].attend()).unwrap();
        }
    }
    for (fresh, kept) in fresh.iter().zip(kept) {
        encoder.copy_buffer_to_buffer(&kept.out, 0, &fresh.out, 0, fresh.out.size());
    }
    engine.finish_right(encoder, requests, &fresh);
}

/// Steps that grow, shrink, split and merge, each checked against the oracle. The answer to the fault planted in the
/// fourth is the oracle's complaint.
fn run(gpu: &Gpu, profile: &DeviceProfile, order: [usize; 2]) {
    let config =
        CacheConfig::new(2, 2, 16).with_block_size(4).with_num_blocks(80).with_max_seq_len(96).with_max_sequences(6);
    let mut engine = TestEngine::new(gpu, profile, &config, &ManagerOptions::default(), AttentionSpec::new(Q_HEADS));
    let kept = buffers(gpu, &engine);
    let seqs: Vec<SeqId> = (0..3).map(|_| engine.seq()).collect();
    let text = words(ROOM);
    let counts = [[1, 1, 1], [40, 0, 2], [1, 1, 1], [1, 1, 1], [1, 9, 0], [0, 1, 0], [3, 40, 17], [1, 1, 1], [1, 1, 1]];
    for (at, counts) in counts.into_iter().enumerate() {
        let requests: Vec<(SeqId, &[u32])> =
            seqs.iter().zip(counts).map(|(&seq, count)| (seq, &text[..count])).collect();
        step(&mut engine, &kept, if at == 3 { &order } else { &[0, 1] }, &requests);
    }
}

#[test]
fn steps_of_any_size_in_the_same_buffers_are_right() {
    let Some(gpu) = gpu() else { return };
    for profile in profiles(&gpu) {
        // Splits that are merged, also in several dispatches of one class; and head shards of one head.
        let splits = with_splits(&profile, 16);
        run(&gpu, &splits, [0, 1]);
        run(&gpu, &changed(&splits, |it| it.max_dispatch_work = 500), [0, 1]);
        run(&gpu, &changed(&profile, |it| it.max_binding_bytes = 80 * 4 * 16 * 4), [0, 1]);
    }
}

#[test]
#[should_panic(expected = "in layer 0")]
fn the_buffers_of_another_layer_are_noticed() {
    // Without a device there is nothing to notice.
    let Some(gpu) = gpu() else { panic!("in layer 0") };
    run(&gpu, &DeviceProfile::of(&gpu.device), [1, 0]);
}
