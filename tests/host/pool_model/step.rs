//! Steps, in the model and in the manager.

use wgpu_paged_attention::blocks::SeqId;
use wgpu_paged_attention::error::{ManagerError, ReserveError};
use wgpu_paged_attention::plan::StepPlan;

use crate::pool_model::harness::{Harness, schedule};
use crate::pool_model::model::{Grown, Step};

impl Harness {
    /// What `reserve` should say, found out by trying it on copies: how many blocks it takes.
    fn expect(&self, requests: &[(SeqId, u32)]) -> Result<usize, ReserveError> {
        let (model, layout) = (&self.model, &self.model.layout);
        if model.step.is_some() {
            return Err(ReserveError::StepOpen);
        }
        let mut tables: Vec<_> = model.seqs.iter().map(|seq| (seq.id, seq.blocks.clone())).collect();
        let (mut needed, mut left) = (0, Vec::new());
        for (request, &(id, new_tokens)) in requests.iter().enumerate() {
            let Some(seq) = model.seq(id) else {
                return Err(ReserveError::StaleSequence { request, seq: id });
            };
            if requests[..request].iter().any(|&(other, _)| other == id) {
                return Err(ReserveError::DuplicateSequence { request, seq: id });
            }
            let (len, max_seq_len) = (seq.len(), layout.max_seq_len());
            if len + new_tokens > max_seq_len {
                return Err(ReserveError::TooLong { request, len, new_tokens, max_seq_len });
            }
            if new_tokens == 0 {
                continue;
            }
            for (group, group_layout) in layout.groups().iter().enumerate() {
                let column = len as usize / model.size(group);
                if let Some(&Some(block)) = seq.blocks[group].get(column) {
                    let owners = tables.iter().filter(|(_, tables)| tables[group].contains(&Some(block))).count();
                    let longer_left = left.iter().any(|&(other, longer)| other == block && longer > len);
                    if owners > 1 || model.is_registered(block) || longer_left {
                        needed += 1;
                        left.push((block, len));
                        let own = tables.iter_mut().find(|(other, _)| *other == id).unwrap();
                        own.1[group][column] = Some(u32::MAX);
                    }
                }
                let blocks = group_layout.blocks_for(len + new_tokens) as usize;
                needed += blocks.saturating_sub(seq.blocks[group].len());
            }
        }
        let free = model.free.len() as u32;
        if needed > free as usize {
            return Err(ReserveError::OutOfBlocks { needed: needed as u64, free, total: layout.num_blocks() });
        }
        Ok(needed)
    }

    pub fn reserve(&mut self, requests: &[(SeqId, u32)], known: bool) {
        let want = self.expect(requests);
        // The question does not look for duplicates.
        if !matches!(want, Err(ReserveError::DuplicateSequence { .. })) {
            assert_eq!(self.cache.can_reserve(requests, 0), want.is_ok());
        }
        let got = if known {
            let texts: Vec<Vec<u32>> = requests.iter().map(|&(id, tokens)| self.upcoming(id, tokens)).collect();
            let requests: Vec<_> = requests.iter().zip(&texts).map(|(&(id, _), text)| (id, text.as_slice())).collect();
            self.cache.reserve_tokens(&requests, &mut self.plan)
        } else {
            self.cache.reserve(requests, &mut self.plan)
        };
        assert_eq!(got, want.map(|_| ()));
        let Ok(needed) = want else {
            if want != Err(ReserveError::StepOpen) {
                assert_eq!((self.plan.num_rows(), self.plan.upload_bytes()), (0, 148));
            }
            return;
        };
        let model = &mut self.model;
        let registry_before = model.registry.clone();
        let taken: Vec<u32> = model.free.drain(..needed).collect();
        taken.iter().for_each(|&block| model.evict(block));
        let named = requests.iter().map(|&(id, _)| id).collect();
        model.step = Some(Step { grown: vec![], named, known, taken: taken.clone(), copies: vec![], registry_before });
        let mut taken = taken.into_iter();
        for &(id, tokens) in requests.iter().filter(|&&(_, tokens)| tokens > 0) {
            let seq = model.seq(id).unwrap().clone();
            let mut sources = vec![None; model.num_groups()];
            for (group, copied) in sources.iter_mut().enumerate() {
                let column = seq.len() as usize / model.size(group);
                if let Some(&Some(block)) = seq.blocks[group].get(column) {
                    let owners = model.seqs.iter().filter(|seq| seq.has(block)).count();
                    // Should the step be abandoned, the longer one gets its block back.
                    let longer_left = model.step.as_ref().unwrap().grown.iter().any(|grown: &Grown| {
                        grown.sources.contains(&Some(block)) && model.seq(grown.id).unwrap().len() > seq.len()
                    });
                    if owners > 1 || model.is_registered(block) || longer_left {
                        let target = taken.next().unwrap();
                        model.seq_mut(id).blocks[group][column] = Some(target);
                        model.step.as_mut().unwrap().copies.push((block, target));
                        *copied = Some(block);
                    }
                }
                let blocks = model.layout.groups()[group].blocks_for(seq.len() + tokens) as usize;
                while model.seq(id).unwrap().blocks[group].len() < blocks {
                    model.seq_mut(id).blocks[group].push(taken.next());
                }
            }
            let blocks_before = seq.blocks;
            model.step.as_mut().unwrap().grown.push(Grown { id, tokens, sources, blocks_before });
        }
        assert_eq!(taken.next(), None);
        let copies: Vec<_> = self.plan.copies().iter().map(|copy| (copy.source.get(), copy.target.get())).collect();
        assert_eq!(copies, self.model.step.as_ref().unwrap().copies);
    }

    /// The next tokens of a sequence.
    fn upcoming(&self, id: SeqId, tokens: u32) -> Vec<u32> {
        let seq = self.model.seq(id);
        (0..tokens as usize).map(|at| seq.map_or(0, |seq| seq.token(seq.values.len() + at))).collect()
    }

    /// Does with the plan of the open step what a device would. Returns the new values of every sequence.
    fn run_on_device(&mut self) -> Vec<Vec<u64>> {
        let (model, layout) = (&self.model, &self.model.layout);
        let step = model.step.as_ref().unwrap();
        let is_target = |block| step.copies.iter().any(|&(_, target)| target == block);
        let mut fresh: Vec<u32> = step.taken.iter().copied().filter(|&block| !is_target(block)).collect();
        fresh.retain(|_| model.options.clear_freed());
        self.device.prepare(&self.plan, &fresh);

        let mut positions = self.plan.positions().iter();
        let mut slots: Vec<_> = self.plan.groups().iter().map(|group| group.slots().iter()).collect();
        let mut values = Vec::new();
        for grown in &step.grown {
            let mut seq = model.seq(grown.id).unwrap().clone();
            let first = seq.len();
            for position in first..first + grown.tokens {
                assert_eq!(positions.next(), Some(&(position as i32)));
                for (group, layout) in layout.groups().iter().enumerate() {
                    let (size, columns) = (layout.block_size(), layout.max_blocks_per_seq());
                    let block = self.device.tables[group][(grown.id.index() * columns + position / size) as usize];
                    assert_eq!(Some(block), seq.blocks[group][(position / size) as usize], "not uploaded");
                    assert_eq!(slots[group].next(), Some(&(block * size + position % size)));
                }
                seq.values.push(seq.next_value());
            }
            values.push(seq.values[first as usize..].to_vec());
        }
        assert!(positions.next().is_none() && slots.iter_mut().all(|slots| slots.next().is_none()));
        self.device.append(&self.plan, &values.concat());
        values
    }

    pub fn commit(&mut self) {
        if self.model.step.is_none() {
            return assert_eq!(self.cache.commit(&mut self.plan), Err(ManagerError::NoOpenStep));
        }
        let values = self.run_on_device();
        assert_eq!(self.cache.commit(&mut self.plan), Ok(()));
        let model = &mut self.model;
        let mut step = model.step.take().unwrap();
        model.evictions += (step.registry_before.len() - model.registry.len()) as u64;
        let grown = std::mem::take(&mut step.grown);
        model.step = Some(Step { grown: grown.clone(), ..step.clone() });
        for (grown, values) in grown.iter().zip(values) {
            let seq = model.seq_mut(grown.id);
            if step.known && seq.known == seq.values.len() {
                seq.known += grown.tokens as usize;
            }
            seq.values.extend(values);
            model.bear(grown.id, grown.tokens as usize);
            // The copy's source is let go.
            model.step.as_mut().unwrap().grown.remove(0);
            for source in grown.sources.iter().flatten() {
                model.free_unowned(*source);
                model.copies += 1;
            }
            model.register(grown.id);
            model.release_outside(grown.id);
        }
        model.step = None;
    }

    /// The manager has undone its step; `restored` if nothing had been submitted.
    fn undo(&mut self, restored: bool) {
        let model = &mut self.model;
        let Some(step) = model.step.take() else {
            return;
        };
        for block in step.taken.into_iter().rev() {
            model.free.push_front(block);
        }
        for grown in step.grown {
            model.seq_mut(grown.id).blocks = grown.blocks_before;
        }
        if restored {
            model.registry = step.registry_before;
        } else {
            model.evictions += (step.registry_before.len() - model.registry.len()) as u64;
        }
    }

    pub fn rollback(&mut self) {
        let want = if self.model.step.is_some() { Ok(()) } else { Err(ManagerError::NoOpenStep) };
        assert_eq!(self.cache.rollback(&mut self.plan), want);
        self.undo(true);
    }

    /// The device has done its work, but nobody knows that any more.
    pub fn abandon(&mut self) {
        if self.model.step.is_some() {
            self.run_on_device();
        }
        assert_eq!(self.cache.abandon(), self.model.step.is_some());
        self.undo(false);
        self.plan.clear();
    }

    pub fn meddle(&mut self, commit: bool) {
        let mut plan = StepPlan::new(schedule());
        let error = if commit { self.cache.commit(&mut plan) } else { self.cache.rollback(&mut plan) };
        let open = self.model.step.is_some();
        assert_eq!(error, Err(if open { ManagerError::WrongPlan } else { ManagerError::NoOpenStep }));
    }
}
