//! Random operations on the manager, each checked against a model that is too simple to be wrong, and against a device
//! that does what the plans say.
//!
//! An ordinary run does a million operations; `PAGED_ATTENTION_MODEL_OPS` sets another number.

mod check;
mod device;
mod harness;
mod model;
mod step;

use std::collections::HashSet;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use wgpu_paged_attention::blocks::{KeyHash, ManagerOptions, sha256};
use wgpu_paged_attention::config::{CacheConfig, LayerKind};

use self::device::Fault;
use self::harness::Harness;

/// Handles are picked from the latest that were given out, stale ones included.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Create,
    /// A text, and the domain that may share it.
    CreateWith(Vec<bool>, u8),
    Fork(usize),
    /// So many ids, or one for each, for the tokens that lack them and were not taken yet.
    AddIds(usize, Option<u32>),
    /// Takes these tokens and remembers them.
    Note(usize),
    /// So many ids, or one for each that is left, for tokens that were remembered.
    AddNotedIds(usize, Option<u32>),
    /// Steps of a sequence with so many tokens each, which are taken after every commit and told later.
    Ahead(usize, Vec<u32>),
    /// Ids for the tokens of a sequence that come next.
    TellNext(usize),
    Truncate(usize, u32),
    Release(usize),
    Preempt(usize),
    /// How many tokens for whom, and whether the manager learns which.
    Reserve(Vec<(usize, u32)>, bool),
    Commit,
    Rollback,
    Abandon,
    /// Commits or rolls back with a plan that is not the open one.
    Meddle(bool),
    Reset,
    Clear,
    /// Out to the host and back.
    Swap(Vec<usize>),
    Victims(u64, Option<usize>),
    /// Another number of blocks.
    Resize(u32),
}

/// On average; a case that fails shrinks.
const OPS_PER_CASE: usize = 500;

fn any_op() -> impl Strategy<Value = Op> {
    let request = (any::<usize>(), prop_oneof![3 => 0..4_u32, 1 => 0..50_u32]);
    let text = prop::collection::vec(prop::bool::weighted(0.05), 0..44);
    let count = || prop::option::of(0..12_u32);
    prop_oneof![
        1 => Just(Op::Create),
        4 => (text, 0..3_u8).prop_map(|(text, domain)| Op::CreateWith(text, domain)),
        3 => any::<usize>().prop_map(Op::Fork),
        3 => (any::<usize>(), count()).prop_map(|(choice, count)| Op::AddIds(choice, count)),
        2 => any::<usize>().prop_map(Op::Note),
        3 => (any::<usize>(), count()).prop_map(|(choice, count)| Op::AddNotedIds(choice, count)),
        2 => (any::<usize>(), prop::collection::vec(0..4_u32, 2..5)).prop_map(|(choice, steps)| Op::Ahead(choice, steps)),
        4 => any::<usize>().prop_map(Op::TellNext),
        3 => (any::<usize>(), 0..44_u32).prop_map(|(choice, len)| Op::Truncate(choice, len)),
        4 => any::<usize>().prop_map(Op::Release),
        1 => any::<usize>().prop_map(Op::Preempt),
        10 => (prop::collection::vec(request, 0..4), prop::bool::weighted(0.7))
            .prop_map(|(requests, known)| Op::Reserve(requests, known)),
        9 => Just(Op::Commit),
        2 => Just(Op::Rollback),
        1 => Just(Op::Abandon),
        1 => any::<bool>().prop_map(Op::Meddle),
        1 => Just(Op::Reset),
        1 => Just(Op::Clear),
        1 => prop::collection::vec(any::<usize>(), 0..4).prop_map(Op::Swap),
        1 => (0..12_u64, prop::option::of(any::<usize>())).prop_map(|(missing, whom)| Op::Victims(missing, whom)),
        2 => (0..34_u32).prop_map(Op::Resize),
    ]
}

fn any_config() -> impl Strategy<Value = CacheConfig> {
    let kind = |heads| LayerKind::new(heads, 8);
    let some = move |window: u32, heads| kind(heads).with_window(window);
    // Layers of one kind, or of two or three, whose blocks are as large or twice or three times as large as others.
    let layers = (1..12_u32, 1..12_u32, 0..14_u32).prop_map(move |(window, other, choice)| match choice {
        0 => vec![kind(1), some(window, 1)],
        1 => vec![kind(1), some(window, 2)],
        2 => vec![kind(2), some(window, 1)],
        3 => vec![some(window, 1), some(other, 1)],
        4 => vec![some(window, 3), some(other, 1)],
        5 => vec![kind(1), some(window, 1), some(other, 2)],
        6 => vec![kind(2), kind(1)],
        7 => vec![some(window, 1)],
        8 => vec![some(window, 1); 2],
        _ => vec![kind(1)],
    });
    (1..6_u32, 1..24_u32, 1..40_u32, 1..7_u32, prop::bool::weighted(0.9), 0..10_u32, layers).prop_map(
        |(block_size, num_blocks, max_seq_len, max_sequences, paged, more, layers)| {
            // A contiguous pool holds one sequence at least.
            let num_blocks = num_blocks.max(if paged { 1 } else { max_seq_len.div_ceil(block_size) });
            let kinds = layers.iter().collect::<HashSet<_>>().len();
            let paged = paged || kinds > 1;
            CacheConfig::of_layers(&layers)
                .with_block_size(block_size)
                .with_num_blocks(num_blocks)
                .with_max_num_blocks(num_blocks + more)
                .with_max_seq_len(max_seq_len)
                .with_max_sequences(max_sequences)
                .with_paged(paged)
        },
    )
}

fn any_options() -> impl Strategy<Value = ManagerOptions> {
    // Most tests are to find texts by hashes that do not tell them apart.
    let hash = prop::sample::select(vec![sha256 as KeyHash, |_: &[u8]| [0; 32], |message: &[u8]| {
        let mut key = [0; 32];
        key[0] = sha256(message)[0] & 3;
        key
    }]);
    (prop::bool::weighted(0.8), 0..4_u32, any::<bool>(), hash, 0..5_u32).prop_map(
        |(prefix_cache, slack, clear_freed, hash, late_steps)| {
            ManagerOptions::default()
                .with_prefix_cache(prefix_cache)
                .with_window_slack(slack)
                .with_clear_freed(clear_freed)
                .with_events(true)
                .with_swap_from_tokens(Some(10))
                .with_key_hash(hash)
                .with_late_steps(late_steps)
        },
    )
}

fn model_ops() -> usize {
    std::env::var("PAGED_ATTENTION_MODEL_OPS").map_or(1_000_000, |ops| ops.parse().expect("a number of operations"))
}

fn run(config: &CacheConfig, options: ManagerOptions, ops: &[Op], fault: Fault) {
    let options = options.clone().with_prefix_cache(options.prefix_cache() && config.paged());
    let mut harness = Harness::new(config, options, fault);
    for op in ops {
        harness.apply(op);
        harness.check();
    }
    harness.finish();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: model_ops().div_ceil(OPS_PER_CASE) as u32,
        max_shrink_iters: 4_000,
        failure_persistence: None::<Box<FileFailurePersistence>>.map(|file| file as _),
        ..ProptestConfig::default()
    })]
    #[test]
    fn random_operations_match_the_model(
        config in any_config(),
        options in any_options(),
        ops in prop::collection::vec(any_op(), 1..2 * OPS_PER_CASE),
    ) {
        run(&config, options, &ops, Fault::None);
    }
}

/// Two branches that part inside a block, with everything else that a fault could spoil.
fn branches(fault: Fault) {
    branches_of(CacheConfig::new(1, 1, 8).with_num_blocks(6), fault);
}

/// The same with a group of layers whose blocks have half the tokens, and see six of them.
fn grouped_branches(fault: Fault) {
    let layers = [LayerKind::new(1, 8), LayerKind::new(2, 8).with_window(6)];
    branches_of(CacheConfig::of_layers(&layers).with_num_blocks(12), fault);
}

fn branches_of(config: CacheConfig, fault: Fault) {
    let size = if config.layers().is_empty() { 4 } else { 2 };
    let config = config.with_block_size(size).with_max_seq_len(16);
    let options = ManagerOptions::default().with_prefix_cache(true).with_clear_freed(true).with_events(true);
    let grow = |ops: &mut Vec<Op>, choice, tokens| ops.extend([Op::Reserve(vec![(choice, tokens)], true), Op::Commit]);
    let mut ops = vec![Op::CreateWith(vec![false; 10], 0)];
    grow(&mut ops, 0, 10);
    // Handles count from the latest on: 0 is the fork, 1 the first sequence.
    ops.push(Op::Fork(0));
    grow(&mut ops, 0, 1);
    grow(&mut ops, 1, 1);
    ops.extend([Op::Release(0), Op::Release(1), Op::CreateWith(vec![true; 16], 1)]);
    grow(&mut ops, 0, 16);
    run(&config, options, &ops, fault);
}

/// A block that was never entered because the one before it had left the window is not asked for once it has left too.
#[test]
fn windows_end_what_can_be_found() {
    let config = CacheConfig::new(1, 1, 8).with_block_size(1).with_num_blocks(4).with_max_seq_len(6);
    let config = config.with_window(1);
    let options = ManagerOptions::default().with_prefix_cache(true).with_events(true);
    let grow = |known| [Op::Reserve(vec![(0, 1)], known), Op::Commit];
    let ops = [vec![Op::Create], grow(true).into(), grow(true).into(), grow(false).into()].concat();
    run(&config, options, &ops, Fault::None);
}

/// Two sequences have the same first block each, and a third found the one's first and the other's second. What is cut off the
/// other stays findable then, for the block behind it rests on it, and who writes there takes a copy.
#[test]
fn a_twin_of_a_block_stays_though_its_owner_cuts_it_off_if_the_block_behind_it_is_held() {
    let config = CacheConfig::new(1, 1, 8).with_block_size(4).with_num_blocks(8).with_max_seq_len(16);
    let options = ManagerOptions::default().with_prefix_cache(true).with_events(true);
    let text = || vec![false; 9];
    let mut ops = vec![Op::CreateWith(text(), 0), Op::CreateWith(text(), 0)];
    ops.extend([Op::Reserve(vec![(0, 4), (1, 4)], true), Op::Commit, Op::Reserve(vec![(1, 4)], true), Op::Commit]);
    ops.extend([Op::CreateWith(text(), 0), Op::Truncate(2, 1), Op::Reserve(vec![(2, 3)], true), Op::Commit]);
    run(&config, options, &ops, Fault::None);
}

#[test]
fn branches_part_without_a_fault() {
    branches(Fault::None);
    grouped_branches(Fault::None);
}

#[test]
#[should_panic(expected = "wrong data")]
fn a_copy_that_is_left_out_shows_in_groups() {
    grouped_branches(Fault::NoCopies);
}

#[test]
#[should_panic(expected = "somebody's old data")]
fn a_block_that_is_not_cleared_is_noticed_in_groups() {
    grouped_branches(Fault::NoClears);
}

#[test]
#[should_panic(expected = "not uploaded")]
fn a_table_of_another_group_that_is_not_uploaded_is_noticed() {
    grouped_branches(Fault::NoOtherUpdates);
}

/// The shorter of two branches writes last, over tokens of the longer one, which gets its block back.
#[test]
fn an_abandoned_step_spoils_nobodys_tokens() {
    let config = CacheConfig::new(1, 1, 8).with_block_size(4).with_num_blocks(6).with_max_seq_len(16);
    let reserve = |first, last| Op::Reserve(vec![(first, 1), (last, 1)], false);
    let ops = [
        Op::CreateWith(vec![false; 10], 0),
        Op::Reserve(vec![(0, 7)], false),
        Op::Commit,
        Op::Fork(0),
        Op::Truncate(0, 5),
        reserve(1, 0),
        Op::Abandon,
        reserve(0, 1),
        Op::Abandon,
    ];
    run(&config, ManagerOptions::default(), &ops, Fault::None);
}

#[test]
#[should_panic(expected = "wrong data")]
fn a_copy_that_is_left_out_shows_as_wrong_data() {
    branches(Fault::NoCopies);
}

#[test]
#[should_panic(expected = "wrong data")]
fn a_copy_that_comes_after_the_append_shows_as_wrong_data() {
    branches(Fault::LateCopies);
}

#[test]
#[should_panic(expected = "somebody's old data")]
fn a_block_that_is_not_cleared_is_noticed() {
    branches(Fault::NoClears);
}

/// Ids are told after two steps, and one sequence is cut and goes on in another way before.
fn late_ids(fault: Fault) {
    let config = CacheConfig::new(1, 1, 8).with_block_size(2).with_num_blocks(12).with_max_seq_len(16);
    let options = ManagerOptions::default().with_prefix_cache(true).with_events(true);
    let grow = |choice, tokens| [Op::Reserve(vec![(choice, tokens)], false), Op::Commit];
    let mut ops = vec![Op::CreateWith(vec![false; 8], 0)];
    ops.extend([grow(0, 3), grow(0, 1)].concat());
    ops.extend([Op::Note(0), Op::Truncate(0, 3)]);
    ops.extend(grow(0, 2));
    ops.extend([4, 2].map(|count| Op::AddNotedIds(0, Some(count))));
    ops.extend([Op::AddNotedIds(0, None), Op::Note(0), Op::AddNotedIds(0, Some(1)), Op::AddNotedIds(0, None)]);
    ops.push(Op::CreateWith(vec![false; 8], 0));
    run(&config, options, &ops, fault);
}

/// Three steps are in flight when the first ids are told; the last is cut, and others come.
fn steps_ahead(fault: Fault) {
    let config = CacheConfig::new(1, 1, 8).with_block_size(2).with_num_blocks(12).with_max_seq_len(16);
    let options = ManagerOptions::default().with_prefix_cache(true).with_events(true);
    let mut ops = vec![Op::CreateWith(vec![false; 9], 0), Op::Ahead(0, vec![3, 1, 2])];
    ops.extend([Op::AddNotedIds(0, None), Op::TellNext(0), Op::Truncate(0, 5), Op::Ahead(0, vec![0, 3])]);
    ops.extend([Op::AddNotedIds(0, None), Op::TellNext(0), Op::TellNext(0), Op::TellNext(0)]);
    ops.push(Op::CreateWith(vec![false; 9], 0));
    run(&config, options, &ops, fault);
}

#[test]
fn late_ids_are_told_without_a_fault() {
    late_ids(Fault::None);
    steps_ahead(Fault::None);
}

#[test]
#[should_panic(expected = "another beginning is found")]
fn ids_of_other_tokens_are_noticed() {
    late_ids(Fault::OtherIds);
}

#[test]
#[should_panic(expected = "another beginning is found")]
fn ids_of_other_tokens_are_noticed_with_steps_in_flight() {
    steps_ahead(Fault::OtherIds);
}

/// A pool that grows twice, shrinks in between, and is full at last.
fn sizes(fault: Fault) {
    let config = CacheConfig::new(1, 1, 8).with_block_size(2).with_num_blocks(3).with_max_num_blocks(9);
    let options = ManagerOptions::default().with_prefix_cache(true).with_clear_freed(true).with_events(true);
    let grow = |choice, tokens| [Op::Reserve(vec![(choice, tokens)], true), Op::Commit];
    let mut ops = vec![Op::CreateWith(vec![false; 6], 0)];
    ops.extend(grow(0, 6));
    ops.extend([Op::CreateWith(vec![true; 9], 0), Op::Resize(8)]);
    ops.extend(grow(0, 9));
    ops.extend([
        Op::Resize(7),
        Op::Release(1),
        Op::Resize(8),
        Op::Release(0),
        Op::Resize(2),
        Op::Resize(10),
        Op::Resize(9),
    ]);
    ops.push(Op::CreateWith(vec![false; 18], 1));
    ops.extend(grow(0, 18));
    run(&config.with_max_seq_len(18), options, &ops, fault);
}

#[test]
fn pools_grow_and_shrink_without_a_fault() {
    sizes(Fault::None);
}

#[test]
#[should_panic(expected = "wrong data")]
fn a_pool_that_loses_its_blocks_when_it_grows_is_noticed() {
    sizes(Fault::EmptyGrowth);
}

#[test]
#[should_panic(expected = "not uploaded")]
fn a_table_that_is_not_uploaded_is_noticed() {
    branches(Fault::NoUpdates);
}
