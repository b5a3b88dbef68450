//! The manager, the model and the device side by side, and the operations outside of steps.

use std::collections::BTreeMap;

use wgpu_paged_attention::blocks::{BlockEvent, BlockId, CacheManager, ManagerOptions, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::error::{ManagerError, PoolError, PreemptError};
use wgpu_paged_attention::plan::{Schedule, StepPlan};
use wgpu_paged_attention::testkit::changed;

use crate::pool_model::Op;
use crate::pool_model::device::{CLEAR, Device, Fault};
use crate::pool_model::model::{Entry, Model, Noted, Seq, domain, value};

pub fn schedule() -> Schedule {
    let change = |it: &mut Schedule| (it.split_tokens, it.tile_tokens, it.chunk_split_tokens) = (3, 4, 1 << 30);
    changed(&Schedule::default(), change)
}

pub struct Harness {
    pub cache: CacheManager,
    pub plan: StepPlan,
    pub model: Model,
    pub device: Device,
    pub handles: Vec<SeqId>,
    /// The findable blocks, as somebody who only hears the events knows them: the key of each.
    pub heard: BTreeMap<u32, String>,
    /// Tokens whose ids may be told later, the latest last.
    pub noted: Vec<Noted>,
    fault: Fault,
}

impl Harness {
    pub fn new(config: &CacheConfig, options: ManagerOptions, fault: Fault) -> Self {
        let layout = config.layout().unwrap();
        Self {
            cache: CacheManager::with_options(&layout, &options).unwrap(),
            plan: StepPlan::new(schedule()),
            device: Device::new(&layout, fault),
            model: Model::new(layout, options),
            handles: Vec::new(),
            heard: BTreeMap::new(),
            noted: Vec::new(),
            fault,
        }
    }

    /// One of the latest handles.
    fn pick(&self, choice: usize) -> Option<SeqId> {
        let recent = self.handles.len().min(9);
        (recent > 0).then(|| self.handles[self.handles.len() - 1 - choice % recent])
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create => self.create(None),
            Op::CreateWith(text, domain) => {
                // None is 0, which is what an index holds where nobody wrote a token.
                let text: Vec<u32> = text.iter().map(|&odd| 1 + u32::from(odd)).collect();
                self.create(Some((&text, *domain)));
            }
            Op::Fork(choice) => self.pick(*choice).into_iter().for_each(|seq| self.fork(seq)),
            Op::AddIds(choice, count) => self.pick(*choice).into_iter().for_each(|seq| self.add_ids(seq, *count)),
            Op::Ahead(choice, steps) => self.pick(*choice).into_iter().for_each(|seq| self.ahead(seq, steps)),
            Op::TellNext(choice) => self.pick(*choice).into_iter().for_each(|seq| self.tell_next(seq)),
            Op::Note(choice) => {
                let noted = self.pick(*choice).and_then(|seq| self.note(seq));
                self.noted.extend(noted);
            }
            Op::AddNotedIds(choice, count) => {
                let recent = self.noted.len().min(5);
                if recent > 0 {
                    let noted = self.noted[self.noted.len() - 1 - choice % recent].clone();
                    self.tell(&noted, *count);
                }
            }
            Op::Truncate(choice, len) => self.pick(*choice).into_iter().for_each(|seq| self.truncate(seq, *len)),
            Op::Release(choice) => self.pick(*choice).into_iter().for_each(|seq| self.release(seq, false)),
            Op::Preempt(choice) => self.pick(*choice).into_iter().for_each(|seq| self.release(seq, true)),
            Op::Reserve(picks, known) => {
                let requests: Vec<_> =
                    picks.iter().filter_map(|&(choice, tokens)| Some((self.pick(choice)?, tokens))).collect();
                self.reserve(&requests, *known);
            }
            Op::Commit => self.commit(),
            Op::Rollback => self.rollback(),
            Op::Abandon => self.abandon(),
            Op::Meddle(commit) => self.meddle(*commit),
            Op::Reset => self.reset(),
            Op::Clear => self.clear(),
            Op::Swap(choices) => self.swap(choices),
            Op::Resize(num_blocks) => self.resize(*num_blocks),
            Op::Victims(missing, choice) => {
                let beneficiary = choice.and_then(|choice| self.pick(choice));
                self.victims(*missing, beneficiary);
            }
        }
        for event in self.cache.take_events() {
            match event {
                BlockEvent::Stored { block, key, parent, .. } => {
                    // What it follows was stored before.
                    assert!(parent.is_none_or(|parent| self.heard.values().any(|key| *key == parent.to_string())));
                    assert_eq!(self.heard.insert(block.get(), key.to_string()), None);
                }
                BlockEvent::Removed { block, key, .. } => {
                    assert_eq!(self.heard.remove(&block.get()), Some(key.to_string()))
                }
                BlockEvent::Cleared => self.heard.clear(),
            }
        }
    }

    fn create(&mut self, text: Option<(&[u32], u8)>) {
        let layout = self.model.layout.clone();
        let (tokens, number) = text.unwrap_or((&[], 0));
        let nothing = vec![vec![]; layout.num_groups()];
        let found = if self.model.options.prefix_cache() { self.model.find(tokens, number) } else { nothing };
        if text.is_some() {
            let cached = found[0].len() * self.model.block_size();
            assert_eq!(
                self.cache.cached_tokens(tokens, &domain(number)) as usize,
                cached,
                "another beginning is found"
            );
            assert_eq!(self.cache.can_admit(tokens, &domain(number), 0), self.has_room(tokens.len(), &found));
        }
        let result = match text {
            Some((tokens, number)) => self.cache.create_sequence_with_tokens(tokens, &domain(number)),
            None => self.cache.create_sequence().map(|seq| (seq, 0)),
        };
        let limit = layout.max_sequences();
        let (id, cached) = match result {
            Ok(created) => created,
            Err(error) => {
                let want = if self.model.seqs.len() as u32 == limit {
                    ManagerError::TooManySequences { limit }
                } else {
                    assert!(!layout.paged() && self.model.free.is_empty());
                    PoolError::OutOfBlocks { needed: 1, free: 0, total: layout.num_blocks() }.into()
                };
                return assert_eq!(error, want);
            }
        };
        assert!(!self.handles.contains(&id), "a handle is never given out twice");
        self.handles.push(id);
        let mut blocks = vec![vec![]; layout.num_groups()];
        blocks[0] = self.model.free.drain(..usize::from(!layout.paged())).map(Some).collect();
        for (blocks, found) in blocks.iter_mut().zip(&found) {
            for entry in found {
                let block = entry.as_ref().map(|entry| entry.block);
                self.model.free.retain(|&free| Some(free) != block);
                blocks.push(block);
            }
        }
        let values: Vec<u64> = found[0].iter().flatten().flat_map(|entry| entry.values.clone()).collect();
        assert_eq!(cached as usize, values.len());
        if self.model.options.prefix_cache() && text.is_some() {
            self.model.queries += tokens.len() as u64;
            self.model.hits += values.len() as u64;
        }
        // Values are those of the text, or a wrong block was found.
        let mut before = u64::from(number) << 32;
        for (&got, &token) in values.iter().zip(tokens) {
            before = value(before, token);
            assert_eq!(got, before, "wrong data");
        }
        let (known, registered, text) = (values.len(), found[0].len(), tokens.to_vec());
        let (found, born) = (registered, vec![(0, 0); known]);
        let seq =
            Seq { id, blocks, values, text, domain: number, known, taken: 0, registered, found, born, forgotten: 0 };
        self.model.seqs.push(seq);
    }

    fn has_room(&self, len: usize, found: &[Vec<Option<Entry>>]) -> bool {
        let (model, layout) = (&self.model, &self.model.layout);
        let needed = |(group, found): (usize, &Vec<Option<Entry>>)| {
            len.div_ceil(model.size(group)).max(usize::from(!layout.paged())) - found.len()
        };
        let needed: usize = found.iter().enumerate().map(needed).sum();
        let free_hits = found.iter().flatten().flatten().filter(|entry| model.free.contains(&entry.block)).count();
        model.step.is_none()
            && model.seqs.len() < layout.max_sequences() as usize
            && len <= layout.max_seq_len() as usize
            && needed <= model.free.len() - free_hits
    }

    /// What every operation on an idle sequence says if it is not one.
    fn refusal(&self, seq: SeqId) -> Option<ManagerError> {
        match self.model.seq(seq) {
            None => Some(ManagerError::StaleSequence { seq }),
            Some(_) => self.model.in_step(seq).then_some(ManagerError::SequenceInStep { seq }),
        }
    }

    fn fork(&mut self, seq: SeqId) {
        let result = self.cache.fork(seq);
        if let Some(error) = self.refusal(seq) {
            return assert_eq!(result, Err(error));
        }
        let limit = self.model.layout.max_sequences();
        if self.model.seqs.len() as u32 == limit {
            return assert_eq!(result, Err(ManagerError::TooManySequences { limit }));
        }
        let mut child = self.model.seq(seq).unwrap().clone();
        if child.values.is_empty() && !self.model.layout.paged() {
            let Some(block) = self.model.free.pop_front() else {
                let error = PoolError::OutOfBlocks { needed: 1, free: 0, total: self.model.layout.num_blocks() };
                return assert_eq!(result, Err(error.into()));
            };
            child.blocks = vec![vec![Some(block)]];
        }
        let id = result.unwrap();
        self.handles.push(id);
        (child.id, child.taken) = (id, 0);
        // Another branch of the text.
        child.text.resize(child.values.len(), 1);
        child.text.push(3);
        self.model.seqs.push(child);
    }

    /// Takes the tokens of a sequence that lack ids and were not taken yet.
    fn note(&mut self, seq: SeqId) -> Option<Noted> {
        let handle = self.cache.take_late_tokens(seq);
        let prefix_cache = self.model.options.prefix_cache();
        if self.model.seq(seq).is_none() {
            assert_eq!(handle, Err(ManagerError::StaleSequence { seq }));
            return None;
        }
        let state = self.model.seq_mut(seq);
        let (handle, first) = (handle.unwrap(), state.taken.max(if prefix_cache { state.known } else { 0 }));
        state.taken = state.values.len();
        assert_eq!((handle.seq(), handle.positions()), (seq, first as u32..state.len()));
        let other = u32::from(self.fault == Fault::OtherIds);
        let ids = (first..state.values.len()).map(|at| state.token(at) + other).collect();
        let born = state.born[first..].iter().map(|born| born.0).collect();
        Some(Noted { handle, first, ids, born })
    }

    /// Tells ids of the next tokens without one.
    fn add_ids(&mut self, seq: SeqId, count: Option<u32>) {
        if let Some(noted) = self.note(seq) {
            self.tell(&noted, count);
        }
    }

    /// Steps of one sequence that are committed, each with tokens to be told later, before any of their ids is.
    fn ahead(&mut self, seq: SeqId, steps: &[u32]) {
        for &tokens in steps {
            self.reserve(&[(seq, tokens)], false);
            self.commit();
            let noted = self.note(seq);
            self.noted.extend(noted);
        }
    }

    /// Tells those tokens of a sequence that come next, if they were noted.
    fn tell_next(&mut self, seq: SeqId) {
        let Some(state) = self.model.seq(seq) else { return };
        let next =
            |noted: &&Noted| noted.handle.seq() == seq && noted.first == state.known && self.model.left(noted) > 0;
        if let Some(noted) = self.noted.iter().rfind(next).cloned() {
            self.tell(&noted, None);
        }
    }

    /// Tells `count` ids of some tokens, or one for each that is left, whatever has become of them.
    fn tell(&mut self, noted: &Noted, count: Option<u32>) {
        let count = count.map_or_else(|| self.model.left(noted), |count| count as usize);
        let want = self.model.may_tell(noted, count);
        let mut ids = noted.ids.clone();
        ids.resize(count, 1);
        assert_eq!(self.cache.add_token_ids(noted.handle, &ids), want);
        if want.is_err() || !self.model.options.prefix_cache() {
            return;
        }
        let (model, seq) = (&mut self.model, noted.handle.seq());
        model.seq_mut(seq).known += count;
        // Blocks that the open step reuses may come back, to their places among the others.
        if model.step.as_ref().is_none_or(|step| step.registry_before.len() == model.registry.len()) {
            model.register(seq);
            if let Some(step) = &mut model.step {
                step.registry_before = model.registry.clone();
            }
        }
    }

    fn truncate(&mut self, seq: SeqId, len: u32) {
        let result = self.cache.truncate(seq, len);
        if let Some(error) = self.refusal(seq) {
            return assert_eq!(result, Err(error));
        }
        let state = self.model.seq(seq).unwrap().clone();
        if len > state.len() {
            return assert_eq!(result, Err(ManagerError::TruncateBeyond { seq, len, seq_len: state.len() }));
        }
        let gone = |len: u32| {
            let lacks = |(group, blocks): (usize, &Vec<Option<u32>>)| {
                let needed = |&column: &usize| !self.model.is_outside(group, len.into(), column);
                (0..blocks.len()).filter(needed).any(|column| blocks[column].is_none())
            };
            state.blocks.iter().enumerate().any(lacks)
        };
        if len > 0 && gone(len) {
            let shortest = (len..=state.len()).find(|&len| !gone(len)).unwrap();
            return assert_eq!(result, Err(ManagerError::Released { seq, len, shortest }));
        }
        assert_eq!(result, Ok(()));
        let size = self.model.block_size();
        for column in (state.found.max(len as usize / size)..state.registered).rev() {
            let Some(block) = state.blocks[0][column] else { continue };
            let holds = |model: &Model, group: usize, column: usize, block: u32| {
                let has_all = |other: &&Seq| other.registered * size >= (column + 1) * model.size(group);
                let mut others = model.seqs.iter().filter(|other| other.id != seq).filter(has_all);
                others.any(|other| other.blocks[group][column] == Some(block))
            };
            // What another sequence holds rests on all that stands before it.
            if holds(&self.model, 0, column, block) {
                break;
            }
            self.model.withdraw(block);
            for group in 1..self.model.num_groups() {
                for (column, _) in self.model.ending_in(column, group) {
                    if let Some(block) = state.blocks[group][column].filter(|&b| !holds(&self.model, group, column, b))
                    {
                        self.model.withdraw(block);
                    }
                }
            }
        }
        let least = usize::from(!self.model.layout.paged());
        self.model.cut_blocks(seq, len, least);
        let state = self.model.seq_mut(seq);
        state.values.truncate(len as usize);
        state.born.truncate(len as usize);
        state.forgotten = state.forgotten.min(len as usize);
        state.known = state.known.min(len as usize);
        state.taken = state.taken.min(len as usize);
        state.registered = state.registered.min(len as usize / size);
        state.found = state.found.min(len as usize / size);
        if len % 2 == 1 {
            // Rejected: another token comes instead.
            state.text.resize(len as usize, 1);
            state.text.push(4);
        }
    }

    fn release(&mut self, seq: SeqId, preempted: bool) {
        let result = if preempted { self.cache.preempt(seq).map(|_| ()) } else { self.cache.release(seq) };
        if let Some(error) = self.refusal(seq) {
            return assert_eq!(result, Err(error));
        }
        assert_eq!(result, Ok(()));
        self.model.preemptions += u64::from(preempted);
        self.model.cut_blocks(seq, 0, 0);
        self.model.seqs.retain(|known| known.id != seq);
    }

    fn reset(&mut self) {
        let used = self.model.layout.num_blocks() - self.model.free.len() as u32;
        let want = match (&self.model.step, used) {
            (Some(_), _) => Err(ManagerError::StepOpen),
            (None, 0) => Ok(()),
            (None, used) => Err(ManagerError::PrefixCacheInUse { used }),
        };
        assert_eq!(self.cache.reset_prefix_cache(), want);
        if want.is_ok() {
            self.model.registry.clear();
        }
    }

    fn resize(&mut self, num_blocks: u32) {
        let (layout, model) = (self.model.layout.clone(), &mut self.model);
        let (old, limit) = (layout.num_blocks(), layout.max_num_blocks());
        let used = (0..old).rev().find(|&block| !model.free.contains(&block));
        let least = used.map_or(1, |block| block + 1);
        assert_eq!(self.cache.min_num_blocks(), least);
        let want = match used.and_then(BlockId::new) {
            _ if model.step.is_some() => Err(ManagerError::StepOpen),
            _ if num_blocks == 0 || num_blocks > limit => Err(PoolError::PoolSize { num_blocks, limit }.into()),
            Some(block) if num_blocks < least => Err(PoolError::TailInUse { num_blocks, block, least }.into()),
            _ => Ok(()),
        };
        assert_eq!(self.cache.resize(num_blocks), want);
        if want.is_err() {
            return;
        }
        // New blocks go out first.
        (old..num_blocks).rev().for_each(|block| model.free.push_front(block));
        model.free.retain(|&block| block < num_blocks);
        let cached = model.registry.len();
        model.registry.retain(|entry| entry.block < num_blocks);
        model.evictions += (cached - model.registry.len()) as u64;
        self.device.resize(num_blocks);
        model.layout = self.cache.layout().clone();
        assert_eq!((model.layout.num_blocks(), self.cache.num_blocks()), (num_blocks, num_blocks));
    }

    fn clear(&mut self) {
        let mut blocks = Vec::new();
        self.cache.take_clears(&mut blocks);
        assert!(self.model.options.clear_freed() || blocks.is_empty());
        for block in blocks {
            assert!(self.model.free.contains(&block.get()) && !self.model.is_registered(block.get()));
            self.device.block_mut(block.get()).fill(CLEAR);
        }
        // What is free and cannot be found is clear now, if it was ever used.
        for &block in self.model.free.iter().filter(|_| self.model.options.clear_freed()) {
            let clear = self.device.block(block).iter().all(|&value| value == CLEAR || value == 77);
            let pending = self
                .model
                .step
                .as_ref()
                .is_some_and(|step| step.registry_before.iter().any(|entry| entry.block == block));
            assert!(clear || self.model.is_registered(block) || pending, "block {block} has somebody's old data");
        }
    }

    fn swap(&mut self, choices: &[usize]) {
        let mut ids: Vec<SeqId> = choices.iter().filter_map(|&choice| self.pick(choice)).collect();
        ids.sort_unstable();
        ids.dedup();
        if let Some((&seq, error)) = ids.iter().find_map(|seq| Some((seq, self.refusal(*seq)?))) {
            return assert_eq!(self.cache.export_sequence(seq), Err(error));
        }
        let records: Vec<_> = ids.iter().map(|&seq| self.cache.export_sequence(seq).unwrap()).collect();
        for (&seq, record) in ids.iter().zip(&records) {
            let state = self.model.seq(seq).unwrap();
            let named: Vec<u32> = (0..state.values.len()).map(|position| state.token(position)).collect();
            assert!(record.tokens.as_ref().is_none_or(|tokens| *tokens == named), "wrong tokens");
        }
        if self.model.step.is_some() {
            return assert_eq!(self.cache.import_sequences(&records), Err(ManagerError::StepOpen));
        }
        let blocks = records.iter().flat_map(|record| record.tables()).flatten().flatten();
        let host: BTreeMap<u32, Vec<u64>> =
            blocks.map(|&block| (block.get(), self.device.block(block.get()).to_vec())).collect();
        let mut old = Vec::new();
        for &seq in &ids {
            old.push(self.model.seq(seq).unwrap().clone());
            self.release(seq, true);
        }
        let (needed, free) = (host.len() as u64, self.model.free.len() as u32);
        if needed > free.into() {
            // Others kept what was shared, so there is less room than before.
            let total = self.model.layout.num_blocks();
            let error = PoolError::OutOfBlocks { needed, free, total }.into();
            return assert_eq!(self.cache.import_sequences(&records), Err(error));
        }
        let imported = self.cache.import_sequences(&records).unwrap();
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        for (number, block) in imported.blocks.iter().map(|&(number, block)| (number.get(), block.get())) {
            assert_eq!(self.model.free.pop_front(), Some(block));
            self.model.evictions += u64::from(self.model.is_registered(block));
            self.model.evict(block);
            self.device.block_mut(block).copy_from_slice(&host[&number]);
            assert_eq!(numbers.insert(number, block), None);
        }
        assert!(numbers.keys().eq(host.keys()));
        for (mut seq, id) in old.into_iter().zip(imported.sequences) {
            self.handles.push(id);
            seq.id = id;
            seq.blocks.iter_mut().flatten().flatten().for_each(|block| *block = numbers[block]);
            let complete = seq.known == seq.values.len() && seq.blocks[0].iter().all(Option::is_some);
            seq.known = if complete && self.model.options.prefix_cache() { seq.known } else { 0 };
            (seq.taken, seq.registered, seq.found, seq.forgotten) = (0, 0, 0, 0);
            seq.born.clear();
            let len = seq.values.len();
            self.model.seqs.push(seq);
            self.model.bear(id, len);
        }
    }

    fn victims(&mut self, missing: u64, beneficiary: Option<SeqId>) {
        let result = self.cache.victims(missing, beneficiary);
        if let Some(seq) = beneficiary.filter(|&seq| self.model.seq(seq).is_none()) {
            return assert_eq!(result, Err(PreemptError::StaleSequence { seq }));
        }
        let limit = beneficiary.map(|seq| self.cache.rank(seq).unwrap());
        let may = |seq: &&Seq| {
            let rank = self.cache.rank(seq.id).unwrap();
            !self.model.in_step(seq.id) && limit.is_none_or(|limit| rank < limit)
        };
        let candidates: Vec<SeqId> = self.model.seqs.iter().filter(may).map(|seq| seq.id).collect();
        match result {
            Err(error) => {
                let reclaimable = self.would_free(&candidates);
                assert!(reclaimable < missing);
                assert_eq!(error, PreemptError::NotEnough { missing, reclaimable });
            }
            Ok(victims) => {
                let ids: Vec<SeqId> = victims.iter().map(|victim| victim.seq).collect();
                assert!(ids.iter().all(|id| candidates.contains(id)));
                assert!(self.would_free(&ids) >= missing);
                assert_eq!(victims.iter().map(|victim| u64::from(victim.blocks)).sum::<u64>(), self.would_free(&ids));
                for &spared in &ids {
                    let others: Vec<SeqId> = ids.iter().copied().filter(|&id| id != spared).collect();
                    assert!(self.would_free(&others) < missing, "a victim that does not help");
                }
            }
        }
    }

    /// Blocks that would be free without these sequences.
    fn would_free(&self, ids: &[SeqId]) -> u64 {
        let freed = |&block: &u32| {
            let owners = self.model.owners(block);
            let leaving = ids.iter().filter(|&&id| self.model.seq(id).unwrap().has(block)).count();
            owners > 0 && owners == leaving
        };
        (0..self.model.layout.num_blocks()).filter(freed).count() as u64
    }
}
