//! Random operations on the manager, each checked against a model that is too simple to be wrong.

use std::collections::VecDeque;

use proptest::prelude::*;
use wgpu_paged_attention::blocks::{BlockId, CacheManager, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::{ManagerError, PoolError, ReserveError};
use wgpu_paged_attention::plan::{QueryTile, Schedule, StepPlan, TILE_CLASSES};

/// Handles are picked from all that were ever given out, so many of them are stale.
#[derive(Clone, Debug)]
enum Op {
    Create,
    Release(usize),
    Reserve(Vec<(usize, u32)>),
    Commit,
    Rollback,
    Abandon,
    /// Commits or rolls back with a plan that is not the open one.
    Meddle(bool),
}

fn any_op() -> impl Strategy<Value = Op> {
    let request = (any::<usize>(), prop_oneof![3 => 0..4_u32, 1 => 0..50_u32]);
    prop_oneof![
        3 => Just(Op::Create),
        2 => any::<usize>().prop_map(Op::Release),
        6 => prop::collection::vec(request, 0..4).prop_map(Op::Reserve),
        5 => Just(Op::Commit),
        2 => Just(Op::Rollback),
        1 => Just(Op::Abandon),
        1 => any::<bool>().prop_map(Op::Meddle),
    ]
}

#[derive(Clone, Debug)]
struct ModelSeq {
    id: SeqId,
    blocks: Vec<u32>,
    len: u32,
    /// Whether a committed step has told the device about its table.
    known: bool,
}

#[derive(Clone, Debug)]
struct Step {
    grown: Vec<(SeqId, u32)>,
    named: Vec<SeqId>,
    /// Blocks of the sequences before the step, and what it took from the front of the queue.
    before: Vec<(SeqId, Vec<u32>)>,
    taken: Vec<u32>,
}

struct Model {
    free: VecDeque<u32>,
    seqs: Vec<ModelSeq>,
    step: Option<Step>,
    handles: Vec<SeqId>,
    /// The block table on the device, written by the updates of every step, committed or not.
    device: Vec<u32>,
    /// For every slot, the token that was written there last.
    memory: Vec<Option<(SeqId, u32)>>,
}

impl Model {
    fn seq(&mut self, id: SeqId) -> Option<&mut ModelSeq> {
        self.seqs.iter_mut().find(|seq| seq.id == id)
    }

    fn pick(&self, choice: usize) -> Option<SeqId> {
        (!self.handles.is_empty()).then(|| self.handles[choice % self.handles.len()])
    }
}

/// Splits of three keys, so that most sequences have several.
fn new_plan() -> StepPlan {
    StepPlan::new(Schedule { split_tokens: 3, ..Schedule::default() })
}

/// The query tiles of every row, as the device finds them; in the order of the rows.
fn served(plan: &StepPlan) -> Vec<(u32, QueryTile)> {
    let tiles = (0..TILE_CLASSES).flat_map(|class| plan.tiles(class));
    let members = |tile: &QueryTile| &plan.members()[tile.first_member as usize..][..tile.num_members as usize];
    let mut served: Vec<_> = tiles.flat_map(|tile| members(tile).iter().map(|&row| (row, *tile))).collect();
    served.sort_by_key(|(row, _)| *row);
    served
}

struct Harness {
    cache: CacheManager,
    plan: StepPlan,
    model: Model,
}

impl Harness {
    fn new(config: &CacheConfig) -> Self {
        let layout = config.layout().unwrap();
        Self {
            cache: CacheManager::new(&layout).unwrap(),
            plan: new_plan(),
            model: Model {
                free: (0..layout.num_blocks()).collect(),
                seqs: Vec::new(),
                step: None,
                handles: Vec::new(),
                device: vec![u32::MAX; (layout.max_sequences() * layout.max_blocks_per_seq()) as usize],
                memory: vec![None; layout.num_slots() as usize],
            },
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Create => self.create(),
            Op::Release(choice) => self.release(*choice),
            Op::Reserve(picks) => {
                let requests: Vec<_> =
                    picks.iter().filter_map(|&(choice, tokens)| Some((self.model.pick(choice)?, tokens))).collect();
                self.reserve(&requests);
            }
            Op::Commit => self.commit(),
            Op::Rollback => {
                let want = if self.model.step.is_some() { Ok(()) } else { Err(ManagerError::NoOpenStep) };
                assert_eq!(self.cache.rollback(&mut self.plan), want);
                self.undo();
            }
            Op::Abandon => {
                assert_eq!(self.cache.abandon(), self.model.step.is_some());
                self.undo();
                self.plan.clear();
            }
            Op::Meddle(commit) => {
                let mut plan = new_plan();
                let error = if *commit { self.cache.commit(&mut plan) } else { self.cache.rollback(&mut plan) };
                let open = self.model.step.is_some();
                assert_eq!(error, Err(if open { ManagerError::WrongPlan } else { ManagerError::NoOpenStep }));
            }
        }
    }

    fn create(&mut self) {
        let layout = self.cache.layout().clone();
        let (free, limit) = (self.model.free.len() as u32, layout.max_sequences());
        let blocks = match self.cache.create_sequence() {
            Err(error) => {
                let want = if self.model.seqs.len() as u32 == limit {
                    ManagerError::TooManySequences { limit }
                } else {
                    assert!(!layout.paged() && free == 0);
                    PoolError::OutOfBlocks { needed: 1, free: 0, total: layout.num_blocks() }.into()
                };
                assert_eq!(error, want);
                return;
            }
            Ok(id) => {
                assert!(!self.model.handles.contains(&id), "a handle is never given out twice");
                self.model.handles.push(id);
                let blocks = self.model.free.drain(..usize::from(!layout.paged())).collect();
                ModelSeq { id, blocks, len: 0, known: false }
            }
        };
        self.model.seqs.push(blocks);
    }

    fn release(&mut self, choice: usize) {
        let Some(seq) = self.model.pick(choice) else {
            return;
        };
        let result = self.cache.release(seq);
        let Some(at) = self.model.seqs.iter().position(|known| known.id == seq) else {
            return assert_eq!(result, Err(ManagerError::StaleSequence { seq }));
        };
        if self.model.step.as_ref().is_some_and(|step| step.named.contains(&seq)) {
            return assert_eq!(result, Err(ManagerError::SequenceInStep { seq }));
        }
        assert_eq!(result, Ok(()));
        let gone = self.model.seqs.remove(at);
        self.model.free.extend(gone.blocks.into_iter().rev());
    }

    /// What `reserve` should say, found out by trying it on copies.
    fn expect(&self, requests: &[(SeqId, u32)]) -> Result<u64, ReserveError> {
        let layout = self.cache.layout();
        if self.model.step.is_some() {
            return Err(ReserveError::StepOpen);
        }
        let mut needed = 0;
        for (request, &(seq, new_tokens)) in requests.iter().enumerate() {
            let Some(known) = self.model.seqs.iter().find(|known| known.id == seq) else {
                return Err(ReserveError::StaleSequence { request, seq });
            };
            if requests[..request].iter().any(|&(other, _)| other == seq) {
                return Err(ReserveError::DuplicateSequence { request, seq });
            }
            let (len, max_seq_len) = (known.len, layout.max_seq_len());
            if len + new_tokens > max_seq_len {
                return Err(ReserveError::TooLong { request, len, new_tokens, max_seq_len });
            }
            let blocks = (len + new_tokens).div_ceil(layout.block_size());
            needed += u64::from(blocks.saturating_sub(known.blocks.len() as u32));
        }
        let free = self.model.free.len() as u32;
        if needed > free.into() {
            return Err(ReserveError::OutOfBlocks { needed, free, total: layout.num_blocks() });
        }
        Ok(needed)
    }

    fn reserve(&mut self, requests: &[(SeqId, u32)]) {
        let want = self.expect(requests);
        // The question does not look for duplicates.
        if !matches!(want, Err(ReserveError::DuplicateSequence { .. })) {
            assert_eq!(self.cache.can_reserve(requests), want.is_ok());
        }
        assert_eq!(self.cache.reserve(requests, &mut self.plan), want.map(|_| ()));
        let Ok(needed) = want else {
            if want != Err(ReserveError::StepOpen) {
                assert_eq!((self.plan.num_rows(), self.plan.upload_bytes()), (0, 96));
            }
            return;
        };
        let mut step = Step {
            grown: requests.iter().copied().filter(|&(_, tokens)| tokens > 0).collect(),
            named: requests.iter().map(|&(seq, _)| seq).collect(),
            before: self.model.seqs.iter().map(|seq| (seq.id, seq.blocks.clone())).collect(),
            taken: self.model.free.drain(..needed as usize).collect(),
        };
        let mut taken = step.taken.iter();
        let block_size = self.cache.layout().block_size();
        for &(seq, tokens) in &step.grown {
            let known = self.model.seq(seq).unwrap();
            let blocks = (known.len + tokens).div_ceil(block_size) as usize;
            while known.blocks.len() < blocks {
                known.blocks.push(*taken.next().unwrap());
            }
        }
        assert_eq!(taken.next(), None);
        step.taken.reverse();
        self.run_on_device(&step);
        self.model.step = Some(step);
    }

    /// Does with the plan what a device would: updates its table, then writes the tokens and looks at the rows.
    fn run_on_device(&mut self, step: &Step) {
        for update in self.plan.updates() {
            self.model.device[update.index as usize] = update.block;
        }
        let layout = self.cache.layout();
        let served = served(&self.plan);
        let mut rows = self.plan.positions().iter().zip(&served).enumerate();
        let mut slots = self.plan.slots().iter();
        let mut merges = self.plan.merges().iter();
        let (mut items, mut records) = (0, 0);
        for &(seq, tokens) in &step.grown {
            let known = self.model.seqs.iter().find(|known| known.id == seq).unwrap();
            let seq_len = known.len + tokens;
            // From nine queries on there is one split, and tiles of 16.
            let splits = if tokens < 9 { seq_len.div_ceil(3) } else { 1 };
            items += tokens.div_ceil(16) * splits;
            for position in known.len..seq_len {
                let (row, (&planned, &(member, tile))) = rows.next().unwrap();
                let &slot = slots.next().unwrap();
                assert_eq!((planned, member), (position as i32, row as u32));
                assert_eq!(tile.table_base, seq.index() * layout.max_blocks_per_seq());
                assert_eq!((tile.key_begin, tile.key_end), (0, seq_len));
                if splits > 1 {
                    let merge = merges.next().unwrap();
                    assert_eq!((merge.row, merge.kv_len, merge.shared_splits), (member, seq_len, 0));
                    records += splits;
                }
                let column = tile.table_base + position / layout.block_size();
                let block = BlockId::new(self.model.device[column as usize]).unwrap();
                assert_eq!(slot, layout.slot(block, position));
                self.model.memory[slot as usize] = Some((seq, position));
            }
        }
        assert_eq!((rows.next(), slots.next(), merges.next()), (None, None, None));
        assert_eq!(served.len(), self.plan.num_rows() as usize, "a row is served once");
        let planned: u32 = (0..TILE_CLASSES).map(|class| self.plan.num_items(class)).sum();
        assert_eq!((planned, self.plan.num_records()), (items, records));
    }

    fn commit(&mut self) {
        let Some(step) = self.model.step.take() else {
            return assert_eq!(self.cache.commit(&mut self.plan), Err(ManagerError::NoOpenStep));
        };
        assert_eq!(self.cache.commit(&mut self.plan), Ok(()));
        for (seq, tokens) in step.grown {
            let known = self.model.seq(seq).unwrap();
            known.len += tokens;
            known.known = true;
        }
    }

    fn undo(&mut self) {
        let Some(step) = self.model.step.take() else {
            return;
        };
        for block in step.taken {
            self.model.free.push_front(block);
        }
        for (seq, blocks) in step.before {
            if let Some(known) = self.model.seq(seq) {
                known.blocks = blocks;
            }
        }
    }

    fn check(&self) {
        let layout = self.cache.layout();
        assert!(self.cache.free_blocks().map(BlockId::get).eq(self.model.free.iter().copied()));
        assert_eq!(self.cache.num_free_blocks() as usize, self.model.free.len());
        assert_eq!(self.cache.num_sequences() as usize, self.model.seqs.len());
        assert_eq!(self.cache.is_step_open(), self.model.step.is_some());
        let mut owned: Vec<u32> = self.model.free.iter().copied().collect();
        for seq in &self.model.seqs {
            let table = self.cache.block_table(seq.id).unwrap();
            assert_eq!(table, seq.blocks);
            assert_eq!(self.cache.seq_len(seq.id), Ok(seq.len));
            owned.extend(table);
            for position in 0..seq.len {
                let column = (position / layout.block_size()) as usize;
                let block = BlockId::new(table[column]).unwrap();
                let slot = layout.slot(block, position);
                assert_eq!(self.model.memory[slot as usize], Some((seq.id, position)), "overwritten");
                let base = seq.id.index() * layout.max_blocks_per_seq();
                assert_eq!(self.model.device[base as usize + column], table[column], "not uploaded");
            }
            assert!(seq.known || seq.len == 0);
        }
        owned.sort_unstable();
        assert!(owned.into_iter().eq(0..layout.num_blocks()), "a block is lost or owned twice");
        for &handle in &self.model.handles {
            let alive = self.model.seqs.iter().any(|seq| seq.id == handle);
            assert_eq!(self.cache.contains(handle), alive);
        }
    }

    /// After all releases one allocation takes the whole pool.
    fn finish(mut self) {
        self.cache.abandon();
        self.undo();
        while let Some(seq) = self.model.seqs.pop() {
            self.cache.release(seq.id).unwrap();
        }
        let layout = self.cache.layout().clone();
        assert_eq!(self.cache.num_free_blocks(), layout.num_blocks());
        let each = layout.max_seq_len().min(layout.num_slots() as u32);
        while let Ok(seq) = self.cache.create_sequence() {
            let room =
                layout.num_slots() as u32 - (layout.num_blocks() - self.cache.num_free_blocks()) * layout.block_size();
            let tokens = if layout.paged() { each.min(room) } else { each };
            self.cache.reserve(&[(seq, tokens)], &mut self.plan).unwrap();
            self.cache.commit(&mut self.plan).unwrap();
        }
        let capacity = layout.max_sequences().saturating_mul(layout.blocks_for(each));
        assert_eq!(self.cache.num_free_blocks(), layout.num_blocks().saturating_sub(capacity));
    }
}

proptest! {
    #[test]
    fn random_operations_match_the_model(
        block_size in 1..6_u32,
        num_blocks in 1..24_u32,
        max_seq_len in 1..40_u32,
        max_sequences in 1..6_u32,
        paged in prop::bool::weighted(0.8),
        ops in prop::collection::vec(any_op(), 1..120),
    ) {
        // A contiguous pool holds one sequence at least.
        let num_blocks = num_blocks.max(if paged { 1 } else { max_seq_len.div_ceil(block_size) });
        let config = CacheConfig::new(1, 1, 8)
            .with_block_size(block_size)
            .with_num_blocks(num_blocks)
            .with_max_seq_len(max_seq_len)
            .with_max_sequences(max_sequences)
            .with_paged(paged);
        let mut harness = Harness::new(&config);
        for op in &ops {
            harness.apply(op);
            harness.check();
        }
        harness.finish();
    }
}

#[test]
#[should_panic(expected = "overwritten")]
fn the_harness_notices_a_token_that_was_overwritten() {
    let config = CacheConfig::new(1, 1, 8).with_num_blocks(4);
    let mut harness = Harness::new(&config);
    for op in [Op::Create, Op::Reserve(vec![(0, 20)]), Op::Commit] {
        harness.apply(&op);
        harness.check();
    }
    harness.model.memory[17] = None;
    harness.check();
}
