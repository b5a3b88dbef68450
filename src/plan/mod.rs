//! One step, worked out on the host: which rows there are, where their tables lie and how the work is split.
//!
//! A **row** is one query token. Decoding, prefill, a chunk of a prefill and any mix of them are just rows: query `i`
//! of the `n` that a sequence of length `L` brings sees its first `L - n + i + 1` keys. The lengths count the tokens of
//! this step. A plan is made once per step and serves all layers.

mod dispatch;
mod raw;
mod words;

pub use dispatch::workgroups;
pub use raw::RawTables;
pub(crate) use raw::slot_at;
pub use words::{Row, StepHeader, TableUpdate};

use crate::error::PlanError;
use crate::layout::KvLayout;

/// The most rows of one step. Queries and outputs of so many tokens would not fit any device, and a limit that is far
/// below 2^32 turns a wild count into an error before memory is asked for.
pub const MAX_ROWS: u32 = 1 << 24;

/// Words of [`StepHeader`]; the rows follow at once.
const HEADER_WORDS: u32 = (size_of::<StepHeader>() / 4) as u32;
const ROW_WORDS: u32 = (size_of::<Row>() / 4) as u32;
const UPDATE_WORDS: u32 = (size_of::<TableUpdate>() / 4) as u32;

/// Where the block tables are to which the rows of a step point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TableSource {
    /// In a buffer that stays on the device; the step only brings the entries that changed.
    #[default]
    Resident,
    /// Behind the step's own words, because the engine keeps its tables itself.
    Inline,
}

/// Which reservation a plan stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// Tells managers apart.
    pub(crate) manager: u64,
    pub(crate) step: u64,
}

/// The description of one step; it keeps its memory from step to step.
///
/// Filled by [`CacheManager::reserve`](crate::blocks::CacheManager::reserve) or
/// [`plan_tables`](Self::plan_tables).
#[derive(Clone, Debug)]
pub struct StepPlan {
    split_tokens: u32,
    rows: Vec<Row>,
    slots: Vec<u32>,
    updates: Vec<TableUpdate>,
    /// Block tables, used columns only; empty unless the source is [`TableSource::Inline`].
    tables: Vec<u32>,
    source: TableSource,
    num_splits: u32,
    num_partials: u32,
    max_splits_per_row: u32,
    /// The cache it was filled for.
    layout: Option<KvLayout>,
    ticket: Option<Ticket>,
}

impl StepPlan {
    /// An empty plan that splits the keys of a row into pieces of `split_tokens`; 0 is taken as 1.
    ///
    /// The length of a piece is fixed so that a row's sums are grouped by its own length only: its result does not
    /// depend on what else is in the batch.
    pub fn new(split_tokens: u32) -> Self {
        Self {
            split_tokens: split_tokens.max(1),
            rows: Vec::new(),
            slots: Vec::new(),
            updates: Vec::new(),
            tables: Vec::new(),
            source: TableSource::Resident,
            num_splits: 0,
            num_partials: 0,
            max_splits_per_row: 0,
            layout: None,
            ticket: None,
        }
    }

    /// Empties the plan and keeps its memory.
    ///
    /// Clearing the plan of an open step does not roll the step back; see
    /// [`CacheManager::abandon`](crate::blocks::CacheManager::abandon).
    pub fn clear(&mut self) {
        self.rows.clear();
        self.slots.clear();
        self.updates.clear();
        self.tables.clear();
        self.source = TableSource::Resident;
        self.num_splits = 0;
        self.num_partials = 0;
        self.max_splits_per_row = 0;
        self.layout = None;
        self.ticket = None;
    }

    /// Tokens in one split.
    pub fn split_tokens(&self) -> u32 {
        self.split_tokens
    }

    /// Rows: query tokens of this step.
    pub fn num_rows(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Tokens to append, padding included; one K and one V row are expected for each.
    pub fn num_tokens(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Splits of all rows together; a row without keys has one as well, which writes its zeros.
    pub fn num_splits(&self) -> u32 {
        self.num_splits
    }

    /// Splits of the rows that have more than one: partial results to be merged.
    pub fn num_partials(&self) -> u32 {
        self.num_partials
    }

    /// Splits of the longest row; 0 if there are no rows.
    pub fn max_splits_per_row(&self) -> u32 {
        self.max_splits_per_row
    }

    /// Whether any row has to be merged.
    pub fn has_split_rows(&self) -> bool {
        self.num_partials > 0
    }

    /// One entry per query token, sequence after sequence.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The slot of every token to append, in the order of its K and V rows;
    /// [`SKIP_SLOT`](crate::layout::SKIP_SLOT) for padding.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// Entries of the resident table that the device does not have yet.
    pub fn updates(&self) -> &[TableUpdate] {
        &self.updates
    }

    /// The tables that travel with the step; [`Row::table_base`] counts from the start of the encoded words instead.
    pub fn inline_tables(&self) -> &[u32] {
        &self.tables
    }

    /// Where [`Row::table_base`] points.
    pub fn table_source(&self) -> TableSource {
        self.source
    }

    /// Sizes and offsets of the encoded step.
    pub fn header(&self) -> StepHeader {
        // `check_words` has seen that every offset fits.
        let slots_base = HEADER_WORDS + ROW_WORDS * self.num_rows();
        StepHeader {
            num_rows: self.num_rows(),
            num_slots: self.num_tokens(),
            num_updates: self.updates.len() as u32,
            num_splits: self.num_splits,
            split_tokens: self.split_tokens,
            rows_base: HEADER_WORDS,
            slots_base,
            updates_base: slots_base + self.num_tokens(),
        }
    }

    /// Replaces `out` by the words for the device: header, rows, slots, updates, inline tables.
    pub fn encode(&self, out: &mut Vec<u32>) {
        out.clear();
        out.extend_from_slice(bytemuck::cast_slice(&[self.header()]));
        out.extend_from_slice(bytemuck::cast_slice(&self.rows));
        out.extend_from_slice(&self.slots);
        out.extend_from_slice(bytemuck::cast_slice(&self.updates));
        out.extend_from_slice(&self.tables);
    }

    /// Bytes that [`encode`](Self::encode) writes: what a step sends to the device, for all layers together.
    pub fn upload_bytes(&self) -> u64 {
        4 * words(self.rows.len() as u64, self.slots.len() as u64, self.updates.len() as u64, self.tables.len() as u64)
    }

    /// Whether the plan may be used with a cache of this layout: it was filled for one, or is empty.
    pub fn fits(&self, layout: &KvLayout) -> bool {
        self.layout.as_ref().is_none_or(|own| own == layout)
    }

    /// Makes room for a step and refuses one whose words cannot be numbered. The plan is empty before and after.
    pub(crate) fn prepare(
        &mut self,
        layout: &KvLayout,
        rows: u64,
        slots: u64,
        updates: u64,
        tables: u64,
    ) -> Result<(), PlanError> {
        let words = words(rows, slots, updates, tables);
        for (what, value, limit) in [("rows", rows, MAX_ROWS), ("words", words, u32::MAX)] {
            let limit = u64::from(limit);
            if value > limit {
                return Err(PlanError::TooLarge { what, value, limit });
            }
        }
        // Every count is below 2^32, for the words are.
        self.rows
            .try_reserve(rows as usize)
            .and_then(|()| self.slots.try_reserve(slots as usize))
            .and_then(|()| self.updates.try_reserve(updates as usize))
            .and_then(|()| self.tables.try_reserve(tables as usize))
            .map_err(|_| PlanError::HostMemory { rows })?;
        self.layout = Some(layout.clone());
        Ok(())
    }

    /// Adds the rows of the last `queries` tokens of a sequence of `seq_len`.
    pub(crate) fn push_rows(&mut self, table_base: u32, seq_len: u32, queries: u32) -> Result<(), PlanError> {
        for query in 0..queries {
            // Keys up to and including the query's own; queries from before the first token have none.
            let kv_len = (u64::from(seq_len) + u64::from(query) + 1).saturating_sub(queries.into()) as u32;
            let splits = kv_len.div_ceil(self.split_tokens).max(1);
            self.rows.push(Row { kv_len, table_base, split_start: self.num_splits, partial_start: self.num_partials });
            self.num_splits = self.num_splits.checked_add(splits).ok_or_else(|| PlanError::TooLarge {
                what: "splits",
                value: u64::from(self.num_splits) + u64::from(splits),
                limit: u32::MAX.into(),
            })?;
            if splits > 1 {
                // Never more than all splits.
                self.num_partials += splits;
            }
            self.max_splits_per_row = self.max_splits_per_row.max(splits);
        }
        Ok(())
    }

    pub(crate) fn push_slot(&mut self, slot: u32) {
        self.slots.push(slot);
    }

    pub(crate) fn push_update(&mut self, update: TableUpdate) {
        self.updates.push(update);
    }

    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    pub(crate) fn set_ticket(&mut self, ticket: Option<Ticket>) {
        self.ticket = ticket;
    }
}

fn words(rows: u64, slots: u64, updates: u64, tables: u64) -> u64 {
    let mut words = u64::from(HEADER_WORDS);
    for (count, size) in [(rows, ROW_WORDS), (slots, 1), (updates, UPDATE_WORDS), (tables, 1)] {
        words = words.saturating_add(count.saturating_mul(size.into()));
    }
    words
}
