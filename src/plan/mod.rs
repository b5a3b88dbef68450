//! One step, worked out on the host: which queries there are, where their tables lie and how the work is cut.
//!
//! A **row** is one query token. Query `i` of the `n` that a sequence of length `L` brings stands at position
//! `L - n + i`; the lengths count the tokens of this step. Rows that read the same blocks are gathered into **query
//! tiles**: one for a decoding sequence, several for a prompt, and one for many sequences where they share their first
//! blocks. Long runs of keys are cut into **splits**, whose results are merged. A plan is made once per step and serves
//! all layers.

mod append;
mod dispatch;
mod encode;
mod group;
mod mrope;
mod raw;
pub(crate) mod reach;
mod schedule;
mod sharing;
mod tables;
mod tiling;
mod words;

pub use append::Append;
pub use dispatch::workgroups;
pub use group::GroupPlan;
pub use raw::RawTables;
pub use raw::slot_at;
pub use schedule::Schedule;
pub use tables::Tables;
pub use words::{BlockCopy, MAX_CHUNK_TOKENS, MAX_TILE_TOKENS, STEP_WORDS_VERSION, TableUpdate};
#[cfg(feature = "testkit")]
pub use words::{CHUNK_CLASS, Merge, NO_PARTIAL, QueryTile, StepHeader, TILE_CLASSES, TileClass};
#[cfg(not(feature = "testkit"))]
pub(crate) use words::{CHUNK_CLASS, StepHeader, TILE_CLASSES};

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use self::encode::inline_tables_base;
use self::encode::{COPY_WORDS, HEADER_WORDS, MOST_ROW_WORDS, REQUEST_WORDS, UPDATE_WORDS};
use self::sharing::Span;
use crate::error::PlanError;
use crate::ids::BlockId;
use crate::layout::KvLayout;

/// The most rows of one step. Queries and outputs of so many tokens would not fit any device, and a limit that is far
/// below 2^32 turns a wild count into an error before memory is asked for.
pub const MAX_ROWS: u32 = 1 << 24;

/// Where the block tables are to which the query tiles of a step point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum TableSource {
    /// In a buffer that stays on the device; the step only brings the entries that changed.
    #[default]
    Resident,
    /// After the step's own words, because the engine keeps its tables itself.
    Inline,
}

/// Which reservation a plan stands for, and whether it still does.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    /// The number of the manager's open step, 0 between steps; all its tickets share it.
    open: Arc<AtomicU64>,
    step: u64,
}

impl Ticket {
    pub(crate) fn new(open: &Arc<AtomicU64>, step: u64) -> Self {
        Self { open: Arc::clone(open), step }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) == self.step
    }

    /// Whether this is the open step of the manager that shares `open`.
    pub(crate) fn is_of(&self, open: &Arc<AtomicU64>) -> bool {
        Arc::ptr_eq(&self.open, open) && self.is_open()
    }
}

/// The description of one step; it keeps its memory from step to step.
///
/// [`CacheManager::reserve`](crate::blocks::CacheManager::reserve) or [`plan_tables`](Self::plan_tables) fills it. Its
/// rows follow the requests of `reserve`, or the sequences of `plan_tables`, in their order: the rows of the first, then
/// those of the second. K, V, queries and outputs are laid out alike.
///
/// ```
/// use wgpu_paged_attention::{blocks::CacheManager, config::CacheConfig, plan::{Schedule, StepPlan}};
///
/// let mut manager = CacheManager::new(&CacheConfig::new(1, 2, 64).with_num_blocks(8).layout()?)?;
/// let mut plan = StepPlan::new(Schedule::default());
/// let (a, b) = (manager.create_sequence()?, manager.create_sequence()?);
///
/// manager.reserve(&[(b, 3), (a, 1)], &mut plan)?;
/// assert_eq!((plan.rows_of(0), plan.rows_of(1)), (0..3, 3..4));
/// assert_eq!(plan.positions(), [0, 1, 2, 0]);
/// assert_eq!(plan.cu_seqlens_q(), [0, 3, 4]);
/// assert_eq!(plan.last_rows(), [2, 3]); // the rows whose logits give the next tokens
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct StepPlan {
    schedule: Schedule,
    /// `[num_requests + 1]`, from 0 on.
    cu_seqlens_q: Vec<u32>,
    last_rows: Vec<u32>,
    /// Of every row in its sequence; negative where a sequence brings more queries than it has tokens.
    positions: Vec<i32>,
    /// Of every row in time, height and width; empty where they were not told.
    mrope_positions: Vec<[u32; 3]>,
    /// What belongs to one table each: at least one, and more than are in use if an earlier step had more.
    parts: Vec<GroupPlan>,
    num_groups: usize,
    pub(crate) copies: Vec<BlockCopy>,
    pub(crate) clears: Vec<BlockId>,
    source: TableSource,
    /// The cache it was filled for.
    layout: Option<KvLayout>,
    pub(crate) ticket: Option<Ticket>,
    /// Slots and their tokens, to be sorted.
    places: Vec<(u32, u32)>,
}

impl StepPlan {
    /// An empty plan that cuts its work as `schedule` says; numbers out of range are brought into it.
    pub fn new(schedule: Schedule) -> Self {
        Self {
            schedule: schedule.sane(),
            cu_seqlens_q: vec![0],
            last_rows: Vec::new(),
            positions: Vec::new(),
            mrope_positions: Vec::new(),
            parts: vec![GroupPlan::default()],
            num_groups: 1,
            copies: Vec::new(),
            clears: Vec::new(),
            source: TableSource::Resident,
            layout: None,
            ticket: None,
            places: Vec::new(),
        }
    }

    /// Empties the plan and keeps its memory.
    ///
    /// Clearing the plan of an open step does not roll the step back; see
    /// [`CacheManager::abandon`](crate::blocks::CacheManager::abandon).
    pub fn clear(&mut self) {
        self.cu_seqlens_q.truncate(1);
        self.last_rows.clear();
        self.positions.clear();
        self.mrope_positions.clear();
        self.parts.iter_mut().for_each(GroupPlan::clear);
        self.num_groups = 1;
        self.copies.clear();
        self.clears.clear();
        self.source = TableSource::Resident;
        self.layout = None;
        self.ticket = None;
    }

    /// How the work is cut.
    pub fn schedule(&self) -> Schedule {
        self.schedule
    }

    /// Rows: query tokens of this step.
    pub fn num_rows(&self) -> u32 {
        self.positions.len() as u32
    }

    /// Tokens to append, padding included; one K and one V row are expected for each.
    pub fn num_tokens(&self) -> u32 {
        self.slots().len() as u32
    }

    /// `[num_rows]` the position of every query token in its sequence; negative for queries from before the first token.
    pub fn positions(&self) -> &[i32] {
        &self.positions
    }

    /// `[num_requests + 1]` the first row of every request, and the end of the last one's.
    pub fn cu_seqlens_q(&self) -> &[u32] {
        &self.cu_seqlens_q
    }

    /// The rows of a request, by its place in the requests or tables of the step; empty for a request without tokens, and
    /// for one that does not exist.
    pub fn rows_of(&self, request: usize) -> Range<usize> {
        match self.cu_seqlens_q.get(request..).unwrap_or_default() {
            &[first, end, ..] => first as usize..end as usize,
            _ => 0..0,
        }
    }

    /// The last row of every request that has rows, in the order of the requests.
    pub fn last_rows(&self) -> &[u32] {
        &self.last_rows
    }

    /// What belongs to one table each, in the order of [`KvLayout::groups`]. [`slots`](Self::slots) and
    /// [`updates`](Self::updates) are those of the first, which is the only one where all layers are alike; an empty plan has
    /// one empty group.
    pub fn groups(&self) -> &[GroupPlan] {
        &self.parts[..self.num_groups]
    }

    /// What a manager fills: the groups, the copies and the clears.
    pub(crate) fn split(&mut self) -> (&mut [GroupPlan], &mut Vec<BlockCopy>, &mut Vec<BlockId>) {
        (&mut self.parts[..self.num_groups], &mut self.copies, &mut self.clears)
    }

    /// The groups, to be filled.
    pub(crate) fn groups_mut(&mut self) -> &mut [GroupPlan] {
        &mut self.parts[..self.num_groups]
    }

    /// The slot of every token to append, in the order of its K and V rows, in the first group;
    /// [`SKIP_SLOT`](crate::layout::SKIP_SLOT) for padding.
    pub fn slots(&self) -> &[u32] {
        self.parts[0].slots()
    }

    /// Entries of the first group's resident table that the device does not have yet.
    pub fn updates(&self) -> &[TableUpdate] {
        self.parts[0].updates()
    }

    /// Blocks of all groups that the step copies before its first append, so that no shared block is written.
    pub fn copies(&self) -> &[BlockCopy] {
        &self.copies
    }

    /// Blocks of all groups that the step hands out while they still hold what earlier owners left there, to be cleared before
    /// anything else; empty unless the manager [clears freed blocks](crate::blocks::ManagerOptions::clear_freed).
    ///
    /// A block that is the target of a copy is not among them: it is overwritten whole.
    pub fn clears(&self) -> &[BlockId] {
        &self.clears
    }

    /// Where [`QueryTile::table_base`] points.
    pub(crate) fn table_source(&self) -> TableSource {
        self.source
    }

    /// In what the plan's cache differs from one of this layout; an empty plan fits any.
    pub(crate) fn difference(&self, layout: &KvLayout) -> Option<(&'static str, String, String)> {
        self.layout.as_ref().and_then(|own| layout.difference(own))
    }

    /// Makes room for a step and refuses one whose words cannot be numbered. The plan is empty before and after.
    pub(crate) fn prepare(&mut self, layout: &KvLayout, counts: &Counts) -> Result<(), PlanError> {
        let &Counts { requests, rows, slots, updates, copies, clears, tables } = counts;
        // And where the last request ends.
        let mut words = u64::from(HEADER_WORDS) + 1;
        let sizes = [
            (rows, MOST_ROW_WORDS),
            (slots, 1),
            (updates, UPDATE_WORDS),
            (copies, COPY_WORDS),
            (clears, 1),
            (tables, 1),
            (requests as u64, REQUEST_WORDS),
        ];
        for (count, size) in sizes {
            words = words.saturating_add(count.saturating_mul(size.into()));
        }
        for (what, value, limit) in [("rows", rows, MAX_ROWS), ("words", words, u32::MAX)] {
            let limit = u64::from(limit);
            if value > limit {
                return Err(PlanError::TooLarge { what, value, limit });
            }
        }
        self.num_groups = layout.num_groups();
        if self.parts.len() < self.num_groups {
            self.parts.resize_with(self.num_groups, GroupPlan::default);
        }
        // Every count is below 2^32, for the words are.
        self.cu_seqlens_q
            .try_reserve(requests)
            .and_then(|()| self.last_rows.try_reserve(requests))
            .and_then(|()| self.positions.try_reserve(rows as usize))
            .and_then(|()| self.copies.try_reserve(copies as usize))
            .and_then(|()| self.clears.try_reserve(clears as usize))
            .and_then(|()| {
                let sizes = (rows as usize, slots as usize, updates as usize, tables as usize);
                self.groups_mut().iter_mut().try_for_each(|group| group.try_reserve(sizes.0, sizes.1, sizes.2, sizes.3))
            })
            .map_err(|_| PlanError::HostMemory { rows })?;
        self.layout = Some(layout.clone());
        Ok(())
    }

    /// Adds a request: rows for the last `queries` tokens of a sequence of `seq_len`. Of every group, `tables` has where its
    /// table begins and an era that stands for it: another number whenever it changes before the block that a step writes
    /// first; 0 where the caller does not know.
    pub(crate) fn push_rows(
        &mut self,
        tables: impl Iterator<Item = (u32, u64)>,
        seq_len: u32,
        queries: u32,
    ) -> Result<(), PlanError> {
        if queries == 0 {
            self.cu_seqlens_q.push(self.num_rows());
            return Ok(());
        }
        let first_row = self.num_rows();
        let splits = seq_len.div_ceil(self.schedule.split_tokens(queries)).max(1);
        for (group, (table_base, era)) in self.groups_mut().iter_mut().zip(tables) {
            let span = Span { first_row, queries, seq_len, table_base, era, splits, shared: Default::default() };
            group.tiling.push(span)?;
        }
        // Lengths are at most MAX_SEQ_LEN, rows at most MAX_ROWS: far from the ends of i32.
        let first = seq_len as i32 - queries as i32;
        self.positions.extend(first..first + queries as i32);
        self.cu_seqlens_q.push(self.num_rows());
        self.last_rows.push(self.num_rows() - 1);
        Ok(())
    }

    /// Lays out the query tiles of a group, once all rows are in. `tables` holds the block tables; `origin` is the
    /// [`QueryTile::table_base`] of its first element.
    pub(crate) fn finish(&mut self, group: usize, block_size: u32, tables: &[u32], origin: u32) {
        let table = |base: u32, blocks: u32| &tables[(base - origin) as usize..][..blocks as usize];
        self.parts[group].tiling.build(&self.schedule, block_size, table);
    }

    /// Whether the manager that filled the plan still has its step open; `None` for the engine's own tables.
    ///
    /// A copy of the plan answers alike.
    pub fn is_step_open(&self) -> Option<bool> {
        self.ticket.as_ref().map(Ticket::is_open)
    }
}

/// How much of everything a step brings, at most; to each group, or to all together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests: usize,
    pub(crate) rows: u64,
    pub(crate) slots: u64,
    pub(crate) updates: u64,
    pub(crate) copies: u64,
    pub(crate) clears: u64,
    pub(crate) tables: u64,
}

#[cfg(test)]
mod tests;
