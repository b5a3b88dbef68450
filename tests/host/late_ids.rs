//! Token ids that are told while steps are in flight: each goes to the token that it is of, or it is refused.

use std::collections::VecDeque;

use wgpu_paged_attention::blocks::{CacheManager, Domain, LateTokens, MAX_LATE_STEPS, ManagerOptions, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::ManagerError;
use wgpu_paged_attention::plan::{Schedule, StepPlan};

struct Serving {
    manager: CacheManager,
    plan: StepPlan,
    seq: SeqId,
}

impl Serving {
    /// A sequence without tokens, in blocks of 2.
    fn new(late_steps: u32) -> Self {
        let layout = CacheConfig::new(1, 1, 8).with_num_blocks(32).with_block_size(2).layout().unwrap();
        let options = ManagerOptions::default().with_prefix_cache(true).with_late_steps(late_steps);
        let mut manager = CacheManager::with_options(&layout, &options).unwrap();
        let seq = manager.create_sequence().unwrap();
        Self { manager, plan: StepPlan::new(Schedule::default()), seq }
    }

    /// Commits a step, and takes its tokens.
    fn step(&mut self, tokens: u32) -> LateTokens {
        self.manager.step(&[(self.seq, tokens)], &mut self.plan).unwrap().commit();
        self.manager.take_late_tokens(self.seq).unwrap()
    }

    /// Tells ids that must be refused, and change nothing.
    fn refused(&mut self, tokens: LateTokens, ids: &[u32]) -> ManagerError {
        let before = self.found(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let error = self.manager.add_token_ids(tokens, ids).unwrap_err();
        assert_eq!(self.found(&[0, 1, 2, 3, 4, 5, 6, 7]), before);
        error
    }

    fn found(&self, ids: &[u32]) -> u32 {
        self.manager.check_invariants().unwrap();
        self.manager.cached_tokens(&[ids, &[99]].concat(), &Domain::default())
    }
}

#[test]
fn a_read_back_a_step_tells_its_own_tokens_however_many_are_in_flight() {
    for in_flight in 1..5 {
        let (mut it, mut waiting) = (Serving::new(16), VecDeque::new());
        let mut told = 0;
        for position in 0..12 {
            waiting.push_back(it.step(1));
            assert_eq!(waiting.back().unwrap().positions(), position..position + 1);
            if waiting.len() == in_flight {
                it.manager.add_token_ids(waiting.pop_front().unwrap(), &[told]).unwrap();
                told += 1;
            }
        }
        for tokens in waiting {
            it.manager.add_token_ids(tokens, &[told]).unwrap();
            told += 1;
        }
        assert_eq!(it.found(&(0..12).collect::<Vec<_>>()), 12);
    }
}

#[test]
fn ids_out_of_order_or_in_another_number_are_refused() {
    let mut it = Serving::new(16);
    let (seq, first, second) = (it.seq, it.step(2), it.step(3));
    let error = it.refused(second, &[2, 3, 4]);
    assert_eq!(error, ManagerError::TokenIdsSkip { seq, position: 2, known: 0 });
    assert_eq!(
        error.to_string(),
        "ids were given from token 2 of sequence 0.0 on, but those from token 0 on come next; tell tokens in the order \
         in which they were taken"
    );
    for (tokens, ids, expected) in [(first, &[0][..], 2), (first, &[0, 1, 2], 2), (second, &[2, 3], 3), (first, &[], 2)]
    {
        let given = ids.len() as u64;
        assert_eq!(it.refused(tokens, ids), ManagerError::TokenIdCount { seq, given, expected });
    }
    it.manager.add_token_ids(first, &[0, 1]).unwrap();
    let error = it.refused(first, &[0, 1]);
    assert_eq!(error, ManagerError::TokenIdsTwice { seq, position: 0, known: 2 });
    let sentence = "token 0 of sequence 0.0 has its id already, as the first 2 have; tell each once";
    assert_eq!(error.to_string(), sentence);
    it.manager.add_token_ids(second, &[2, 3, 4]).unwrap();
    assert_eq!(it.found(&[0, 1, 2, 3]), 4);
    // Nothing is left to take, and nothing to tell.
    let none = it.manager.take_late_tokens(seq).unwrap();
    assert_eq!(none.positions(), 5..5);
    it.manager.add_token_ids(none, &[]).unwrap();
    assert_eq!(it.refused(none, &[5]), ManagerError::TokenIdCount { seq, given: 1, expected: 0 });
}

#[test]
fn a_cut_between_takes_ids_from_those_that_were_cut_alone() {
    let mut it = Serving::new(16);
    let (seq, first, second, third) = (it.seq, it.step(2), it.step(2), it.step(1));
    it.manager.truncate(seq, 3).unwrap();
    // Taking again does not bring back what was taken before.
    assert_eq!(it.manager.take_late_tokens(seq).unwrap().positions(), 3..3);
    let others = it.step(2);
    assert_eq!(others.positions(), 3..5);
    it.manager.add_token_ids(first, &[0, 1]).unwrap();
    let error = it.refused(third, &[4]);
    assert_eq!(error, ManagerError::TruncatedTokenIds { seq, position: 4 });
    let sentence = "token 4 of sequence 0.0 was cut off since; tell the ids of the tokens before it only";
    assert_eq!(error.to_string(), sentence);
    assert_eq!(it.refused(second, &[2, 3]), ManagerError::TruncatedTokenIds { seq, position: 3 });
    assert_eq!(it.refused(others, &[7, 8]), ManagerError::TokenIdsSkip { seq, position: 3, known: 2 });
    it.manager.add_token_ids(second, &[2]).unwrap();
    // Of tokens that are gone, no ids are told.
    it.manager.add_token_ids(third, &[]).unwrap();
    it.manager.add_token_ids(others, &[7, 8]).unwrap();
    assert_eq!((it.found(&[0, 1, 2, 3]), it.found(&[0, 1, 2, 7])), (2, 4));
}

#[test]
fn a_fork_takes_its_own_tokens() {
    let mut it = Serving::new(16);
    let (parent, first, second) = (it.seq, it.step(2), it.step(2));
    it.manager.add_token_ids(first, &[0, 1]).unwrap();
    it.seq = it.manager.fork(parent).unwrap();
    let late = it.step(2);
    assert_eq!((late.seq(), late.positions()), (it.seq, 2..6));
    it.manager.add_token_ids(late, &[2, 3, 4, 5]).unwrap();
    it.manager.add_token_ids(second, &[2, 3]).unwrap();
    assert_eq!(it.found(&[0, 1, 2, 3, 4, 5]), 6);
    it.manager.release(it.seq).unwrap();
    let gone = ManagerError::StaleSequence { seq: it.seq };
    assert_eq!(it.refused(late, &[2, 3, 4, 5]), gone);
    assert_eq!(it.manager.take_late_tokens(it.seq), Err(gone));
}

#[test]
fn more_late_steps_than_there_is_room_for_are_refused_by_name() {
    let layout = CacheConfig::new(1, 1, 8).with_num_blocks(8).layout().unwrap();
    let options = ManagerOptions::default().with_prefix_cache(true).with_late_steps(MAX_LATE_STEPS);
    assert!(CacheManager::with_options(&layout, &options).is_ok());
    let error = CacheManager::with_options(&layout, &options.with_late_steps(u32::MAX)).unwrap_err();
    assert_eq!(error.to_string(), "late_steps is 4294967295, more than 4096; choose fewer");
}

#[test]
fn ids_of_steps_too_far_back_are_refused() {
    let mut it = Serving::new(2);
    let (seq, first, second, third) = (it.seq, it.step(1), it.step(1), it.step(1));
    for tokens in [first, second, third] {
        let error = it.refused(tokens, &[0]);
        assert_eq!(error, ManagerError::LateTokenIds { seq, position: 0, limit: 2 });
        let sentence =
            "token 0 of sequence 0.0 has waited for its id for more than 2 steps; tell ids sooner, or raise late_steps";
        assert_eq!(error.to_string(), sentence);
    }
    // What is cut off waits no more.
    it.manager.truncate(seq, 0).unwrap();
    let (first, second) = (it.step(1), it.step(1));
    it.manager.add_token_ids(first, &[0]).unwrap();
    it.manager.add_token_ids(second, &[1]).unwrap();
    assert_eq!(it.found(&[0, 1]), 2);
}
