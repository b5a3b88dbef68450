//! What must be true of the records of a snapshot; each number is held against the others.

use std::collections::HashMap;

use super::{Page, SnapshotError};
use crate::blocks::{BlockId, SequenceRecord};
use crate::config::{MAX_HEAD_DIM, MAX_LAYERS_OR_HEADS, MAX_SEQ_LEN};
use crate::host::BlockShape;

/// Whether a cache can have this shape. Its blocks may be as long as a sequence, for it may be contiguous.
pub(super) fn check_shape(shape: &BlockShape) -> Result<(), SnapshotError> {
    for (name, value, limit) in [
        ("num_layers", shape.num_layers, MAX_LAYERS_OR_HEADS),
        ("num_kv_heads", shape.num_kv_heads, MAX_LAYERS_OR_HEADS),
        ("head_dim", shape.head_dim, MAX_HEAD_DIM),
        ("v_head_dim", shape.v_head_dim, MAX_HEAD_DIM),
        ("block_size", shape.block_size, MAX_SEQ_LEN),
    ] {
        if value == 0 || value > limit {
            return Err(SnapshotError::Shape { name, value, limit });
        }
    }
    Ok(())
}

/// Records whose blocks are pages, and the block that each page was. Blocks past the last token are left out.
pub(super) fn number_pages(
    records: &[SequenceRecord],
    shape: &BlockShape,
) -> Result<(Vec<SequenceRecord>, Vec<BlockId>), SnapshotError> {
    let (mut numbers, mut sources) = (HashMap::new(), Vec::new());
    let mut records = records.to_vec();
    for (sequence, record) in records.iter_mut().enumerate() {
        let groups = record.tables().count();
        if groups > 1 {
            return Err(SnapshotError::Groups { groups });
        }
        let columns = record.len.div_ceil(shape.block_size) as usize;
        if record.blocks.len() < columns {
            return Err(wrong(sequence, "the number of blocks", record.blocks.len() as u64, columns as u64));
        }
        record.blocks.truncate(columns);
        for block in record.blocks.iter_mut().flatten() {
            *block = *numbers.entry(*block).or_insert_with(|| {
                sources.push(*block);
                // Fewer than ids, since they are different ones.
                BlockId::of_pool(sources.len() as u32 - 1)
            });
        }
    }
    Ok((records, sources))
}

/// The pages that the records name, if they do so in the only right way.
pub(super) fn pages(records: &[SequenceRecord], shape: &BlockShape) -> Result<Vec<Page>, SnapshotError> {
    let mut pages: Vec<Page> = Vec::new();
    for (sequence, record) in records.iter().enumerate() {
        let columns = record.len.div_ceil(shape.block_size);
        if record.len > MAX_SEQ_LEN {
            return Err(wrong(sequence, "the length", record.len.into(), MAX_SEQ_LEN.into()));
        }
        if record.blocks.len() != columns as usize {
            return Err(wrong(sequence, "the number of pages", record.blocks.len() as u64, columns.into()));
        }
        if let Some(tokens) = record.tokens.as_ref().filter(|tokens| tokens.len() != record.len as usize) {
            return Err(wrong(sequence, "the number of tokens", tokens.len() as u64, record.len.into()));
        }
        let released = record.blocks.iter().take_while(|page| page.is_none()).count();
        for (column, page) in (0_u32..).zip(&record.blocks).skip(released) {
            let Some(number) = *page else {
                return Err(wrong(sequence, "the column of a missing page", column.into(), released as u64));
            };
            let filled = shape.block_size.min(record.len - column * shape.block_size);
            let expected = pages.len() as u64;
            match pages.get_mut(number.index()) {
                Some(page) if page.column == column => page.filled = page.filled.max(filled),
                Some(page) => {
                    return Err(wrong(sequence, "the column of a shared page", column.into(), page.column.into()));
                }
                None if u64::from(number.get()) == expected => pages.push(Page { filled, column, start: 0 }),
                None => return Err(wrong(sequence, "the number of a new page", number.get().into(), expected)),
            }
        }
    }
    Ok(pages)
}

/// Gives every page its place in the data; returns how long that is.
pub(super) fn place_pages(pages: &mut [Page], shape: &BlockShape) -> Result<usize, SnapshotError> {
    let mut end = 0_usize;
    for page in pages {
        page.start = end;
        let bytes = shape.token_bytes().saturating_mul(page.filled.into());
        let next = usize::try_from(bytes).ok().and_then(|bytes| end.checked_add(bytes));
        end = next.ok_or(SnapshotError::HostMemory { bytes })?;
    }
    Ok(end)
}

fn wrong(sequence: usize, what: &'static str, value: u64, expected: u64) -> SnapshotError {
    SnapshotError::Record { sequence, what, value, expected }
}
