//! A plan that is filled again and again remembers which sequences share blocks, and what it laid out for them. What it plans
//! is what a new plan would.

use super::*;
use crate::blocks::{CacheManager, Domain, ManagerOptions, SeqId};

#[derive(Clone, Debug)]
enum Op {
    /// A text of so many equal tokens.
    Create(u32),
    Fork(usize),
    Truncate(usize, u32),
    Release(usize),
    /// A token for all, but for one of four whom these bits name; so many steps.
    Decode(u32, u32),
    /// Tokens for one.
    Grow(usize, u32),
    Rollback,
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (1..20_u32).prop_map(Op::Create),
        3 => any::<usize>().prop_map(Op::Fork),
        1 => (any::<usize>(), 0..20_u32).prop_map(|(choice, len)| Op::Truncate(choice, len)),
        1 => any::<usize>().prop_map(Op::Release),
        6 => (prop_oneof![2 => Just(0), 1 => any::<u32>()], 1..6_u32).prop_map(|(left_out, n)| Op::Decode(left_out, n)),
        1 => (any::<usize>(), 1..12_u32).prop_map(|(choice, tokens)| Op::Grow(choice, tokens)),
        1 => Just(Op::Rollback),
    ]
}

/// Two managers that are asked the same: one fills the same plan in every step, the other a new one.
struct Twins {
    managers: [CacheManager; 2],
    seqs: [Vec<SeqId>; 2],
    plan: StepPlan,
    schedule: Schedule,
    shared: u32,
}

impl Twins {
    fn new(options: &ManagerOptions, window: Option<u32>) -> Self {
        let config = CacheConfig::new(1, 1, 8).with_block_size(2).with_num_blocks(200).with_max_seq_len(60);
        let config = window.into_iter().fold(config, CacheConfig::with_window);
        let layout = config.with_max_sequences(12).layout().unwrap();
        let schedule = Schedule { split_tokens: 4, tile_tokens: 4, ..Schedule::default() };
        let new = || CacheManager::with_options(&layout, options).unwrap();
        Self { managers: [new(), new()], seqs: Default::default(), plan: StepPlan::new(schedule), schedule, shared: 0 }
    }

    /// Reserves the same of both, by places in the list, and compares what they plan.
    fn step(&mut self, requests: &[(usize, u32)], commit: bool) {
        let mut fresh = StepPlan::new(self.schedule);
        let (mut words, mut other) = (Vec::new(), Vec::new());
        let mut results = Vec::new();
        for (at, plan) in [(0, &mut self.plan), (1, &mut fresh)] {
            let manager = &mut self.managers[at];
            let named: Vec<_> = requests.iter().map(|&(seq, tokens)| (self.seqs[at][seq], tokens)).collect();
            results.push(manager.reserve(&named, plan).is_ok());
            plan.encode(0, if at == 0 { &mut words } else { &mut other });
        }
        assert_eq!(results[0], results[1]);
        assert_eq!(words, other, "a plan that remembers differs from a new one");
        assert_eq!(self.plan.groups()[0].tiling.laid(), fresh.groups()[0].tiling.laid());
        if !results[0] {
            return;
        }
        self.shared += u32::from(fresh.groups()[0].tiling.laid().merges.iter().any(|merge| merge.shared_splits > 0));
        for (at, plan) in [(0, &mut self.plan), (1, &mut fresh)] {
            let manager = &mut self.managers[at];
            if commit { manager.commit(plan).unwrap() } else { manager.rollback(plan).unwrap() }
        }
    }

    fn apply(&mut self, op: &Op) {
        let count = self.seqs[0].len();
        let pick = |choice: usize| choice % count;
        match *op {
            Op::Create(tokens) if count < 12 => {
                let text = vec![7; tokens as usize];
                for at in 0..2 {
                    let created = self.managers[at].create_sequence_with_tokens(&text, &Domain::default());
                    self.seqs[at].push(created.unwrap().0);
                }
                let cached = self.managers[0].seq_len(self.seqs[0][count]).unwrap();
                self.step(&[(count, tokens - cached)], true);
            }
            Op::Fork(choice) if (1..12).contains(&count) => {
                for at in 0..2 {
                    let fork = self.managers[at].fork(self.seqs[at][pick(choice)]).unwrap();
                    self.seqs[at].push(fork);
                }
            }
            Op::Truncate(choice, len) if count > 0 => {
                for at in 0..2 {
                    let _ = self.managers[at].truncate(self.seqs[at][pick(choice)], len);
                }
            }
            Op::Release(choice) if count > 0 => {
                for at in 0..2 {
                    let seq = self.seqs[at].remove(pick(choice));
                    self.managers[at].release(seq).unwrap();
                }
            }
            Op::Decode(left_out, steps) => {
                let named: Vec<_> = (0..count).filter(|at| left_out >> at & 1 == 0).map(|at| (at, 1)).collect();
                (0..steps).for_each(|_| self.step(&named, true));
            }
            Op::Grow(choice, tokens) if count > 0 => self.step(&[(pick(choice), tokens)], true),
            Op::Rollback => self.step(&(0..count).map(|at| (at, 1)).collect::<Vec<_>>(), false),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_plan_that_remembers_plans_what_a_new_one_does(
        prefix_cache in any::<bool>(),
        window in prop_oneof![3 => Just(None), 1 => (4..20_u32).prop_map(Some)],
        ops in prop::collection::vec(any_op(), 1..60),
    ) {
        let mut twins = Twins::new(&ManagerOptions::default().with_prefix_cache(prefix_cache), window);
        ops.iter().for_each(|op| twins.apply(op));
    }
}

#[test]
fn shared_blocks_are_met_on_the_way() {
    let mut twins = Twins::new(&ManagerOptions::default(), None);
    let ops = [Op::Create(9), Op::Fork(0), Op::Fork(0), Op::Decode(0, 4), Op::Truncate(1, 5), Op::Decode(0, 4)];
    ops.iter().for_each(|op| twins.apply(op));
    assert_eq!(twins.shared, 8);
}

/// Plans are told apart by the tables of their manager: one that is lent to another remembers nothing of the first.
#[test]
fn a_plan_that_changes_hands_forgets() {
    let options = ManagerOptions::default();
    let (mut one, mut two) = (Twins::new(&options, None), Twins::new(&options, None));
    for op in [Op::Create(9), Op::Fork(0), Op::Decode(0, 1)] {
        one.apply(&op);
    }
    for op in [Op::Create(9), Op::Create(9), Op::Decode(0, 1)] {
        two.apply(&op);
    }
    for _ in 0..3 {
        std::mem::swap(&mut one.plan, &mut two.plan);
        one.apply(&Op::Decode(0, 1));
        two.apply(&Op::Decode(0, 1));
    }
    assert_eq!((one.shared, two.shared), (4, 0));
}
