//! Snapshots through the device: saved from one cache, loaded into another with other blocks and other head shards.

use crate::common;

use crate::common::gpu;
use crate::common::story::{Story, Teller, config, cut_by_heads, narrow, words};
use wgpu_paged_attention::blocks::{Domain, ManagerOptions};
use wgpu_paged_attention::config::{CacheConfig, KvDtype};
use wgpu_paged_attention::gpu::{DeviceProfile, SwapInError};
use wgpu_paged_attention::host::distinct_blocks;
use wgpu_paged_attention::host::snapshot::{Snapshot, SnapshotError};
use wgpu_paged_attention::testkit::Gpu;

fn save(teller: &Teller, stories: &[&Story]) -> Snapshot {
    let records: Vec<_> = stories.iter().map(|story| teller.manager.export_sequence(story.seq).unwrap()).collect();
    let mut encoder = teller.encoder();
    let out = teller.cache.swap_out(&mut encoder, &distinct_blocks(&records)).unwrap();
    teller.gpu.submit(encoder);
    Snapshot::new(&records, &out.read().unwrap()).unwrap()
}

/// The stories in another cache, in the order in which they were saved.
fn load(teller: &mut Teller, snapshot: &Snapshot, stories: &[&Story]) -> Vec<Story> {
    let (records, blocks) = snapshot.fit(teller.cache.layout()).unwrap();
    let mut encoder = teller.encoder();
    let seqs = teller.cache.swap_in_sequences(&mut encoder, &mut teller.manager, &records, &blocks).unwrap();
    teller.gpu.submit(encoder);
    seqs.into_iter().zip(stories).map(|(seq, story)| Story { seq, words: story.words.clone() }).collect()
}

/// Two branches of 41 tokens that share 40, and a story of its own.
fn three_stories(teller: &mut Teller) -> [Story; 3] {
    let mut a = teller.alone(&words(40));
    let mut b = teller.fork(&a);
    teller.tell(&mut [(&mut a, &[1]), (&mut b, &[2])]);
    [a, b, teller.alone(&words(5))]
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
        let mut teller = Teller::new(&gpu, &narrow(&gpu), &config, &ManagerOptions::default());
        let mut stories = three_stories(&mut teller);
        let [a, b, c] = &stories;
        let bytes = save(&teller, &[a, b, c]).to_bytes().unwrap();
        let snapshot = Snapshot::from_bytes(&bytes).unwrap();
        assert_eq!(snapshot, save(&teller, &[a, b, c]));
        let caches = other_caches(&gpu, format);
        // The other formats go the same way.
        for (config, profile, used) in caches.into_iter().take(if format == KvDtype::Int8 { 5 } else { 2 }) {
            let mut other = Teller::new(&gpu, &profile, &config, &ManagerOptions::default());
            let mut back = load(&mut other, &snapshot, &[&stories[0], &stories[1], &stories[2]]);
            let at = format!("{format} in blocks of {}", other.cache.layout().block_size());
            assert_eq!(other.used(), used, "{at}");
            other.manager.check_invariants().unwrap();
            // Saved again, it is the same but for the pages.
            let again = save(&other, &[&back[0], &back[1], &back[2]]);
            assert!(again.data_bytes() >= snapshot.data_bytes() && again.records().len() == 3, "{at}");
            let seen: Vec<_> = back.iter_mut().map(|story| other.look(story, 9)).collect();
            for (story, seen) in stories.iter_mut().zip(&seen) {
                assert_eq!(*seen, teller.look(story, 9), "{at}");
                teller.manager.truncate(story.seq, story.words.len() as u32 - 1).unwrap();
                story.words.pop();
            }
            assert_ne!(seen[0], seen[1]);
        }
    }
}

#[test]
fn a_byte_of_content_that_is_wrong_would_show() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F16, 64);
    let mut teller = Teller::new(&gpu, &narrow(&gpu), &config, &ManagerOptions::default());
    let mut a = teller.alone(&words(20));
    let snapshot = save(&teller, &[&a]);
    let (records, blocks) = snapshot.fit(teller.cache.layout()).unwrap();
    // The two blocks the wrong way round.
    let imported = teller.manager.import_sequences(&records).unwrap();
    let pairs: Vec<_> = imported.blocks.iter().map(|&(old, new)| (1 - old, new)).collect();
    let mut encoder = teller.encoder();
    teller.cache.swap_in(&mut encoder, &blocks, &pairs).unwrap();
    gpu.submit(encoder);
    let mut wrong = Story { seq: imported.sequences[0], words: a.words.clone() };
    assert_ne!(teller.look(&mut wrong, 9), teller.look(&mut a, 9));
}

#[test]
fn tokens_and_domains_come_along_and_are_found_again() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F16, 64);
    let options = ManagerOptions::default().with_prefix_cache(true);
    let (alice, bob) = (Domain::default().with_salt(b"alice"), Domain::default().with_salt(b"bob"));
    let mut teller = Teller::new(&gpu, &narrow(&gpu), &config, &options);
    let (seq, _) = teller.manager.create_sequence_with_tokens(&words(33), &alice).unwrap();
    let mut a = Story { seq, words: Vec::new() };
    teller.tell(&mut [(&mut a, &words(33))]);
    let snapshot = save(&teller, &[&a]);
    assert_eq!(snapshot.records()[0].tokens.as_deref(), Some(&words(33)[..]));

    let mut other = Teller::new(&gpu, &narrow(&gpu), &config, &options);
    let mut back = load(&mut other, &snapshot, &[&a]);
    other.look(&mut back[0], 9);
    assert_eq!(other.manager.cached_tokens(&words(40), &alice), 32);
    assert_eq!(other.manager.cached_tokens(&words(40), &bob), 0);
}

#[test]
fn what_does_not_fit_leaves_cache_and_manager_as_they_were() {
    let Some(gpu) = gpu() else { return };
    let config = config(KvDtype::F16, 6);
    let mut teller = Teller::new(&gpu, &narrow(&gpu), &config, &ManagerOptions::default());
    let a = teller.alone(&words(60));
    let snapshot = save(&teller, &[&a]);
    let before = common::pool_words(&gpu, &teller.cache);
    // Four blocks are in use, two are free.
    let (records, blocks) = snapshot.fit(teller.cache.layout()).unwrap();
    let mut encoder = teller.encoder();
    let error = teller.cache.swap_in_sequences(&mut encoder, &mut teller.manager, &records, &blocks).unwrap_err();
    assert!(matches!(error, SwapInError::Manager(_)), "{error}");
    gpu.submit(encoder);
    assert_eq!((teller.used(), teller.manager.num_sequences()), (4, 1));
    assert!(before == common::pool_words(&gpu, &teller.cache));

    let fit = |config: CacheConfig| snapshot.fit(&config.layout().unwrap()).unwrap_err();
    let small = fit(config.clone().with_num_blocks(3));
    assert_eq!(small, SnapshotError::TooManyBlocks { num_blocks: 3 });
    let short = fit(config.clone().with_max_seq_len(59));
    assert_eq!(short, SnapshotError::TooLong { sequence: 0, len: 60, max_seq_len: 59 });
    let other = fit(config.with_kv_dtype(KvDtype::Bf16));
    assert!(matches!(other, SnapshotError::Mismatch { field: "kv_dtype", .. }), "{other}");
}
