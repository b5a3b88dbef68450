//! A snapshot in the blocks of another cache.

use std::collections::HashMap;

use super::{Page, Snapshot, SnapshotError, for_each_head};
use crate::blocks::{BlockId, SequenceRecord};
use crate::host::{BlockShape, HostBlocks};
use crate::layout::KvLayout;

/// Tokens of a page that lie in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Slice {
    page: BlockId,
    /// First token, counted from the start of the page.
    from: u32,
    tokens: u32,
    /// Where it goes in the block.
    to: u32,
}

impl Snapshot {
    /// The sequences cut into blocks as a cache has them, and what these blocks hold: to be imported by a manager, and
    /// copied to the device.
    ///
    /// Sequences that shared pages share a block wherever all that lies in it was shared. Slots without a token of a page
    /// hold zeros.
    ///
    /// # Errors
    /// [`SnapshotError::Mismatch`] for a cache of another model or format, [`SnapshotError::Groups`],
    /// [`SnapshotError::TooManySequences`], [`SnapshotError::TooLong`],
    /// [`SnapshotError::TooManyBlocks`], [`SnapshotError::HostMemory`].
    pub fn fit(&self, layout: &KvLayout) -> Result<(Vec<SequenceRecord>, HostBlocks), SnapshotError> {
        if layout.num_groups() > 1 {
            return Err(SnapshotError::Groups { groups: layout.num_groups() });
        }
        let shape = BlockShape::of(layout);
        if let Some((field, saved, expected)) = self.shape.difference(&shape, false) {
            return Err(SnapshotError::Mismatch { field, saved, expected });
        }
        if self.records.len() as u64 > layout.max_sequences().into() {
            let (given, limit) = (self.records.len() as u64, layout.max_sequences());
            return Err(SnapshotError::TooManySequences { given, limit });
        }
        let mut numbers: HashMap<Vec<Slice>, u32> = HashMap::new();
        let mut contents: Vec<Vec<Slice>> = Vec::new();
        let mut records = Vec::with_capacity(self.records.len());
        for (sequence, record) in self.records.iter().enumerate() {
            let max_seq_len = layout.max_seq_len();
            if record.len > max_seq_len {
                return Err(SnapshotError::TooLong { sequence, len: record.len, max_seq_len });
            }
            // A contiguous sequence has its block before it has tokens.
            let columns = layout.blocks_for(record.len).max(u32::from(!layout.paged()));
            let mut blocks = Vec::new();
            for column in 0..columns {
                let slices = self.slices(record, column, layout.block_size());
                if slices.is_empty() && record.len > 0 {
                    blocks.push(None);
                    continue;
                }
                let next = contents.len() as u32;
                let known = if slices.is_empty() { None } else { numbers.get(&slices).copied() };
                if known.is_none() {
                    if next == layout.num_blocks() {
                        return Err(SnapshotError::TooManyBlocks { num_blocks: next });
                    }
                    numbers.insert(slices.clone(), next);
                    contents.push(slices);
                }
                blocks.push(Some(BlockId::of_pool(known.unwrap_or(next))));
            }
            records.push(SequenceRecord { blocks, ..record.clone() });
        }

        let mut blocks = HostBlocks::zeros(shape, (0..contents.len() as u32).map(BlockId::of_pool).collect())
            .map_err(|bytes| SnapshotError::HostMemory { bytes })?;
        for (block, slices) in contents.iter().enumerate() {
            for slice in slices {
                self.copy_rows(slice, &shape, blocks.block_mut(block));
            }
        }
        Ok((records, blocks))
    }

    /// What of a sequence's pages lies in a column of blocks of another size. It depends on the pages alone, not on how many
    /// of their tokens are the sequence's own, so that sequences of different lengths can share the last one, too.
    fn slices(&self, record: &SequenceRecord, column: u32, block_size: u32) -> Vec<Slice> {
        let page_size = u64::from(self.shape.block_size);
        let begin = u64::from(column) * u64::from(block_size);
        let end = (begin + u64::from(block_size)).min(record.blocks.len() as u64 * page_size);
        let mut slices = Vec::new();
        let mut at = begin;
        while at < end {
            let (place, from) = ((at / page_size) as usize, at % page_size);
            let tokens = (page_size - from).min(end - at);
            // All of these are below the lengths of a page or a block.
            if let Some(page) = record.blocks[place] {
                let (from, tokens, to) = (from as u32, tokens as u32, (at - begin) as u32);
                slices.push(Slice { page, from, tokens, to });
            }
            at += tokens;
        }
        slices
    }

    fn copy_rows(&self, slice: &Slice, shape: &BlockShape, block: &mut [u8]) {
        let page: &Page = &self.pages[slice.page.index()];
        let tokens = slice.tokens.min(page.filled.saturating_sub(slice.from)) as usize;
        if tokens == 0 {
            return;
        }
        for_each_head(shape, |layer, side, head| {
            let row = shape.row_bytes(side) as usize;
            let from = &self.head_rows(page, layer, side, head)[slice.from as usize * row..][..tokens * row];
            let to = shape.head_offset(layer, side, head) as usize + slice.to as usize * row;
            block[to..to + from.len()].copy_from_slice(from);
        });
    }
}
