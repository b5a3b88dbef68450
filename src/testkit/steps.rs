//! Plans over tables that are kept here, as an engine would hand them over, and the buffers of their steps.

use bytemuck::Zeroable;
use half::f16;

use super::Gpu;
use crate::error::TableError;
use crate::gpu::IoFormat;
use crate::layout::KvLayout;
use crate::plan::{Append, RawTables, Schedule, StepPlan, TableUpdate, Tables, slot_at};

/// What outputs hold before a run, so that a row that is not written shows.
pub const SENTINEL: f32 = 123.0;

/// A plan that writes to these slots and attends to nothing.
pub fn append_plan(layout: &KvLayout, schedule: Schedule, slots: &[u32]) -> Result<StepPlan, TableError> {
    let slots: Vec<i64> = slots.iter().map(|&slot| slot.into()).collect();
    let mut plan = StepPlan::new(schedule);
    plan.plan_tables(
        layout,
        &RawTables {
            tables: Tables::Dense { block_table: &[0], max_blocks: 1, seq_lens: &[0] },
            cu_seqlens_q: Some(&[0, slots.len() as u32]),
            append: Append::Slots(&slots),
        },
    )?;
    Ok(plan)
}

/// A plan that attends with the last `queries[i]` tokens of every sequence, and appends nothing; its tables are handed over
/// as lists of blocks if `csr`, as a rectangle otherwise.
pub fn attend_plan(
    layout: &KvLayout,
    schedule: Schedule,
    tables: &[Vec<u32>],
    seq_lens: &[u32],
    queries: &[u32],
    csr: bool,
) -> Result<StepPlan, TableError> {
    let max_blocks = layout.max_blocks_per_seq();
    // Unused columns hold an id that does not exist: a kernel that reads them fails.
    let mut block_table = vec![u32::MAX; tables.len() * max_blocks as usize];
    for (row, table) in block_table.chunks_mut(max_blocks as usize).zip(tables) {
        row[..table.len()].copy_from_slice(table);
    }
    let mut cu_seqlens_q = vec![0];
    let mut rows = 0;
    cu_seqlens_q.extend(queries.iter().map(|&queries| {
        rows += queries;
        rows
    }));
    let (mut indptr, mut indices, mut last_page_len) = (vec![0], Vec::new(), Vec::new());
    let block_size = layout.block_size();
    for (table, &len) in tables.iter().zip(seq_lens) {
        indices.extend(&table[..len.div_ceil(block_size) as usize]);
        indptr.push(indices.len() as u32);
        last_page_len.push(len.saturating_sub(1) % block_size + 1);
    }
    let tables = if csr {
        Tables::Csr { indptr: &indptr, indices: &indices, last_page_len: &last_page_len }
    } else {
        Tables::Dense { block_table: &block_table, max_blocks, seq_lens }
    };
    let mut plan = StepPlan::new(schedule);
    plan.plan_tables(
        layout,
        &RawTables { tables, cu_seqlens_q: Some(&cu_seqlens_q), append: Append::Slots(&vec![-1; rows as usize]) },
    )?;
    Ok(plan)
}

/// Plants a fault: changes one entry of the resident block tables behind the plan's back.
pub fn plant_table_update(plan: &mut StepPlan, update: TableUpdate) {
    plan.groups_mut()[0].updates.push(update);
}

/// The slots of tokens `(sequence, position)`.
pub fn slots_of(layout: &KvLayout, tables: &[Vec<u32>], tokens: &[(usize, u32)]) -> Vec<u32> {
    tokens.iter().map(|&(seq, position)| slot_at(layout, &tables[seq], position)).collect()
}

/// A buffer of queries or outputs in the kernels' type.
pub fn io_buffer(gpu: &Gpu, label: &str, values: &[f32], format: IoFormat) -> wgpu::Buffer {
    match format {
        IoFormat::F32 => gpu.storage(label, values),
        IoFormat::F16 => {
            let mut halves: Vec<f16> = values.iter().map(|&x| f16::from_f32(x)).collect();
            // The size of a buffer is counted in words of two.
            halves.resize(halves.len().next_multiple_of(2), f16::zeroed());
            gpu.storage(label, &halves)
        }
    }
}

/// The first `len` elements of such a buffer; `None` if the device is lost.
pub fn read_io(gpu: &Gpu, buffer: &wgpu::Buffer, len: usize, format: IoFormat) -> Option<Vec<f32>> {
    match format {
        IoFormat::F32 => gpu.read(buffer),
        IoFormat::F16 => Some(gpu.read::<f16>(buffer)?.into_iter().take(len).map(f16::to_f32).collect()),
    }
}

/// Rounds queries to what the kernels see of them.
pub fn round_io(values: &mut [f32], format: IoFormat) {
    if format == IoFormat::F16 {
        values.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
    }
}
