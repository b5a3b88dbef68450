//! Where the keys of a batch lie: the two forms in which engines hand over their block tables.

use super::raw::{check_len, check_offsets};
use crate::error::TableError;
use crate::layout::KvLayout;

/// Block tables and lengths of a batch, those of this step included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables<'a> {
    /// A rectangle of block ids, as in vLLM and CANN.
    Dense {
        /// `[num_seqs, max_blocks]` block ids, row-major. Columns past `ceil(seq_len / block_size)` may hold anything.
        block_table: &'a [u32],
        /// Columns of `block_table`.
        max_blocks: u32,
        /// `[num_seqs]` tokens in the cache, those of this step included.
        seq_lens: &'a [u32],
    },
    /// The used blocks of all sequences in one list, as in FlashInfer.
    Csr {
        /// `[num_seqs + 1]` where the blocks of each sequence begin in `indices`, and where the last one's end.
        indptr: &'a [u32],
        /// Block ids; those past the last offset may be anything.
        indices: &'a [u32],
        /// `[num_seqs]` tokens in the last block of each sequence, 1 to `block_size`. A sequence without blocks has no
        /// tokens, and what stands here for it is not read: some engines write 0, some a full block.
        last_page_len: &'a [u32],
    },
}

impl<'a> Tables<'a> {
    /// Sequences of the batch, those without tokens or queries included.
    pub fn num_seqs(&self) -> usize {
        match self {
            Self::Dense { seq_lens, .. } => seq_lens.len(),
            Self::Csr { last_page_len, .. } => last_page_len.len(),
        }
    }

    /// The tokens of a sequence, once [`check`](Self::check) has passed.
    pub(super) fn seq_len(&self, layout: &KvLayout, seq: usize) -> u32 {
        match self {
            Self::Dense { seq_lens, .. } => seq_lens[seq],
            // At most max_seq_len.
            Self::Csr { indptr, last_page_len, .. } => csr_len(layout, indptr, last_page_len, seq) as u32,
        }
    }

    /// The used blocks of a sequence, once [`check`](Self::check) has passed.
    pub(super) fn used(&self, layout: &KvLayout, seq: usize) -> &'a [u32] {
        match *self {
            Self::Dense { block_table, max_blocks, seq_lens } => {
                let base = seq * max_blocks as usize;
                &block_table[base..base + layout.blocks_for(seq_lens[seq]) as usize]
            }
            Self::Csr { indptr, indices, .. } => &indices[indptr[seq] as usize..indptr[seq + 1] as usize],
        }
    }

    /// Whether every length and every used block exists.
    pub(super) fn check(&self, layout: &KvLayout) -> Result<(), TableError> {
        let num_seqs = self.num_seqs() as u64;
        match *self {
            Self::Dense { block_table, max_blocks, seq_lens } => {
                check_len("block_table", block_table.len(), num_seqs.saturating_mul(max_blocks.into()))?;
                let columns = u64::from(max_blocks) * u64::from(layout.block_size());
                let limit = columns.min(layout.max_seq_len().into());
                for (row, &seq_len) in seq_lens.iter().enumerate() {
                    if u64::from(seq_len) > limit {
                        return Err(TableError::SeqTooLong { row, seq_len, limit });
                    }
                    if let Some((col, id, num_blocks)) = stray(layout, self.used(layout, row)) {
                        return Err(TableError::InvalidBlock { row, col, id, num_blocks });
                    }
                }
            }
            Self::Csr { indptr, indices, last_page_len } => {
                check_len("indptr", indptr.len(), num_seqs + 1)?;
                check_offsets("indptr", indptr)?;
                if let Some(index) = indptr.iter().position(|&offset| offset as usize > indices.len()) {
                    let (offset, given) = (indptr[index], indices.len());
                    return Err(TableError::IndicesTooShort { index, offset, given });
                }
                check_last_pages(layout, indptr, last_page_len)?;
                let listed = &indices[..indptr.last().map_or(0, |&end| end as usize)];
                if let Some((index, id, num_blocks)) = stray(layout, listed) {
                    return Err(TableError::InvalidIndex { index, id, num_blocks });
                }
            }
        }
        Ok(())
    }
}

fn check_last_pages(layout: &KvLayout, indptr: &[u32], last_page_len: &[u32]) -> Result<(), TableError> {
    for (row, &len) in last_page_len.iter().enumerate() {
        let block_size = layout.block_size();
        if indptr[row] < indptr[row + 1] && !(1..=block_size).contains(&len) {
            return Err(TableError::LastPageLen { row, len, block_size });
        }
        let (seq_len, limit) = (csr_len(layout, indptr, last_page_len, row), layout.max_seq_len());
        if seq_len > limit.into() {
            return Err(TableError::TooManyPages { row, seq_len, limit });
        }
    }
    Ok(())
}

/// All blocks but the last are full; no blocks, no tokens. The offsets do not decrease.
fn csr_len(layout: &KvLayout, indptr: &[u32], last_page_len: &[u32], seq: usize) -> u64 {
    match indptr[seq + 1] - indptr[seq] {
        0 => 0,
        // Below 2^32 blocks of at most 2^31 tokens.
        pages => u64::from(pages - 1) * u64::from(layout.block_size()) + u64::from(last_page_len[seq]),
    }
}

/// The first id outside the pool: its place, itself, and the blocks there are.
fn stray(layout: &KvLayout, ids: &[u32]) -> Option<(usize, u32, u32)> {
    let num_blocks = layout.num_blocks();
    ids.iter().position(|&id| id >= num_blocks).map(|at| (at, ids[at], num_blocks))
}
