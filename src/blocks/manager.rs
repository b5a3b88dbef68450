//! Sequences and what they own; the steps by which they grow are in `step.rs` and `reserve.rs`.

mod block_store;
mod check;
mod clear;
mod export;
mod group;
mod late;
mod options;
mod preempt;
mod prefix;
mod reserve;
mod sharing;
mod stats;
mod step;
mod window;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use crate::blocks::{BlockEvent, BlockId, BlockTables, Domain, SeqId};
use crate::error::ManagerError;
use crate::layout::KvLayout;

pub use self::export::{Imported, SequenceRecord};
pub use self::late::LateTokens;
pub use self::options::{MAX_LATE_STEPS, ManagerOptions};
pub use self::preempt::{PreemptMethod, Rank, Victim};
pub use self::stats::CacheStats;
pub use self::step::StepGuard;

use self::block_store::Store;
use self::group::{Group, TableState};
use self::late::LateRuns;
use self::reserve::{Extension, Part};
use self::step::OpenStep;

/// What the manager knows about one sequence, whatever tables it has.
#[derive(Clone, Copy, Debug, Default)]
struct Sequence {
    generation: u32,
    live: bool,
    /// Tokens in the cache; those of an open step are not counted.
    len: u32,
    /// Leading tokens whose ids the prefix index knows.
    known: u32,
    /// Leading tokens that were taken, to be told their ids, or more of them are known.
    taken: u32,
    /// Leading columns of the first table that are in the prefix index.
    registered: u32,
    /// Leading columns of it that were found there, not filled by this sequence or one it was forked from.
    found: u32,
    /// The last step, open or failed, that named this sequence.
    step: u64,
    /// Its part in that step, if it has one.
    part: u32,
    rank: Rank,
}

/// Owns the blocks of a cache and deals them out to sequences, step by step.
///
/// A step is a transaction: [`reserve`](Self::reserve) takes the blocks for all its new tokens or none, then the caller
/// records and submits the work, and [`commit`](Self::commit) makes the sequences longer, or
/// [`rollback`](Self::rollback) puts every block back where it was. One step is open at a time.
///
/// Blocks may have several owners: [`fork`](Self::fork) shares them between branches, and with
/// [`ManagerOptions::prefix_cache`] sequences share the blocks of equal beginnings. No shared block is ever written; its
/// writer gets a copy first, which the plan asks of the device.
///
/// Every method rejects a handle that was released or comes from another manager, with
/// [`ManagerError::StaleSequence`]; those that change or export a sequence reject one that the open step names, with
/// [`ManagerError::SequenceInStep`]. After an error nothing has changed.
///
/// ```
/// use wgpu_paged_attention::{blocks::CacheManager, config::CacheConfig, plan::{Schedule, StepPlan}};
///
/// let layout = CacheConfig::new(1, 2, 64).with_num_blocks(8).layout()?;
/// let mut cache = CacheManager::new(&layout)?;
/// let mut plan = StepPlan::new(Schedule::default());
///
/// let seq = cache.create_sequence()?;
/// cache.reserve(&[(seq, 20)], &mut plan)?; // a prompt of 20 tokens: two blocks of 16
/// assert_eq!(plan.num_rows(), 20);
/// cache.commit(&mut plan)?;
///
/// cache.reserve(&[(seq, 1)], &mut plan)?; // one more token fits into the second block
/// assert_eq!(plan.slots(), [20]);
/// assert!(plan.updates().is_empty());
/// cache.commit(&mut plan)?;
/// assert_eq!(cache.seq_len(seq)?, 21);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CacheManager {
    layout: KvLayout,
    store: Store,
    /// The tables, and what belongs to one of them each.
    groups: Vec<Group>,
    sequences: Vec<Sequence>,
    /// Of every row, where prefixes are cached.
    domains: Vec<Option<Arc<Domain>>>,
    /// Of sequences that are created without one.
    no_domain: Arc<Domain>,
    /// Rows that [`create_sequence`](Self::create_sequence) may give out, the next one last.
    free_rows: Vec<u32>,
    num_sequences: u32,
    swap_from_tokens: Option<u32>,
    /// Where prefixes are cached.
    late: Option<LateRuns>,
    step: OpenStep,
    /// The counts of what has happened so far; the state of now is added to them by [`stats`](Self::stats).
    tally: CacheStats,
    /// Sequences created so far, which ranks them.
    arrivals: u64,
    /// The latest era of a table. It begins at random, so that no plan takes one manager's tables for another's.
    era: u64,
    /// Tells the plans and handles of different managers apart.
    id: u64,
}

impl CacheManager {
    /// A manager without sequences; all blocks are free.
    ///
    /// # Errors
    /// [`ManagerError::HostMemory`] or [`PoolError::HostMemory`](crate::error::PoolError::HostMemory) if the
    /// bookkeeping does not fit into memory.
    pub fn new(layout: &KvLayout) -> Result<Self, ManagerError> {
        Self::with_options(layout, &ManagerOptions::default())
    }

    /// A manager that does more than handing out blocks.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`ManagerError::LateSteps`], or [`ManagerError::NotPaged`] for a
    /// prefix cache over a contiguous one.
    pub fn with_options(layout: &KvLayout, options: &ManagerOptions) -> Result<Self, ManagerError> {
        if options.prefix_cache && !layout.paged() {
            return Err(ManagerError::NotPaged);
        }
        if options.late_steps > MAX_LATE_STEPS {
            return Err(ManagerError::LateSteps { late_steps: options.late_steps, limit: MAX_LATE_STEPS });
        }
        let store = Store::new(layout, options)?;
        let rows = layout.max_sequences();
        let per_row = size_of::<Sequence>()
            + size_of::<Option<Arc<Domain>>>()
            + size_of::<u32>()
            + size_of::<Extension>()
            + size_of::<Part>() * layout.num_groups();
        let row_bytes: u64 = layout.groups().iter().map(Group::row_bytes).sum();
        let bytes = u64::from(rows) * (row_bytes + per_row as u64);
        let no_memory = ManagerError::HostMemory { bytes };

        let group = |group: &KvLayout| Group::new(group.clone(), options.window_slack);
        let groups: Vec<Group> = layout.groups().iter().map(group).collect::<Option<_>>().ok_or(no_memory)?;
        let mut sequences = Vec::new();
        let mut domains = Vec::new();
        let mut free_rows = Vec::new();
        let mut step = OpenStep::default();
        sequences
            .try_reserve_exact(rows as usize)
            .and_then(|()| domains.try_reserve_exact(rows as usize))
            .and_then(|()| free_rows.try_reserve_exact(rows as usize))
            .and_then(|()| step.extensions.try_reserve_exact(rows as usize))
            .and_then(|()| step.parts.try_reserve_exact(rows as usize * groups.len()))
            .map_err(|_| no_memory)?;
        sequences.resize(rows as usize, Sequence::default());
        domains.resize(rows as usize, None);
        free_rows.extend((0..rows).rev());
        let late = options.prefix_cache.then(|| LateRuns::new(rows, options.late_steps));
        let late = late.transpose().map_err(|bytes| ManagerError::HostMemory { bytes })?;

        Ok(Self {
            layout: layout.clone(),
            store,
            groups,
            sequences,
            domains,
            no_domain: Arc::default(),
            free_rows,
            num_sequences: 0,
            swap_from_tokens: options.swap_from_tokens,
            late,
            step,
            tally: CacheStats::default(),
            arrivals: 0,
            era: RandomState::new().build_hasher().finish(),
            id: RandomState::new().build_hasher().finish(),
        })
    }

    /// The shape of the cache.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The tables of all sequences, in the first group of layers.
    pub fn tables(&self) -> &BlockTables {
        &self.groups[0].tables
    }

    /// The tables of all sequences in a [group of layers](KvLayout::groups); `None` if there is no such group.
    pub fn group_tables(&self, group: usize) -> Option<&BlockTables> {
        self.groups.get(group).map(|group| &group.tables)
    }

    /// Blocks in the pool.
    pub fn num_blocks(&self) -> u32 {
        self.store.pool().num_blocks()
    }

    /// Blocks without an owner; those of an open step are owned already.
    pub fn num_free_blocks(&self) -> u32 {
        self.store.pool().num_free()
    }

    /// The free blocks in the order in which they would be taken.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.store.pool().free_blocks()
    }

    /// The fewest blocks to which the pool can [shrink](Self::resize) now: one more than the highest block in use.
    pub fn min_num_blocks(&self) -> u32 {
        self.store.pool().min_num_blocks()
    }

    /// Makes the pool larger, or smaller by its last blocks: up to
    /// [`max_num_blocks`](crate::config::CacheConfig::max_num_blocks), down to [`min_num_blocks`](Self::min_num_blocks).
    ///
    /// Sequences keep their blocks. New ones are handed out first; what was cached in those that go is not found any more. The
    /// pools on the device [follow](crate::gpu::KvCache::resize_layer): they grow before, and shrink after this call. Where freed
    /// blocks are cleared, [take](Self::take_clears) and record the clears before the pool shrinks.
    ///
    /// # Errors
    /// [`ManagerError::StepOpen`]; [`PoolError::PoolSize`](crate::error::PoolError::PoolSize) or
    /// [`PoolError::TailInUse`](crate::error::PoolError::TailInUse).
    pub fn resize(&mut self, num_blocks: u32) -> Result<(), ManagerError> {
        if self.step.is_open() {
            return Err(ManagerError::StepOpen);
        }
        self.tally.evictions += u64::from(self.store.resize(num_blocks)?);
        self.layout = self.layout.with_num_blocks(num_blocks);
        for (group, layout) in self.groups.iter_mut().zip(self.layout.groups()) {
            group.layout.clone_from(layout);
        }
        Ok(())
    }

    /// Living sequences.
    pub fn num_sequences(&self) -> u32 {
        self.num_sequences
    }

    /// Whether a handle still stands for a sequence.
    pub fn contains(&self, seq: SeqId) -> bool {
        self.sequence(seq).is_some()
    }

    /// Whether a step waits for [`commit`](Self::commit) or [`rollback`](Self::rollback).
    pub fn is_step_open(&self) -> bool {
        self.step.is_open()
    }

    /// A new sequence without tokens.
    ///
    /// In a contiguous cache it takes its one block now, for that is where it will grow; a paged sequence owns nothing
    /// until it has tokens.
    ///
    /// # Errors
    /// [`ManagerError::TooManySequences`], or
    /// [`PoolError::OutOfBlocks`](crate::error::PoolError::OutOfBlocks) where the cache is contiguous.
    pub fn create_sequence(&mut self) -> Result<SeqId, ManagerError> {
        let num_blocks: u32 = self.groups.iter().map(Group::first_blocks).sum();
        if !self.free_rows.is_empty() && num_blocks > self.store.pool().num_free() {
            return Err(self.store.pool().out_of_blocks(num_blocks.into()).into());
        }
        let seq = self.add_row()?;
        self.groups.iter_mut().for_each(|group| group.take_first(seq.index(), &mut self.store));
        self.note_peak();
        Ok(seq)
    }

    /// Ends a sequence and gives back its blocks, the last one first and those of all groups of layers side by side, so that
    /// the start of its text is reused last. A block with other owners stays theirs.
    pub fn release(&mut self, seq: SeqId) -> Result<(), ManagerError> {
        self.idle(seq)?;
        let row = seq.index();
        self.give_back(row, |_| 0);
        self.domains[row as usize] = None;
        let state = &mut self.sequences[row as usize];
        state.live = false;
        self.num_sequences -= 1;
        // A row whose generations are used up is retired, because a handle from long ago would fit it again.
        if let Some(generation) = state.generation.checked_add(1) {
            state.generation = generation;
            self.free_rows.push(row);
        }
        Ok(())
    }

    /// Tokens of a sequence; those of an open step count once it is committed.
    pub fn seq_len(&self, seq: SeqId) -> Result<u32, ManagerError> {
        Ok(self.live(seq)?.len)
    }

    /// The blocks of a sequence in the first group of layers, in the order of its tokens; those of an open step are included.
    /// Leading ones are [`RELEASED`](crate::blocks::RELEASED) where the window has moved on.
    pub fn block_table(&self, seq: SeqId) -> Result<&[BlockId], ManagerError> {
        self.live(seq)?;
        Ok(self.groups[0].used(seq.index()))
    }

    /// The same in a [group of layers](KvLayout::groups); no blocks if there is no such group.
    pub fn group_block_table(&self, seq: SeqId, group: usize) -> Result<&[BlockId], ManagerError> {
        self.live(seq)?;
        Ok(self.groups.get(group).map_or(&[], |group| group.used(seq.index())))
    }

    /// Takes the changes of the prefix cache since the last call; none unless the manager keeps
    /// [`events`](ManagerOptions::events), which then grow until they are taken.
    pub fn take_events(&mut self) -> Vec<BlockEvent> {
        self.store.take_events()
    }

    /// Appends to `out` the blocks that were given back since the last call, are still free and cannot be found in the
    /// prefix cache; from now on they are taken to be clear.
    ///
    /// The caller clears them on the device before the work of the next step, and before the pool [shrinks](Self::resize):
    /// afterwards some may not exist, and [`clear_blocks`](crate::gpu::KvCache::clear_blocks) refuses all of them. Nothing is
    /// appended unless the manager [clears freed blocks](ManagerOptions::clear_freed).
    pub fn take_clears(&mut self, out: &mut Vec<BlockId>) {
        self.store.take_clears(out);
    }

    /// A sequence without tokens and blocks.
    fn add_row(&mut self) -> Result<SeqId, ManagerError> {
        let Some(row) = self.free_rows.pop() else {
            return Err(ManagerError::TooManySequences { limit: self.layout.max_sequences() });
        };
        self.num_sequences += 1;
        // Ranks of imported sequences may come from anywhere.
        self.arrivals = self.arrivals.saturating_add(1);
        if self.store.prefix().is_some() {
            self.domains[row as usize] = Some(Arc::clone(&self.no_domain));
        }
        if let Some(late) = &mut self.late {
            late.clear(row);
        }
        let state = &mut self.sequences[row as usize];
        let rank = Rank { priority: 0, arrival: self.arrivals };
        *state = Sequence { live: true, generation: state.generation, rank, ..Sequence::default() };
        self.groups.iter_mut().for_each(|group| *group.state_mut(row) = TableState::default());
        self.change_tables(row);
        Ok(self.handle(row))
    }

    /// Notes that the tables of a sequence change, other than by steps and the copies that they make.
    fn change_tables(&mut self, row: u32) {
        self.era = self.era.wrapping_add(1).max(1);
        self.groups.iter_mut().for_each(|group| group.state_mut(row).era = self.era);
    }

    /// The handle to the sequence of a row.
    fn handle(&self, row: u32) -> SeqId {
        SeqId::new(row, self.sequences[row as usize].generation, self.id)
    }

    fn sequence(&self, seq: SeqId) -> Option<&Sequence> {
        self.sequences.get(seq.index() as usize).filter(|state| state.live && self.handle(seq.index()) == seq)
    }

    fn live(&self, seq: SeqId) -> Result<&Sequence, ManagerError> {
        self.sequence(seq).ok_or(ManagerError::StaleSequence { seq })
    }

    /// A sequence that no open step names.
    fn idle(&self, seq: SeqId) -> Result<&Sequence, ManagerError> {
        let state = self.live(seq)?;
        if self.step.is_open() && state.step == self.step.number {
            return Err(ManagerError::SequenceInStep { seq });
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests;
