//! Which request computes what in the next step.

use std::collections::VecDeque;

use wgpu_paged_attention::blocks::{CacheManager, CacheStats, Domain, SeqId};
use wgpu_paged_attention::error::ReserveError;
use wgpu_paged_attention::plan::StepPlan;

use super::tokens::Tokens;
use super::{InService, ServeError, ServeOptions, StepWork};
use crate::trace::Log;

/// Of the blocks, kept free when a request is let in, so that it does not push out another at once.
const WATERMARK: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    pub seq: SeqId,
    pub request: usize,
    pub len: u32,
    pub new_tokens: u32,
}

#[derive(Debug)]
pub struct ObservedStep<'a> {
    pub manager: &'a CacheManager,
    pub plan: &'a StepPlan,
    pub growth: &'a [Growth],
    pub log: &'a Log,
    pub tokens: Tokens,
}

pub type ObserverError = Box<dyn std::error::Error + Send + Sync>;

pub trait StepObserver {
    /// Sees a step before it is committed.
    fn step(&mut self, step: &ObservedStep<'_>) -> Result<(), ObserverError>;
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lookups {
    pub(super) requests: usize,
    pub(super) tokens: u64,
    pub(super) hits: u64,
}

pub(super) struct Scheduler<'a> {
    log: &'a Log,
    options: &'a ServeOptions,
    pub(super) manager: CacheManager,
    plan: StepPlan,
    tokens: Tokens,
    pub(super) prefix_cache: bool,
    /// Requests that wait, those that were preempted in front.
    pub(super) waiting: VecDeque<InService>,
    /// The batch, in the order in which it was let in.
    pub(super) running: Vec<InService>,
    growth: Vec<Growth>,
    ids: Vec<u32>,
    /// The first request that waits did not fit, and nothing has changed since that could help it.
    blocked: bool,
    pub(super) lookups: Lookups,
    pub(super) recomputed_tokens: u64,
}

impl<'a> Scheduler<'a> {
    pub(super) fn new(log: &'a Log, options: &'a ServeOptions, paged: bool) -> Result<Self, ServeError> {
        if options.step_tokens == 0 {
            return Err(ServeError::ZeroStepTokens);
        }
        let layout = options.cache.clone().with_paged(paged).layout()?;
        let prefix_cache = paged && options.prefix_cache && log.tokens_per_id.is_some();
        Ok(Self {
            log,
            options,
            manager: CacheManager::with_options(&layout, &options.manager(prefix_cache))?,
            plan: StepPlan::new(options.schedule),
            tokens: Tokens::new(log.tokens_per_id),
            prefix_cache,
            waiting: VecDeque::new(),
            running: Vec::new(),
            growth: Vec::new(),
            ids: Vec::new(),
            blocked: false,
            lookups: Lookups::default(),
            recomputed_tokens: 0,
        })
    }

    pub(super) fn max_len(&self) -> u32 {
        let layout = self.manager.layout();
        layout.num_slots().min(layout.max_seq_len().into()) as u32
    }

    pub(super) fn open_step(&mut self, now_ns: u64) -> Result<Option<StepWork>, ServeError> {
        self.admit(now_ns)?;
        loop {
            self.choose();
            if self.growth.is_empty() {
                return Ok(None);
            }
            match self.reserve() {
                Ok(()) => break,
                Err(ReserveError::OutOfBlocks { .. }) => self.preempt()?,
                Err(error) => return Err(error.into()),
            }
        }
        let mut work = StepWork::default();
        let mut running = self.running.iter();
        for growth in &self.growth {
            let is_decode = running.find(|r| r.seq == Some(growth.seq)).is_some_and(InService::is_decoding);
            work.add(growth.len, growth.new_tokens, is_decode, self.options.window);
        }
        Ok(Some(work))
    }

    pub(super) fn show(&self, observer: &mut dyn StepObserver) -> Result<(), ObserverError> {
        observer.step(&ObservedStep {
            manager: &self.manager,
            plan: &self.plan,
            growth: &self.growth,
            log: self.log,
            tokens: self.tokens,
        })
    }

    /// Commits the open step. Hands the requests that have got a token to `on_token`, and then forgets the finished ones;
    /// the statistics are from before that.
    pub(super) fn close_step(&mut self, mut on_token: impl FnMut(&mut InService)) -> Result<CacheStats, ServeError> {
        let free = self.manager.num_free_blocks();
        self.manager.commit(&mut self.plan)?;
        // Blocks may have left the windows.
        self.blocked &= self.manager.num_free_blocks() <= free;
        let stats = self.manager.stats();
        let mut running = self.running.iter_mut();
        for growth in &self.growth {
            let Some(request) = running.find(|r| r.seq == Some(growth.seq)) else { continue };
            let len = request.len + growth.new_tokens;
            self.recomputed_tokens += u64::from(request.computed.min(len).saturating_sub(request.len));
            (request.len, request.computed) = (len, request.computed.max(len));
            if request.missing() == 0 {
                // The blocks of its prompt can be found now.
                self.blocked &= request.generated > 0;
                request.generated += 1;
                on_token(request);
            }
        }
        for request in self.running.extract_if(.., |request| request.is_finished()) {
            if let Some(seq) = request.seq {
                self.manager.release(seq)?;
            }
            self.blocked = false;
        }
        Ok(stats)
    }

    fn admit(&mut self, now_ns: u64) -> Result<(), ServeError> {
        self.blocked &= !self.running.is_empty();
        while !self.blocked && (self.running.len() as u32) < self.manager.layout().max_sequences() {
            let Some(&request) = self.waiting.front() else { break };
            let Some((seq, found)) = self.try_create(&request)? else {
                self.blocked = true;
                break;
            };
            self.waiting.pop_front();
            let mut request = InService { seq: Some(seq), len: found, ..request };
            match request.rank {
                Some(rank) => self.manager.set_rank(seq, rank)?,
                None => {
                    request.admitted_ns = now_ns;
                    request.rank = Some(self.manager.rank(seq)?);
                    self.lookups.requests += 1;
                    self.lookups.tokens += u64::from(request.prompt_tokens);
                    self.lookups.hits += u64::from(found);
                }
            }
            // One that comes back takes the place in the batch that its rank gives it.
            let place = self.running.partition_point(|other| other.rank > request.rank);
            self.running.insert(place, request);
        }
        Ok(())
    }

    fn try_create(&mut self, request: &InService) -> Result<Option<(SeqId, u32)>, ServeError> {
        let layout = self.manager.layout();
        let owned = |r: &InService| layout.blocks_for(r.wanted()).saturating_sub(layout.blocks_for(r.len));
        let promised: u32 = if layout.paged() { self.running.iter().map(owned).sum() } else { 0 };
        let free = self.manager.num_free_blocks().saturating_sub(promised);
        // An empty cache takes whatever fits at all.
        let spare = if self.running.is_empty() { 0 } else { (f64::from(layout.num_blocks()) * WATERMARK) as u32 };
        let needed = layout.blocks_for(request.wanted());
        if !self.prefix_cache {
            let fits = needed <= free.saturating_sub(if layout.paged() { spare } else { 0 });
            return Ok(if fits { Some((self.manager.create_sequence()?, 0)) } else { None });
        }
        self.ids.clear();
        let whole = &self.log.requests[request.number];
        self.tokens.extend(&mut self.ids, request.number as u64, whole, 0, request.wanted());
        // Blocks that are found and free would be taken all the same, so only those in use make it cheaper; that is known
        // once the sequence holds them.
        let before = self.manager.num_free_blocks();
        let (seq, found) = self.manager.create_sequence_with_tokens(&self.ids, &Domain::default())?;
        let pinned = before - self.manager.num_free_blocks();
        let layout = self.manager.layout();
        let rest = needed - layout.blocks_for(found);
        if u64::from(pinned) + u64::from(rest) + u64::from(spare) > u64::from(free) {
            self.manager.release(seq)?;
            return Ok(None);
        }
        Ok(Some((seq, found)))
    }

    fn choose(&mut self) {
        self.growth.clear();
        let mut room = self.options.step_tokens;
        for request in &self.running {
            let new_tokens = request.missing().min(room);
            if let (1.., Some(seq)) = (new_tokens, request.seq) {
                self.growth.push(Growth { seq, request: request.number, len: request.len, new_tokens });
                room -= new_tokens;
            }
        }
    }

    fn reserve(&mut self) -> Result<(), ReserveError> {
        if !self.prefix_cache {
            let requests: Vec<_> = self.growth.iter().map(|growth| (growth.seq, growth.new_tokens)).collect();
            return self.manager.reserve(&requests, &mut self.plan);
        }
        self.ids.clear();
        for &Growth { request, len, new_tokens, .. } in &self.growth {
            self.tokens.extend(&mut self.ids, request as u64, &self.log.requests[request], len, new_tokens);
        }
        let mut rest = self.ids.as_slice();
        let mut requests = Vec::with_capacity(self.growth.len());
        for growth in &self.growth {
            let (these, others) = rest.split_at(growth.new_tokens as usize);
            requests.push((growth.seq, these));
            rest = others;
        }
        self.manager.reserve_tokens(&requests, &mut self.plan)
    }

    fn preempt(&mut self) -> Result<(), ServeError> {
        // The last of the batch has the lowest rank; the manager knows best whose blocks that frees.
        let victims = self.manager.victims(1, None).unwrap_or_default();
        let lowest = victims.first().map(|victim| victim.seq).or(self.running.last().and_then(|request| request.seq));
        let Some(place) = self.running.iter().position(|request| request.seq == lowest) else { return Ok(()) };
        let mut request = self.running.remove(place);
        if let Some(seq) = request.seq.take() {
            self.manager.preempt(seq)?;
        }
        request.len = 0;
        let place = self.waiting.partition_point(|other| other.rank > request.rank);
        self.waiting.insert(place, request);
        // Until a request finishes, it would only come back to be pushed out again.
        self.blocked = true;
        Ok(())
    }
}
