//! Sequences and what they own; the steps by which they grow are in `step.rs`.

mod step;

use std::hash::{BuildHasher, Hasher, RandomState};

use crate::blocks::{BlockId, BlockPool, BlockTables, SeqId};
use crate::error::ManagerError;
use crate::layout::KvLayout;

use self::step::Growth;

/// What the manager knows about one row of the table.
#[derive(Clone, Copy, Debug, Default)]
struct Sequence {
    generation: u32,
    live: bool,
    /// Tokens in the cache; those of an open step are not counted.
    len: u32,
    /// Blocks owned, those of an open step included: the used columns of the row.
    num_blocks: u32,
    /// Leading columns that the device has seen in a committed step.
    uploaded: u32,
    /// The last step, open or failed, that named this sequence.
    step: u64,
}

/// Owns the blocks of a cache and deals them out to sequences, step by step.
///
/// A step is a transaction: [`reserve`](Self::reserve) takes the blocks for all its new tokens or none, then the caller
/// records and submits the work, and [`commit`](Self::commit) makes the sequences longer, or
/// [`rollback`](Self::rollback) puts every block back where it was. One step is open at a time.
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
    pool: BlockPool,
    tables: BlockTables,
    sequences: Vec<Sequence>,
    /// Rows that [`create_sequence`](Self::create_sequence) may give out, the next one last.
    free_rows: Vec<u32>,
    num_sequences: u32,
    /// The open step; kept when it closes, for its memory only.
    growth: Vec<Growth>,
    open: bool,
    /// Counts the calls of `reserve`, so that no step is mistaken for another.
    step: u64,
    /// Tells the plans of different managers apart.
    id: u64,
}

impl CacheManager {
    /// A manager without sequences; all blocks are free.
    ///
    /// # Errors
    /// [`ManagerError::HostMemory`] or [`PoolError::HostMemory`](crate::error::PoolError::HostMemory) if the
    /// bookkeeping does not fit into memory.
    pub fn new(layout: &KvLayout) -> Result<Self, ManagerError> {
        let pool = BlockPool::new(layout.num_blocks())?;
        let (rows, columns) = (layout.max_sequences(), layout.max_blocks_per_seq());
        let per_row = size_of::<Sequence>() + size_of::<u32>() + size_of::<Growth>();
        let bytes = u64::from(rows) * (4 * u64::from(columns) + per_row as u64);
        let no_memory = ManagerError::HostMemory { bytes };

        let tables = BlockTables::new(rows, columns).ok_or(no_memory)?;
        let mut sequences = Vec::new();
        let mut free_rows = Vec::new();
        let mut growth = Vec::new();
        sequences
            .try_reserve_exact(rows as usize)
            .and_then(|()| free_rows.try_reserve_exact(rows as usize))
            .and_then(|()| growth.try_reserve_exact(rows as usize))
            .map_err(|_| no_memory)?;
        sequences.resize(rows as usize, Sequence::default());
        free_rows.extend((0..rows).rev());
        Ok(Self {
            layout: layout.clone(),
            pool,
            tables,
            sequences,
            free_rows,
            num_sequences: 0,
            growth,
            open: false,
            step: 0,
            id: RandomState::new().build_hasher().finish(),
        })
    }

    /// The shape of the cache.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The tables of all sequences.
    pub fn tables(&self) -> &BlockTables {
        &self.tables
    }

    /// Blocks in the pool.
    pub fn num_blocks(&self) -> u32 {
        self.pool.num_blocks()
    }

    /// Blocks that nobody owns; those of an open step are owned already.
    pub fn num_free_blocks(&self) -> u32 {
        self.pool.num_free()
    }

    /// The free blocks in the order in which they would be taken.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.pool.free_blocks()
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
        self.open
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
        let Some(&row) = self.free_rows.last() else {
            return Err(ManagerError::TooManySequences { limit: self.layout.max_sequences() });
        };
        let num_blocks = if self.layout.paged() { 0 } else { 1 };
        let columns = &mut self.tables.row_mut(row)[..num_blocks as usize];
        self.pool.allocate_into(columns)?;
        self.free_rows.pop();
        self.num_sequences += 1;
        let seq = &mut self.sequences[row as usize];
        *seq = Sequence { live: true, num_blocks, generation: seq.generation, ..Sequence::default() };
        Ok(SeqId::new(row, seq.generation))
    }

    /// Ends a sequence and frees its blocks, the last one first, so that the start of its text is reused last.
    ///
    /// # Errors
    /// [`ManagerError::StaleSequence`], or [`ManagerError::SequenceInStep`] while an open step names the sequence.
    pub fn release(&mut self, seq: SeqId) -> Result<(), ManagerError> {
        let state = *self.live(seq)?;
        if self.open && state.step == self.step {
            return Err(ManagerError::SequenceInStep { seq });
        }
        let row = seq.index();
        for column in (0..state.num_blocks as usize).rev() {
            self.pool.free(block_at(&self.tables, row, column))?;
        }
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
    ///
    /// # Errors
    /// [`ManagerError::StaleSequence`].
    pub fn seq_len(&self, seq: SeqId) -> Result<u32, ManagerError> {
        Ok(self.live(seq)?.len)
    }

    /// The blocks of a sequence, in the order of its tokens; those of an open step are included.
    ///
    /// # Errors
    /// [`ManagerError::StaleSequence`].
    pub fn block_table(&self, seq: SeqId) -> Result<&[u32], ManagerError> {
        let used = self.live(seq)?.num_blocks as usize;
        Ok(&self.tables.row(seq.index())[..used])
    }

    fn sequence(&self, seq: SeqId) -> Option<&Sequence> {
        self.sequences.get(seq.index() as usize).filter(|state| state.live && state.generation == seq.generation())
    }

    fn live(&self, seq: SeqId) -> Result<&Sequence, ManagerError> {
        self.sequence(seq).ok_or(ManagerError::StaleSequence { seq })
    }
}

/// An owned entry of the table; only ids of the pool are ever written there.
fn block_at(tables: &BlockTables, row: u32, column: usize) -> BlockId {
    BlockId::new(tables.row(row)[column]).expect("tables hold block ids only")
}

#[cfg(test)]
mod tests;
