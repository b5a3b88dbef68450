//! Faults that were found in use, each by the id that `CASES.md` gives it.

use wgpu_paged_attention::blocks::{CacheManager, Domain, ManagerOptions, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::ManagerError;
use wgpu_paged_attention::plan::{Schedule, StepPlan};

/// A manager with a prefix cache over blocks of 16, and a plan.
fn caching(num_blocks: u32) -> (CacheManager, StepPlan) {
    let layout = CacheConfig::new(1, 1, 8).with_num_blocks(num_blocks).with_max_seq_len(160).layout().unwrap();
    let options = ManagerOptions::default().with_prefix_cache(true).with_events(true);
    (CacheManager::with_options(&layout, &options).unwrap(), StepPlan::new(Schedule::default()))
}

fn text(len: u32) -> Vec<u32> {
    (0..len).map(|token| 7 * token).collect()
}

fn found(manager: &CacheManager, tokens: &[u32]) -> u32 {
    let mut tokens = tokens.to_vec();
    // One token at least is left to compute.
    tokens.push(u32::MAX);
    let found = manager.cached_tokens(&tokens, &Domain::default());
    manager.check_invariants().unwrap();
    found
}

fn grow(manager: &mut CacheManager, plan: &mut StepPlan, seq: SeqId, tokens: &[u32]) {
    manager.step_tokens(&[(seq, tokens)], plan).unwrap().commit();
}

#[test]
fn x06_rejected_drafts_cannot_be_found() {
    for (prompt, drafts, accepted) in [(14, 4, 1), (10, 40, 3), (16, 16, 0), (30, 2, 1)] {
        let (mut manager, mut plan) = caching(8);
        let seq = manager.create_sequence().unwrap();
        let drafted = text(prompt + drafts);
        grow(&mut manager, &mut plan, seq, &drafted);
        assert_eq!(found(&manager, &drafted), (prompt + drafts) / 16 * 16);
        manager.truncate(seq, prompt + accepted).unwrap();
        assert_eq!(found(&manager, &drafted), (prompt + accepted) / 16 * 16);
        // Nothing finds the block any more, so it is written in place.
        grow(&mut manager, &mut plan, seq, &[1; 30]);
        assert_eq!((plan.copies().len(), manager.stats().evictions), (0, 0));
        let real = [&drafted[..(prompt + accepted) as usize], &[1; 30]].concat();
        assert_eq!(found(&manager, &real), real.len() as u32 / 16 * 16);
        manager.release(seq).unwrap();
        assert_eq!(found(&manager, &drafted), (prompt + accepted) / 16 * 16);
    }
}

#[test]
fn x06_what_others_have_or_what_was_found_stays() {
    let (mut manager, mut plan) = caching(8);
    let (seq, tokens) = (manager.create_sequence().unwrap(), text(48));
    grow(&mut manager, &mut plan, seq, &tokens);
    let fork = manager.fork(seq).unwrap();
    manager.truncate(seq, 20).unwrap();
    assert_eq!(found(&manager, &tokens), 48);
    // The last owner that cuts it off takes it along.
    manager.truncate(fork, 20).unwrap();
    assert_eq!(found(&manager, &tokens), 16);
    grow(&mut manager, &mut plan, fork, &tokens[20..]);
    manager.release(fork).unwrap();
    manager.release(seq).unwrap();

    // A drafting head wants the last block that was found computed anew.
    let (again, cached) =
        manager.create_sequence_with_tokens(&[tokens.clone(), vec![0]].concat(), &Domain::default()).unwrap();
    assert_eq!(cached, 48);
    manager.truncate(again, 32).unwrap();
    assert_eq!(found(&manager, &tokens), 48);
}

#[test]
fn x06_a_block_that_is_cut_off_during_a_step_stays_lost_when_the_step_is_rolled_back() {
    let (mut manager, mut plan) = caching(4);
    let (a, tokens) = (manager.create_sequence().unwrap(), text(32));
    grow(&mut manager, &mut plan, a, &tokens);
    // Blocks 2 and 3 hold another text and are free.
    let b = manager.create_sequence().unwrap();
    grow(&mut manager, &mut plan, b, &[1; 32]);
    manager.release(b).unwrap();
    let c = manager.create_sequence().unwrap();
    let step = manager.step(&[(c, 20)], &mut plan).unwrap();
    step.rollback();
    manager.reserve(&[(c, 20)], &mut plan).unwrap();
    assert_eq!(found(&manager, &[1; 32]), 0);
    manager.truncate(a, 20).unwrap();
    assert_eq!(found(&manager, &tokens), 16);
    manager.rollback(&mut plan).unwrap();
    assert_eq!((found(&manager, &tokens), found(&manager, &[1; 32])), (16, 32));
}

#[test]
fn x06_ids_can_be_told_after_the_commit() {
    let (mut manager, mut plan) = caching(8);
    let (seq, tokens) = (manager.create_sequence().unwrap(), text(40));
    grow(&mut manager, &mut plan, seq, &tokens[..14]);
    manager.step(&[(seq, 5)], &mut plan).unwrap().commit();
    // Three of the drafts are accepted.
    manager.truncate(seq, 17).unwrap();
    assert_eq!(found(&manager, &tokens), 0);
    // The next step is planned, and its token is not known either.
    manager.reserve(&[(seq, 1)], &mut plan).unwrap();
    manager.add_token_ids(seq, &tokens[14..17]).unwrap();
    assert_eq!(found(&manager, &tokens), 16);
    manager.commit(&mut plan).unwrap();
    let error = ManagerError::TooManyTokenIds { seq, given: 2, missing: 1 };
    assert_eq!(manager.add_token_ids(seq, &tokens[17..19]), Err(error));
    assert_eq!(
        error.to_string(),
        "2 token ids were given to sequence 0.0, but 1 of its tokens have none; commit their step first"
    );
    manager.add_token_ids(seq, &tokens[17..18]).unwrap();
    // Ids that come with a step go on from there.
    grow(&mut manager, &mut plan, seq, &tokens[18..32]);
    assert_eq!(found(&manager, &tokens), 32);
}

#[test]
fn x06_shared_tokens_have_one_id() {
    let (mut manager, mut plan) = caching(8);
    let (seq, tokens) = (manager.create_sequence().unwrap(), text(16));
    manager.step(&[(seq, 16)], &mut plan).unwrap().commit();
    let fork = manager.fork(seq).unwrap();
    manager.add_token_ids(seq, &tokens).unwrap();
    let mut other = tokens.clone();
    other[3] = 5;
    let error = ManagerError::OtherTokenId { seq: fork, position: 3, given: 5, cached: 21 };
    assert_eq!(manager.add_token_ids(fork, &other), Err(error));
    assert_eq!(manager.add_token_ids(fork, &tokens), Ok(()));
    assert_eq!(found(&manager, &tokens), 16);
}

#[test]
fn x14_every_copy_of_a_plan_knows_that_its_step_is_closed() {
    let (mut manager, mut plan) = caching(8);
    assert_eq!(plan.is_step_open(), None);
    let seq = manager.create_sequence().unwrap();
    for close in [
        |manager: &mut CacheManager, plan: &mut StepPlan| manager.commit(plan).unwrap(),
        |manager: &mut CacheManager, plan: &mut StepPlan| manager.rollback(plan).unwrap(),
        |manager: &mut CacheManager, _: &mut StepPlan| assert!(manager.abandon()),
    ] {
        manager.reserve(&[(seq, 3)], &mut plan).unwrap();
        let copy = plan.clone();
        assert_eq!((plan.is_step_open(), copy.is_step_open()), (Some(true), Some(true)));
        close(&mut manager, &mut plan);
        assert_eq!(copy.is_step_open(), Some(false));
        assert_ne!(plan.is_step_open(), Some(true));
        // A later step does not revive it.
        manager.reserve(&[], &mut plan).unwrap();
        assert_eq!(copy.is_step_open(), Some(false));
        manager.commit(&mut plan).unwrap();
    }
    manager.reserve(&[(seq, 3)], &mut plan).unwrap();
    drop(manager);
    assert_eq!(plan.is_step_open(), Some(false));
}
