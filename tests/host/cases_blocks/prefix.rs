//! The prefix cache: what is found, by whom, and for how long.

use wgpu_paged_attention::blocks::{BlockEvent, Domain, KeyHash, ManagerOptions};
use wgpu_paged_attention::error::{ManagerError, ReserveError};

use crate::cases_blocks::engine::{Engine, repeat};

#[test]
fn c01_equal_blocks_behind_different_ones_are_different() {
    let mut it = Engine::caching(16);
    let [a, b, c] = [1, 2, 3];
    it.text(&repeat(&[a, b], 16), &Domain::default());
    let with_tail = |words: &[u32]| [repeat(words, 16), vec![9]].concat();
    assert_eq!(it.cached(&with_tail(&[c, b])), 0);
    assert_eq!(it.cached(&with_tail(&[b])), 0);
    assert_eq!(it.cached(&with_tail(&[a, b])), 32);
    assert_eq!(it.cached(&repeat(&[a, b], 16)[..17]), 16);
}

#[test]
fn c02_hits_do_not_rest_on_the_hash() {
    let weak: [KeyHash; 2] = [
        |_: &[u8]| [0; 32],
        |message: &[u8]| {
            let mut key = [0; 32];
            key[0] = message.iter().fold(0, |sum, &byte| sum ^ byte);
            key
        },
    ];
    for key_hash in weak {
        let mut it = Engine::new(32, &ManagerOptions::default().with_prefix_cache(true).with_key_hash(key_hash));
        let texts = [[1, 2], [3, 4], [1, 4], [3, 2]].map(|words| [repeat(&words, 16), vec![9]].concat());
        it.text(&texts[0], &Domain::default());
        it.text(&texts[1], &Domain::default());
        // Both are found, though their keys collide, and no mixture of them is.
        assert_eq!([0, 1, 2, 3].map(|at: usize| it.cached(&texts[at])), [32, 32, 16, 16]);
        assert_eq!(it.cache.cached_tokens(&texts[0], &Domain::default().with_salt(b"x")), 0);
        it.cache.check_invariants().unwrap();
    }
}

#[test]
fn c04_only_equal_salts_share() {
    let mut it = Engine::caching(32);
    let text: Vec<u32> = (0..48).collect();
    let salted = |salt: &[u8]| Domain::default().with_salt(salt);
    let others = [
        Domain::default(),
        salted(b"s2"),
        salted(b""),
        salted(b"s1").with_adapter(b"a"),
        Domain::default().with_adapter(b"s1"),
    ];
    it.text(&text, &salted(b"s1"));
    assert_eq!(it.cache.cached_tokens(&text, &salted(b"s1")), 32);
    for other in &others {
        assert_eq!(it.cache.cached_tokens(&text, other), 0, "{other:?}");
    }
    // A fork stays in its domain.
    it.text(&text, &others[1]);
    let keys: Vec<_> = it
        .cache
        .take_events()
        .into_iter()
        .map(|event| match event {
            BlockEvent::Stored { key, parent, .. } => (key, parent),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!((keys.len(), keys[0].1, keys[1].1), (6, None, Some(keys[0].0)));
    assert!(keys[..3].iter().all(|key| !keys[3..].contains(key)));
}

#[test]
fn c05_a_token_is_left_to_compute() {
    let mut it = Engine::caching(16);
    let text: Vec<u32> = (0..48).collect();
    it.text(&text, &Domain::default());
    let found = [16, 32, 33, 15, 1, 0, 48].map(|len: usize| it.cached(&text[..len]));
    assert_eq!(found, [0, 16, 32, 0, 0, 0, 32]);
    let (seq, cached) = it.cache.create_sequence_with_tokens(&text[..32], &Domain::default()).unwrap();
    assert_eq!((cached, it.cache.seq_len(seq)), (16, Ok(16)));
}

#[test]
fn c08_hits_are_neither_free_nor_evicted_for_their_own_request() {
    let mut it = Engine::caching(4);
    let text: Vec<u32> = (0..65).collect();
    let (seq, _) = it.text(&text[..32], &Domain::default());
    it.cache.release(seq).unwrap();
    assert_eq!(it.cached(&text), 32);

    assert!(!it.cache.can_admit(&text, &Domain::default(), 0));
    let (seq, cached) = it.cache.create_sequence_with_tokens(&text, &Domain::default()).unwrap();
    assert_eq!((cached, it.free()), (32, vec![2, 3]));
    let error = it.cache.reserve_tokens(&[(seq, &text[32..])], &mut it.plan).unwrap_err();
    assert_eq!(error, ReserveError::OutOfBlocks { needed: 3, free: 2, total: 4 });
    it.cache.release(seq).unwrap();
    assert_eq!((it.cached(&text), it.cache.num_free_blocks()), (32, 4));

    assert!(it.cache.can_admit(&text[..64], &Domain::default(), 0));
    let (seq, _) = it.text(&text[..64], &Domain::default());
    assert_eq!(it.table(seq), [0, 1, 2, 3]);
}

#[test]
fn c12_a_reused_block_is_not_found_any_more() {
    let mut it = Engine::caching(1);
    let (x, y) = (repeat(&[1], 16), repeat(&[2], 16));
    let (seq, _) = it.text(&x, &Domain::default());
    it.cache.release(seq).unwrap();
    assert_eq!(it.cached(&[x.clone(), vec![0]].concat()), 16);
    // As long as the step is open, and if it is rolled back, X is there again.
    let other = it.cache.create_sequence().unwrap();
    it.cache.reserve_tokens(&[(other, &y)], &mut it.plan).unwrap();
    assert_eq!(it.cached(&[x.clone(), vec![0]].concat()), 0);
    it.cache.rollback(&mut it.plan).unwrap();
    assert_eq!(it.cached(&[x.clone(), vec![0]].concat()), 16);
    it.cache.reserve_tokens(&[(other, &y)], &mut it.plan).unwrap();
    it.commit();
    assert_eq!((it.cached(&[x, vec![0]].concat()), it.cached(&[y, vec![0]].concat())), (0, 16));
    assert_eq!(it.cache.stats().evictions, 1);
}

#[test]
fn c12_an_abandoned_step_may_have_overwritten_what_it_took() {
    let mut it = Engine::caching(1);
    let x = repeat(&[1], 16);
    let (seq, _) = it.text(&x, &Domain::default());
    it.cache.release(seq).unwrap();
    let other = it.cache.create_sequence().unwrap();
    it.cache.reserve(&[(other, 1)], &mut it.plan).unwrap();
    assert!(it.cache.abandon());
    it.cache.check_invariants().unwrap();
    assert_eq!((it.cached(&[x, vec![0]].concat()), it.free()), (0, vec![0]));
}

#[test]
fn c14_what_was_found_belongs_to_the_finder_at_once() {
    let mut it = Engine::caching(2);
    let text: Vec<u32> = (0..33).collect();
    let (seq, _) = it.text(&text[..32], &Domain::default());
    it.cache.release(seq).unwrap();
    let (mine, cached) = it.cache.create_sequence_with_tokens(&text, &Domain::default()).unwrap();
    assert_eq!(cached, 32);
    let other = it.cache.create_sequence().unwrap();
    let error = it.cache.reserve(&[(other, 1)], &mut it.plan).unwrap_err();
    assert_eq!(error, ReserveError::OutOfBlocks { needed: 1, free: 0, total: 2 });
    assert_eq!(it.table(mine), [0, 1]);
}

#[test]
fn duplicates_are_kept_and_the_first_one_is_found() {
    let mut it = Engine::caching(8);
    let text: Vec<u32> = (0..17).collect();
    let seqs = [(); 2].map(|()| it.cache.create_sequence().unwrap());
    it.cache.reserve_tokens(&[(seqs[0], &text), (seqs[1], &text)], &mut it.plan).unwrap();
    it.commit();
    let found = |it: &mut Engine| {
        let (seq, _) = it.cache.create_sequence_with_tokens(&text, &Domain::default()).unwrap();
        let block = it.table(seq);
        it.cache.release(seq).unwrap();
        block
    };
    assert_eq!(found(&mut it), it.table(seqs[0])[..1]);
    let second = it.table(seqs[1])[..1].to_vec();
    it.cache.release(seqs[0]).unwrap();
    let filler = it.sequence(6 * 16);
    assert_eq!(found(&mut it), second);
    it.cache.release(filler).unwrap();
    it.cache.check_invariants().unwrap();
}

#[test]
fn a_reset_forgets_everything_and_is_refused_while_anything_is_in_use() {
    let mut it = Engine::caching(8);
    let text: Vec<u32> = (0..33).collect();
    let (seq, _) = it.text(&text, &Domain::default());
    assert_eq!(it.cache.reset_prefix_cache(), Err(ManagerError::PrefixCacheInUse { used: 3 }));
    it.cache.release(seq).unwrap();
    assert_eq!(it.cached(&text), 32);
    it.cache.reset_prefix_cache().unwrap();
    assert_eq!((it.cached(&text), it.cache.stats().cached_blocks), (0, 0));
    assert_eq!(it.cache.take_events().last(), Some(&BlockEvent::Cleared));
    it.cache.check_invariants().unwrap();
}

#[test]
fn tokens_that_nobody_named_are_not_cached() {
    let mut it = Engine::caching(8);
    let text: Vec<u32> = (0..64).collect();
    let (seq, _) = it.text(&text[..20], &Domain::default());
    it.grow(seq, 20);
    it.cache.reserve_tokens(&[(seq, &text[40..])], &mut it.plan).unwrap();
    it.commit();
    assert_eq!(it.cached(&text), 16);
    // Once the unnamed ones are cut off, the rest is.
    it.cache.truncate(seq, 20).unwrap();
    it.cache.reserve_tokens(&[(seq, &text[20..])], &mut it.plan).unwrap();
    it.commit();
    assert_eq!(it.cached(&text), 48);
}

#[test]
fn a_copy_keeps_the_known_tokens_of_its_block_whoever_writes_behind_them() {
    let text: Vec<u32> = (100..133).collect();
    // The writer's own tokens are unknown, or those between the known ones and the new ones are.
    for unknown_before in [0, 3] {
        let mut it = Engine::caching(8);
        let (a, _) = it.text(&text[..20], &Domain::default());
        if unknown_before > 0 {
            it.grow(a, unknown_before);
        }
        let b = it.cache.fork(a).unwrap();
        if unknown_before > 0 {
            it.cache.reserve_tokens(&[(b, &[7])], &mut it.plan).unwrap();
        } else {
            it.cache.reserve(&[(b, 1)], &mut it.plan).unwrap();
        }
        assert_eq!(it.plan.copies().len(), 1);
        it.commit();
        it.cache.truncate(b, 20).unwrap();
        assert_eq!(it.cache.export_sequence(b).unwrap().tokens.as_deref(), Some(&text[..20]));
        it.cache.reserve_tokens(&[(b, &text[20..32])], &mut it.plan).unwrap();
        it.commit();
        assert_eq!(it.cached(&text), 32);
    }
}
