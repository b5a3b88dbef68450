//! Snapshots through the device: saved from one cache, loaded into another with other blocks and other head shards.

use crate::common;
use crate::common::block_id;

use crate::common::engine::{TestEngine, config, cut_by_heads, narrow, small_engine, words};
use crate::common::gpu;
use wgpu_paged_attention::blocks::{Domain, ManagerOptions, SeqId};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{DeviceProfile, SwapInError};
use wgpu_paged_attention::host::distinct_blocks;
use wgpu_paged_attention::host::snapshot::{Snapshot, SnapshotError};
use wgpu_paged_attention::testkit::Gpu;

fn save(engine: &TestEngine, seqs: &[SeqId]) -> Snapshot {
    let records: Vec<_> = seqs.iter().map(|&seq| engine.manager.export_sequence(seq).unwrap()).collect();
    let mut encoder = engine.encoder();
    let out = engine.cache.swap_out(&mut encoder, &distinct_blocks(&records)).unwrap();
    engine.gpu.submit(encoder);
    Snapshot::new(&records, &out.read().unwrap()).unwrap()
}

/// The sequences in another cache, in the order in which they were saved.
fn load(engine: &mut TestEngine, snapshot: &Snapshot) -> Vec<SeqId> {
    let (records, blocks) = snapshot.fit(engine.cache.layout()).unwrap();
    let mut encoder = engine.encoder();
    let seqs = engine.cache.swap_in_sequences(&mut encoder, &mut engine.manager, &records, &blocks).unwrap();
    engine.gpu.submit(encoder);
    seqs
}

/// Two branches of 41 tokens that share 40, and a sequence of its own.
fn three_sequences(engine: &mut TestEngine) -> [SeqId; 3] {
    let a = engine.seq_of(&words(40));
    let b = engine.fork(a);
    engine.step(&[(a, &[1]), (b, &[2])]);
    [a, b, engine.seq_of(&words(5))]
}

fn other_caches(gpu: &Gpu, format: KvDtype) -> Vec<(CacheConfig, DeviceProfile, u32)> {
    let own = || narrow(gpu);
    let base = config(format, 64);
    let cut = cut_by_heads(gpu, &base);
    vec![
        // As it was but for the head shards: 2 shared blocks, a third each, and one.
        (base.clone(), cut, 5),
        // Of 8: the first 4 blocks are shared, then two of each.
        (base.clone().with_block_size(8), own(), 4 + 2 * 2 + 1),
        // Of 32: one shared block, one of each.
        (base.clone().with_block_size(32), own(), 1 + 2 + 1),
        // Of 5: the 7th begins in a shared page and ends in another.
        (base.clone().with_block_size(5).with_num_blocks(99), own(), 6 + 2 * 3 + 1),
        // One piece for each.
        (base.with_paged(false), own(), 3),
    ]
}

#[test]
fn sequences_go_on_in_another_cache_as_they_would_have_in_their_own() {
    // Q07
    let Some(gpu) = gpu() else { return };
    for format in [KvDtype::F16, KvDtype::Int8, KvDtype::Int4] {
        let config = config(format, 64);
        let mut engine = small_engine(&gpu, &narrow(&gpu), &config, &ManagerOptions::default());
        let seqs = three_sequences(&mut engine);
        let bytes = save(&engine, &seqs).to_bytes().unwrap();
        let snapshot = Snapshot::from_bytes(&bytes).unwrap();
        assert_eq!(snapshot, save(&engine, &seqs));
        let caches = other_caches(&gpu, format);
        // The other formats go the same way.
        for (config, profile, used) in caches.into_iter().take(if format == KvDtype::Int8 { 5 } else { 2 }) {
            let mut other = small_engine(&gpu, &profile, &config, &ManagerOptions::default());
            let back = load(&mut other, &snapshot);
            let at = format!("{format} in blocks of {}", other.cache.layout().block_size());
            assert_eq!(other.used(), used, "{at}");
            other.manager.check_invariants().unwrap();
            // Saved again, it is the same but for the pages.
            let again = save(&other, &back);
            assert!(again.data_bytes() >= snapshot.data_bytes() && again.records().len() == 3, "{at}");
            let seen: Vec<_> = back.iter().map(|&seq| other.look(seq, 9)).collect();
            for (&seq, seen) in seqs.iter().zip(&seen) {
                assert_eq!(*seen, engine.look(seq, 9), "{at}");
                engine.truncate(seq, engine.manager.seq_len(seq).unwrap() - 1);
            }
            assert_ne!(seen[0], seen[1]);
        }
    }
}

#[test]
fn a_byte_of_content_that_is_wrong_would_show() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F16, 64);
    let mut engine = small_engine(&gpu, &narrow(&gpu), &config, &ManagerOptions::default());
    let a = engine.seq_of(&words(20));
    let snapshot = save(&engine, &[a]);
    let (records, blocks) = snapshot.fit(engine.cache.layout()).unwrap();
    // The two blocks the wrong way round.
    let imported = engine.manager.import_sequences(&records).unwrap();
    let pairs: Vec<_> = imported.blocks.iter().map(|&(old, new)| (block_id(1 - old.get()), new)).collect();
    let mut encoder = engine.encoder();
    engine.cache.swap_in(&mut encoder, &blocks, &pairs).unwrap();
    gpu.submit(encoder);
    let wrong = imported.sequences[0];
    assert_ne!(engine.look(wrong, 9), engine.look(a, 9));
}

#[test]
fn tokens_and_domains_come_along_and_are_found_again() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F16, 64);
    let options = ManagerOptions::default().with_prefix_cache(true);
    let (alice, bob) = (Domain::default().with_salt(b"alice"), Domain::default().with_salt(b"bob"));
    let mut engine = small_engine(&gpu, &narrow(&gpu), &config, &options);
    let (a, _) = engine.manager.create_sequence_with_tokens(&words(33), &alice).unwrap();
    engine.step(&[(a, &words(33))]);
    let snapshot = save(&engine, &[a]);
    assert_eq!(snapshot.records()[0].tokens.as_deref(), Some(&words(33)[..]));

    let mut other = small_engine(&gpu, &narrow(&gpu), &config, &options);
    let back = load(&mut other, &snapshot);
    other.look(back[0], 9);
    assert_eq!(other.manager.cached_tokens(&words(40), &alice), 32);
    assert_eq!(other.manager.cached_tokens(&words(40), &bob), 0);
}

#[test]
fn what_does_not_fit_leaves_cache_and_manager_as_they_were() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F16, 6);
    let mut engine = small_engine(&gpu, &narrow(&gpu), &config, &ManagerOptions::default());
    let a = engine.seq_of(&words(60));
    let snapshot = save(&engine, &[a]);
    let before = common::pool_words(&gpu, &engine.cache);
    // Four blocks are in use, two are free.
    let (records, blocks) = snapshot.fit(engine.cache.layout()).unwrap();
    let mut encoder = engine.encoder();
    let error = engine.cache.swap_in_sequences(&mut encoder, &mut engine.manager, &records, &blocks).unwrap_err();
    assert!(matches!(error, SwapInError::Manager(_)), "{error}");
    gpu.submit(encoder);
    assert_eq!((engine.used(), engine.manager.num_sequences()), (4, 1));
    assert!(before == common::pool_words(&gpu, &engine.cache));

    let fit = |config: CacheConfig| snapshot.fit(&config.layout().unwrap()).unwrap_err();
    let small = fit(config.clone().with_num_blocks(3));
    assert_eq!(small, SnapshotError::TooManyBlocks { num_blocks: 3 });
    let short = fit(config.clone().with_max_seq_len(59));
    assert_eq!(short, SnapshotError::TooLong { sequence: 0, len: 60, max_seq_len: 59 });
    let other = fit(config.with_kv_dtype(KvDtype::Bf16));
    assert!(matches!(other, SnapshotError::Mismatch { field: "kv_dtype", .. }), "{other}");
}
