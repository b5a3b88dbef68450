//! Where the tokens of a step are written: the three forms in which engines say so.

use super::Tables;
use super::raw::{check_len, slot_at};
use crate::error::TableError;
use crate::layout::{KvLayout, SKIP_SLOT};

/// Where each query token's K and V go: to a slot of its own, unless it is padding. A step that only attends is all padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Append<'a> {
    /// To the end of its sequence: query `i` of `n` of a sequence of length `L` goes to position `L - n + i`.
    #[default]
    FromTables,
    /// One slot per query token, -1 for padding; vLLM's and CANN's `slot_mapping`.
    Slots(&'a [i64]),
    /// One position in a sequence per query token, by way of its table; FlashInfer's append.
    Positions {
        /// The sequence; -1 for padding.
        batch_indices: &'a [i32],
        /// The position, below the length of that sequence; not read for padding.
        positions: &'a [u32],
    },
}

impl Append<'_> {
    /// Whether every place exists; the tables have been checked.
    pub(super) fn check(&self, layout: &KvLayout, tables: &Tables<'_>, num_queries: u64) -> Result<(), TableError> {
        match *self {
            Self::FromTables => Ok(()),
            Self::Slots(slots) => {
                check_len("slot_mapping", slots.len(), num_queries)?;
                check_slots(slots, layout.num_slots())
            }
            Self::Positions { batch_indices, positions } => {
                check_len("batch_indices", batch_indices.len(), num_queries)?;
                check_len("positions", positions.len(), num_queries)?;
                check_positions(layout, tables, batch_indices, positions)
            }
        }
    }

    /// Adds the slots of a step, in the order of the queries; everything has been checked.
    pub(super) fn push_to(
        &self,
        slots: &mut Vec<u32>,
        layout: &KvLayout,
        tables: &Tables<'_>,
        queries: impl Fn(usize) -> u32,
    ) {
        match *self {
            Self::FromTables => {
                for seq in 0..tables.num_seqs() {
                    let (used, seq_len, queries) =
                        (tables.used(layout, seq), tables.seq_len(layout, seq), queries(seq));
                    for query in 0..queries {
                        let position = (u64::from(seq_len) + u64::from(query)).checked_sub(queries.into());
                        slots.push(match position {
                            // Below seq_len.
                            Some(position) => slot_at(layout, used, position as u32),
                            None => SKIP_SLOT,
                        });
                    }
                }
            }
            // -1, or a slot of the pool, which are fewer than 2^32.
            Self::Slots(given) => given.iter().for_each(|&slot| slots.push(slot.max(-1) as u32)),
            Self::Positions { batch_indices, positions } => {
                for (&batch, &position) in batch_indices.iter().zip(positions) {
                    slots.push(match usize::try_from(batch) {
                        Ok(seq) => slot_at(layout, tables.used(layout, seq), position),
                        Err(_) => SKIP_SLOT,
                    });
                }
            }
        }
    }
}

fn check_slots(slots: &[i64], num_slots: u64) -> Result<(), TableError> {
    let valid = |slot: i64| slot == -1 || u64::try_from(slot).is_ok_and(|slot| slot < num_slots);
    match slots.iter().position(|&slot| !valid(slot)) {
        None => Ok(()),
        Some(index) => Err(TableError::InvalidSlot { index, slot: slots[index], num_slots }),
    }
}

fn check_positions(
    layout: &KvLayout,
    tables: &Tables<'_>,
    batch_indices: &[i32],
    positions: &[u32],
) -> Result<(), TableError> {
    let num_seqs = tables.num_seqs();
    for (index, (&batch, &position)) in batch_indices.iter().zip(positions).enumerate() {
        if batch == -1 {
            continue;
        }
        let Some(seq) = usize::try_from(batch).ok().filter(|&seq| seq < num_seqs) else {
            return Err(TableError::InvalidBatch { index, batch, num_seqs });
        };
        let seq_len = tables.seq_len(layout, seq);
        if position >= seq_len {
            return Err(TableError::InvalidPosition { index, position, seq, seq_len });
        }
    }
    Ok(())
}
