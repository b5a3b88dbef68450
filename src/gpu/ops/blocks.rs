//! Whole blocks on the device: copied, so that no shared one is written, and cleared, so that none shows what it held.

use std::collections::HashSet;
use std::fmt;

use crate::blocks::BlockId;
use crate::gpu::arena::Arena;
use crate::gpu::binding::{element_bytes, grid};
use crate::gpu::cache::KvCache;
use crate::gpu::error::{ArgumentError, DeviceError, GpuError};
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::kernel::{ITEM_LANES, Kernel};
use crate::gpu::make::{Dispatch, record};
use crate::gpu::pools::HeadShard;
use crate::gpu::value::ClearValue;
use crate::layout::UNIT_BYTES;
use crate::plan::{BlockCopy, StepHeader};

/// Words before a list that travels without a step.
const HEADER_WORDS: u32 = (size_of::<StepHeader>() / 4) as u32;

/// Dispatches over all head shards of all places, checked and ready to be recorded.
pub(crate) struct BlockWork<'a> {
    pipeline: wgpu::ComputePipeline,
    shards: Vec<(&'a HeadShard, [u32; 3])>,
}

impl BlockWork<'_> {
    pub(in crate::gpu) fn record(self, pass: &mut wgpu::ComputePass<'_>, arena: &Arena) {
        for (head_shard, grid) in self.shards {
            let groups = [&arena.parts[0].resident, &head_shard.write, &head_shard.params];
            record(pass, &[Dispatch::new(&self.pipeline, groups, grid)]);
        }
    }
}

impl KvCache {
    /// Compiles the kernels of a step's copies and clears, which are otherwise compiled when they are first needed, so that
    /// no token waits for them. Without forks, a prefix cache or cleared blocks they are never needed;
    /// [`Attention::warm_up`](crate::gpu::Attention::warm_up) compiles the others.
    pub fn warm_up(&self) -> Result<(), GpuError> {
        self.maker.check()?;
        self.copy_pipeline()?;
        self.clear_pipeline(self.clear_value())?;
        Ok(())
    }

    /// Records copies of whole blocks, K and V of all layers, for engines that keep their own tables; what a
    /// [`CacheManager`](crate::blocks::CacheManager) wants copied is part of its step.
    ///
    /// Codes and scales are moved bit by bit. The copies come after what `encoder` holds, and before what is recorded
    /// into it next.
    ///
    /// # Errors
    /// [`GpuError::Argument`] for a block that does not exist, or a target that another copy reads or writes;
    /// [`GpuError::Plan`] or [`GpuError::Device`].
    pub fn copy_blocks(&self, encoder: &mut wgpu::CommandEncoder, copies: &[BlockCopy]) -> Result<(), GpuError> {
        self.check()?;
        self.check_blocks("copies", copies.iter().flat_map(|copy| [copy.source, copy.target]), 2)?;
        check_order(copies)?;
        let header = StepHeader { num_copies: copies.len() as u32, copies_base: HEADER_WORDS, ..Default::default() };
        self.record_blocks(encoder, header, bytemuck::cast_slice(copies), self.copies(copies.len())?)
    }

    /// Records that whole blocks are overwritten, K and V of all layers: what a
    /// [`CacheManager`](crate::blocks::CacheManager) reports as released, or a new pool's for a test.
    /// A block may be named twice.
    pub fn clear_blocks(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        blocks: &[BlockId],
        value: ClearValue,
    ) -> Result<(), GpuError> {
        self.check()?;
        self.check_blocks("blocks", blocks.iter().copied(), 1)?;
        let header = StepHeader { num_clears: blocks.len() as u32, clears_base: HEADER_WORDS, ..Default::default() };
        self.record_blocks(encoder, header, bytemuck::cast_slice(blocks), self.clears(value, blocks.len())?)
    }

    /// The dispatches for a step's copies; none without any.
    pub(crate) fn copies(&self, copies: usize) -> Result<Option<BlockWork<'_>>, GpuError> {
        self.block_work(copies, ITEM_LANES, || self.copy_pipeline())
    }

    /// The dispatches for a step's clears, alike.
    pub(crate) fn clears(&self, value: ClearValue, blocks: usize) -> Result<Option<BlockWork<'_>>, GpuError> {
        self.block_work(blocks, ITEM_LANES, || self.clear_pipeline(value))
    }

    fn copy_pipeline(&self) -> Result<wgpu::ComputePipeline, DeviceError> {
        let kernel = Kernel::BlockCopy { kv: KvShape::of(self.layout()) };
        self.copy.get(&self.maker, &kernel, &self.layouts.whole_blocks())
    }

    fn clear_pipeline(&self, value: ClearValue) -> Result<wgpu::ComputePipeline, DeviceError> {
        let kernel = Kernel::BlockClear { kv: KvShape::of(self.layout()), fill: value };
        self.clear[value as usize].get(&self.maker, &kernel, &self.layouts.whole_blocks())
    }

    fn block_work(
        &self,
        blocks: usize,
        lanes: u32,
        pipeline: impl FnOnce() -> Result<wgpu::ComputePipeline, DeviceError>,
    ) -> Result<Option<BlockWork<'_>>, GpuError> {
        if blocks == 0 {
            return Ok(None);
        }
        let layout = self.layout();
        let shards = self.places().iter().flatten().map(|head_shard| {
            let heads = head_shard.num_heads;
            let block_units = layout.k_block_bytes(heads).max(layout.v_block_bytes(heads)) / UNIT_BYTES;
            Ok((head_shard, grid((blocks as u64).saturating_mul(block_units), lanes, self.profile())?))
        });
        let shards = shards.collect::<Result<_, GpuError>>()?;
        Ok(Some(BlockWork { pipeline: pipeline()?, shards }))
    }

    fn record_blocks(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        header: StepHeader,
        list: &[u32],
        work: Option<BlockWork<'_>>,
    ) -> Result<(), GpuError> {
        let Some(work) = work else { return Ok(()) };
        let words = u64::from(HEADER_WORDS) + list.len() as u64;
        let bytes = element_bytes("the list of blocks", words, self.profile())?;
        let encode = |_, words: &mut Vec<u32>| {
            words.extend_from_slice(bytemuck::cast_slice(&[header]));
            words.extend_from_slice(list);
        };
        let arena = self.send(encoder, &[bytes], |_| {}, encode)?;
        let descriptor = wgpu::ComputePassDescriptor { label: Some("paged.blocks"), timestamp_writes: None };
        work.record(&mut encoder.begin_compute_pass(&descriptor), &arena);
        Ok(())
    }

    /// Whether blocks exist, of which the list holds `per_entry` in an entry.
    pub(crate) fn check_blocks(
        &self,
        list: &'static str,
        blocks: impl Iterator<Item = BlockId>,
        per_entry: usize,
    ) -> Result<(), ArgumentError> {
        let num_blocks = self.layout().num_blocks();
        match blocks.enumerate().find(|&(_, block)| block.get() >= num_blocks) {
            None => Ok(()),
            Some((at, block)) => {
                let problem = format!("[{}] is block {block}, but there are {num_blocks}; correct it", at / per_entry);
                Err(ArgumentError::new(list, problem))
            }
        }
    }
}

/// All copies run at once, so none may write what another reads or writes.
fn check_order(copies: &[BlockCopy]) -> Result<(), ArgumentError> {
    let mut touched: HashSet<BlockId> = copies.iter().map(|copy| copy.source).collect();
    match copies.iter().position(|copy| !touched.insert(copy.target)) {
        None => Ok(()),
        Some(index) => Err(written_twice("copies", index, copies[index].target)),
    }
}

/// For a list of copies whose outcome would depend on their order.
pub(crate) fn written_twice(list: &'static str, index: usize, block: impl fmt::Display) -> ArgumentError {
    let problem = format!("[{index}] writes block {block}, which another entry reads or writes; make two lists of it");
    ArgumentError::new(list, problem)
}
