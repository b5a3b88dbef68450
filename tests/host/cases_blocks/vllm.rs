//! What vLLM's host tests (`tests/v1/core`) record, with its block numbers less one, since its block 0 is never used. What
//! differs is told in the module `engines`.

use crate::block_id;
use wgpu_paged_attention::blocks::{BlockEvent, Domain};
use wgpu_paged_attention::error::ReserveError;

use crate::cases_blocks::engine::{Engine, repeat};

/// `test_prefill`, `test_evict`.
#[test]
fn blocks_go_out_and_return_in_the_recorded_orders() {
    let mut it = Engine::caching(10);
    let common = repeat(&[0, 1, 2], 16);
    let prompt = |tail: &[u32]| [common.clone(), tail.to_vec()].concat();
    let (first, cached) = it.text(&prompt(&[3; 7]), &Domain::default());
    assert_eq!((cached, it.table(first)), (0, vec![0, 1, 2, 3]));
    let (second, cached) = it.text(&prompt(&[4; 5]), &Domain::default());
    assert_eq!((cached, it.table(second)), (48, vec![0, 1, 2, 4]));
    it.cache.release(first).unwrap();
    it.cache.release(second).unwrap();
    assert_eq!(it.free(), [5, 6, 7, 8, 9, 3, 4, 2, 1, 0]);
    let (third, cached) = it.text(&prompt(&[3; 6]), &Domain::default());
    assert_eq!((cached, it.table(third)), (48, vec![0, 1, 2, 5]));
    it.cache.release(third).unwrap();
    assert_eq!(it.free(), [6, 7, 8, 9, 3, 4, 5, 2, 1, 0]);
    let (all, cached) = it.text(&[99; 160], &Domain::default());
    assert_eq!((cached, it.table(all)), (0, vec![6, 7, 8, 9, 3, 4, 5, 2, 1, 0]));

    let mut it = Engine::caching(10);
    let tokens: Vec<u32> = (0..200).collect();
    let (first, _) = it.text(&tokens[..87], &Domain::default());
    let (second, _) = it.text(&tokens[87..87 + 47], &Domain::default());
    assert_eq!((it.table(first).len(), it.table(second).len()), (6, 3));
    it.cache.release(first).unwrap();
    it.cache.release(second).unwrap();
    assert_eq!(it.free(), [9, 5, 4, 3, 2, 1, 0, 8, 7, 6]);
    let (third, cached) = it.text(&tokens[..35], &Domain::default());
    assert_eq!((cached, it.table(third), it.cache.num_free_blocks()), (32, vec![0, 1, 9], 7));
}

/// `test_prefill_not_enough_free_blocks_with_computed_blocks`.
#[test]
fn a_request_that_does_not_fit_leaves_the_blocks_that_it_found() {
    let mut it = Engine::caching(10);
    let common = repeat(&[0, 1, 2], 16);
    let (first, _) = it.text(&common, &Domain::default());
    let (second, cached) = it.text(&common.repeat(2), &Domain::default());
    assert_eq!((it.table(first), cached, it.table(second)), (vec![0, 1, 2], 48, vec![0, 1, 2, 3, 4, 5]));
    it.cache.release(second).unwrap();
    let (third, _) = it.text(&[7; 32], &Domain::default());
    let before = (it.free(), it.table(third));
    let long = common.repeat(3);
    assert!(!it.cache.can_admit(&long, &Domain::default(), 0));
    assert_eq!((it.free(), it.table(third)), before);
    let (fourth, cached) = it.cache.create_sequence_with_tokens(&long, &Domain::default()).unwrap();
    let error = it.cache.reserve_tokens(&[(fourth, &long[cached as usize..])], &mut it.plan).unwrap_err();
    assert_eq!((cached, error), (96, ReserveError::OutOfBlocks { needed: 3, free: 2, total: 10 }));
    it.cache.release(fourth).unwrap();
    assert_eq!((it.cached(&long), it.used()), (cached, 5));
}

/// `test_decode`.
#[test]
fn a_block_is_cached_once_decoding_has_filled_it() {
    let mut it = Engine::caching(10);
    let text: Vec<u32> = (0..78).collect();
    let (seq, _) = it.text(&text[..55], &Domain::default());
    for (end, blocks, cached) in [(59, 4, 48), (78, 5, 64)] {
        let begin = it.cache.seq_len(seq).unwrap() as usize;
        it.cache.reserve_tokens(&[(seq, &text[begin..end])], &mut it.plan).unwrap();
        // Not before the step has happened.
        assert_eq!((it.table(seq).len(), it.cached(&text)), (blocks, 48));
        it.commit();
        assert_eq!(it.cached(&text), cached);
    }
}

/// `test_computed_blocks_not_evicted`, `test_hash_block_correct_reuse`.
#[test]
fn a_found_block_is_not_evicted_and_a_reused_one_not_found() {
    let mut it = Engine::caching(2);
    let text: Vec<u32> = (0..33).collect();
    let (first, _) = it.text(&text[..16], &Domain::default());
    let (second, _) = it.text(&text[16..32], &Domain::default());
    it.cache.release(first).unwrap();
    it.cache.release(second).unwrap();
    // The found one is the first in the queue.
    assert_eq!(it.free(), [0, 1]);
    let (both, cached) = it.text(&text[..32], &Domain::default());
    assert_eq!((cached, it.table(both)), (16, vec![0, 1]));
    assert_eq!((it.cached(&text[16..]), it.cached(&text)), (0, 32));

    let mut it = Engine::caching(1);
    let (full, _) = it.text(&text[..16], &Domain::default());
    it.cache.release(full).unwrap();
    assert_eq!(it.cached(&text), 16);
    let (short, _) = it.text(&text[17..32], &Domain::default());
    assert_eq!((it.table(short), it.cached(&text)), (vec![0], 0));
}

/// `test_basic_prefix_caching_disabled`.
#[test]
fn without_a_prefix_cache_nothing_is_found() {
    let mut it = Engine::plain(4);
    let (first, _) = it.text(&[1; 40], &Domain::default());
    assert_eq!(it.table(first), [0, 1, 2]);
    it.cache.release(first).unwrap();
    let (second, cached) = it.text(&[1; 64], &Domain::default());
    assert_eq!((cached, it.table(second)), (0, vec![3, 2, 1, 0]));
    let third = it.cache.create_sequence().unwrap();
    let error = it.cache.reserve_tokens(&[(third, &[1; 16])], &mut it.plan).unwrap_err();
    assert_eq!(error, ReserveError::OutOfBlocks { needed: 1, free: 0, total: 4 });
}

/// `test_kv_cache_events`, `test_null_parent_block_hash`.
#[test]
fn events_tell_what_was_stored_behind_what_and_what_was_reused() {
    let mut it = Engine::caching(5);
    let (first, _) = it.text(&(0..80).collect::<Vec<_>>(), &Domain::default());
    let events = it.cache.take_events();
    let mut before = None;
    let mut keys = Vec::new();
    for (at, event) in (0..).zip(&events) {
        let BlockEvent::Stored { block, group: 0, key, parent } = *event else { panic!("{event:?}") };
        assert_eq!((block, parent), (block_id(at), before));
        before = Some(key);
        keys.push(key);
    }
    assert_eq!(keys.len(), 5);
    it.cache.release(first).unwrap();
    assert_eq!(it.cache.take_events(), []);

    let (second, _) = it.text(&[99; 80], &Domain::default());
    let events = it.cache.take_events();
    let removed = |block: u32| BlockEvent::Removed { block: block_id(block), group: 0, key: keys[block as usize] };
    assert_eq!(events[..5], [4, 3, 2, 1, 0].map(removed));
    assert!(events[5..].iter().all(|event| matches!(event, BlockEvent::Stored { .. })) && events.len() == 10);
    it.cache.release(second).unwrap();
    it.cache.reset_prefix_cache().unwrap();
    assert_eq!(it.cache.take_events(), [BlockEvent::Cleared]);
}

/// `test_prefix_caching_with_prompt_logprobs`: who needs the results of all its tokens does not look.
#[test]
fn a_sequence_that_does_not_look_can_be_found() {
    let mut it = Engine::caching(10);
    let text: Vec<u32> = (0..33).collect();
    for _ in 0..2 {
        let seq = it.cache.create_sequence().unwrap();
        it.cache.reserve_tokens(&[(seq, &text)], &mut it.plan).unwrap();
        assert_eq!(it.plan.num_rows(), 33);
        it.commit();
        assert_eq!(it.cached(&text), 32);
    }
}
