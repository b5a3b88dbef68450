//! Steps: reserve, then commit or roll back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::blocks::manager::reserve::{Extension, Part, Request};
use crate::blocks::{BlockId, CacheManager, SeqId};
use crate::error::{ManagerError, ReserveError};
use crate::plan::{StepPlan, Ticket};

/// The open step; kept when it closes, for its memory only.
#[derive(Debug, Default)]
pub(super) struct OpenStep {
    /// The number of the open step, 0 between steps; plans look here whether theirs still is.
    open: Arc<AtomicU64>,
    /// Counts the calls of `reserve`, so that no step is mistaken for another.
    pub(super) number: u64,
    pub(super) extensions: Vec<Extension>,
    /// Of every extension, one for each table.
    pub(super) parts: Vec<Part>,
    /// The new tokens of all extensions, if their ids are known.
    pub(super) tokens: Vec<u32>,
    pub(super) tokens_known: bool,
}

impl OpenStep {
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) != 0
    }

    /// The extensions, each with its parts, one for each of `num_groups`; those of a step that has closed are of no meaning.
    pub(super) fn extensions(&self, num_groups: usize) -> impl Iterator<Item = (&Extension, &[Part])> {
        self.extensions.iter().zip(self.parts.chunks_exact(num_groups.max(1)))
    }

    /// Blocks that are copied, and let go by the sequences that write when the step is committed.
    pub(super) fn sources(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.parts.iter().filter_map(|part| part.source)
    }

    fn close(&self) {
        self.open.store(0, Ordering::Relaxed);
    }
}

impl Drop for OpenStep {
    fn drop(&mut self) {
        self.close();
    }
}

/// A step that is open until it is committed; dropped before, it is undone.
///
/// Made by [`CacheManager::step`] and [`CacheManager::step_tokens`].
#[derive(Debug)]
#[must_use = "a step that is dropped is undone"]
pub struct StepGuard<'a> {
    manager: &'a mut CacheManager,
    plan: &'a mut StepPlan,
    closed: bool,
}

impl StepGuard<'_> {
    /// What the step asks of the device.
    pub fn plan(&self) -> &StepPlan {
        self.plan
    }

    /// The manager, with the step open.
    pub fn manager(&self) -> &CacheManager {
        self.manager
    }

    /// As [`CacheManager::commit`]: the sequences are longer now.
    pub fn commit(mut self) {
        self.closed = true;
        self.manager.advance();
    }

    /// As [`CacheManager::rollback`], for a step of which nothing was submitted.
    pub fn rollback(mut self) {
        self.closed = true;
        self.manager.undo(true);
        self.plan.clear();
    }
}

impl Drop for StepGuard<'_> {
    /// As [`CacheManager::abandon`]: the device may have begun the step.
    fn drop(&mut self) {
        if !self.closed {
            self.manager.undo(false);
            self.plan.clear();
        }
    }
}

impl CacheManager {
    /// [`reserve`](Self::reserve)s a step that is undone unless it reaches [`StepGuard::commit`], so that a `?` on the way
    /// leaves no step open.
    ///
    /// A guard that is dropped cannot know what was submitted, so it [`abandon`](Self::abandon)s the step: tables, lengths
    /// and free blocks are as before, but cached blocks that the step took may be overwritten and are not found again.
    /// [`StepGuard::rollback`] keeps these as well.
    ///
    /// ```
    /// # use wgpu_paged_attention::{blocks::CacheManager, config::CacheConfig, plan::{Schedule, StepPlan}};
    /// # let mut manager = CacheManager::new(&CacheConfig::new(1, 2, 64).with_num_blocks(8).layout()?)?;
    /// # let (seq, mut plan) = (manager.create_sequence()?, StepPlan::new(Schedule::default()));
    /// let step = manager.step(&[(seq, 20)], &mut plan)?;
    /// assert_eq!(step.plan().num_rows(), 20); // begin, record and submit it here
    /// step.commit();
    /// assert_eq!(manager.seq_len(seq)?, 20);
    ///
    /// drop(manager.step(&[(seq, 1)], &mut plan)?);
    /// assert_eq!(manager.seq_len(seq)?, 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn step<'a>(
        &'a mut self,
        requests: &[(SeqId, u32)],
        plan: &'a mut StepPlan,
    ) -> Result<StepGuard<'a>, ReserveError> {
        self.reserve(requests, plan)?;
        Ok(StepGuard { manager: self, plan, closed: false })
    }

    /// As [`step`](Self::step), for tokens whose ids are known; see [`reserve_tokens`](Self::reserve_tokens).
    pub fn step_tokens<'a>(
        &'a mut self,
        requests: &[(SeqId, &[u32])],
        plan: &'a mut StepPlan,
    ) -> Result<StepGuard<'a>, ReserveError> {
        self.reserve_tokens(requests, plan)?;
        Ok(StepGuard { manager: self, plan, closed: false })
    }

    /// Takes the blocks for `new_tokens` more tokens of each sequence and describes the step in `plan`.
    ///
    /// The rows of the plan follow the requests in their order; a request for no tokens adds none. The sequences become
    /// longer at [`commit`](Self::commit) only. Ids that are not known yet, as those of a step that is planned while the
    /// one before it still runs, or of drafts before they are verified, are given later by
    /// [`add_token_ids`](Self::add_token_ids): see there for several steps in one submit.
    ///
    /// # Errors
    /// [`ReserveError`]; counts, tables and the order of the free blocks are then as before, and `plan` is empty. Only
    /// [`ReserveError::StepOpen`] leaves `plan` alone if it is the plan of the open step.
    pub fn reserve(&mut self, requests: &[(SeqId, u32)], plan: &mut StepPlan) -> Result<(), ReserveError> {
        let requests = requests.iter().map(|&(seq, new_tokens)| Request { seq, new_tokens, tokens: &[] });
        self.begin(requests, false, plan)
    }

    /// As [`reserve`](Self::reserve), for tokens whose ids are given: blocks that they fill can be found in the prefix
    /// cache once the step is committed.
    ///
    /// Ids of a sequence that has grown without some are not taken; [`add_token_ids`](Self::add_token_ids) them in order. Drafts
    /// that may be rejected are better told after they are verified: until [`truncate`](Self::truncate) they can be found.
    pub fn reserve_tokens(&mut self, requests: &[(SeqId, &[u32])], plan: &mut StepPlan) -> Result<(), ReserveError> {
        let requests = requests.iter().map(|&(seq, tokens)| {
            // More than u32::MAX tokens are too many as well.
            Request { seq, new_tokens: tokens.len().try_into().unwrap_or(u32::MAX), tokens }
        });
        self.begin(requests, true, plan)
    }

    fn begin<'a>(
        &mut self,
        requests: impl ExactSizeIterator<Item = Request<'a>> + Clone,
        tokens_known: bool,
        plan: &mut StepPlan,
    ) -> Result<(), ReserveError> {
        let _span = tracing::trace_span!("paged.reserve", step = self.step.number + 1).entered();
        if self.step.is_open() {
            if self.check_open(plan).is_err() {
                plan.clear();
            }
            return Err(ReserveError::StepOpen);
        }
        plan.clear();
        self.step.extensions.clear();
        self.step.parts.clear();
        self.step.tokens.clear();
        self.step.tokens_known = tokens_known && self.store.prefix().is_some();
        self.step.number += 1;
        if let Err(error) = self.plan_extensions(requests, plan) {
            tracing::debug!(%error, "refused");
            self.step.sources().for_each(|source| self.store.stay(source));
            plan.clear();
            return Err(error);
        }
        self.take_blocks(plan);
        self.step.open.store(self.step.number, Ordering::Relaxed);
        plan.ticket = Some(Ticket::new(&self.step.open, self.step.number));
        Ok(())
    }

    /// Closes the open step: its sequences are now longer, and the device is taken to know their tables.
    ///
    /// Full blocks of known tokens enter the prefix cache, and blocks that left the windows return to the pool. What the
    /// plan holds stays readable.
    ///
    /// # Errors
    /// [`ManagerError::NoOpenStep`] or [`ManagerError::WrongPlan`].
    pub fn commit(&mut self, plan: &mut StepPlan) -> Result<(), ManagerError> {
        self.check_open(plan)?;
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        let _span = tracing::trace_span!("paged.commit", step = self.step.number).entered();
        self.note_peak();
        self.tally.evictions += self.store.settle_evictions();
        let mut first_token = 0;
        for at in 0..self.step.extensions.len() {
            let extension = self.step.extensions[at];
            if self.step.tokens_known {
                self.note_step_tokens(&extension, first_token);
                first_token += extension.new_tokens as usize;
            }
            self.let_go_of_sources(at, &extension);
            let seq = &mut self.sequences[extension.row as usize];
            if let Some(late) = self.late.as_mut().filter(|_| seq.known <= seq.len) {
                late.push(extension.row, seq.len, self.step.number);
            }
            // Checked against max_seq_len when the step was reserved.
            seq.len += extension.new_tokens;
            let len = seq.len;
            self.register_full(extension.row);
            for group in &mut self.groups {
                let state = group.state_mut(extension.row);
                state.uploaded = state.num_blocks;
                if group.release_outside(extension.row, len, &mut self.store) {
                    self.era = self.era.wrapping_add(1).max(1);
                    group.state_mut(extension.row).era = self.era;
                }
            }
        }
        self.step.close();
    }

    /// The copies that an extension asked for are made: what they were made of is not its sequence's any more.
    fn let_go_of_sources(&mut self, at: usize, extension: &Extension) {
        for idx in 0..self.groups.len() {
            if let Some(source) = self.step.parts[at * self.groups.len() + idx].source {
                if idx == 0 {
                    self.copy_tokens(extension, source);
                }
                self.store.stay(source);
                self.store.give_back(source);
                self.tally.copies += 1;
            }
        }
    }

    /// Undoes the open step: the blocks it took are free again, in the order they had before, and those that were cached
    /// can be found again. Empties the plan.
    ///
    /// The step's work must not have been submitted, for it may have overwritten what was cached; if it was,
    /// [`abandon`](Self::abandon) the step.
    ///
    /// # Errors
    /// [`ManagerError::NoOpenStep`] or [`ManagerError::WrongPlan`].
    pub fn rollback(&mut self, plan: &mut StepPlan) -> Result<(), ManagerError> {
        self.check_open(plan)?;
        plan.clear();
        self.undo(true);
        Ok(())
    }

    /// Undoes whatever step is open, for callers that have lost its plan or do not know what the device has done of it.
    /// Returns whether there was one.
    ///
    /// As [`rollback`](Self::rollback), but cached blocks that the step took are not found again.
    pub fn abandon(&mut self) -> bool {
        let open = self.step.is_open();
        if open {
            self.undo(false);
        }
        open
    }

    /// Undoes the open step. Its evictions are final unless they can be `restored`.
    fn undo(&mut self, restored: bool) {
        if !restored {
            self.tally.evictions += self.store.settle_evictions();
        }
        let _span = tracing::trace_span!("paged.rollback", step = self.step.number).entered();
        let OpenStep { extensions, parts, .. } = &self.step;
        for (extension, parts) in extensions.iter().zip(parts.chunks_exact(self.groups.len())).rev() {
            for (group, part) in self.groups.iter_mut().zip(parts).rev() {
                group.give_up(extension.row, part, &mut self.store);
            }
        }
        self.step.close();
    }

    fn check_open(&self, plan: &StepPlan) -> Result<(), ManagerError> {
        if !self.step.is_open() {
            return Err(ManagerError::NoOpenStep);
        }
        match &plan.ticket {
            Some(ticket) if ticket.is_of(&self.step.open) => Ok(()),
            _ => Err(ManagerError::WrongPlan),
        }
    }
}
