//! Whole blocks on the device: copied, so that no shared one is written, and overwritten, so that none shows what it held.

use std::collections::HashSet;
use std::fmt;

use crate::gpu::arena::Arena;
use crate::gpu::binding::{element_bytes, grid};
use crate::gpu::cache::{HeadShard, KvCache};
use crate::gpu::error::GpuError;
use crate::gpu::kernel::{COPY_LANES, FILL_LANES, Kernel};
use crate::gpu::pipeline::LazyPipeline;
use crate::layout::UNIT_BYTES;
use crate::plan::{BlockCopy, StepHeader};

/// Words in front of a list that travels without a step.
const HEADER_WORDS: u32 = (size_of::<StepHeader>() / 4) as u32;

/// What blocks are overwritten with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BlockFill {
    /// Zeros: nothing is left of what a block held.
    #[default]
    Zeros,
    /// Ones, which are NaN in every format: for tests, since whoever reads a slot that nobody wrote then shows it.
    Poison,
}

impl BlockFill {
    /// The word that is written.
    pub const fn word(self) -> u32 {
        match self {
            Self::Zeros => 0,
            Self::Poison => u32::MAX,
        }
    }
}

impl fmt::Display for BlockFill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zeros => "zeros",
            Self::Poison => "poison",
        })
    }
}

/// Kernels that treat blocks as a whole, compiled when they are first needed: a cache that shares nothing needs none.
#[derive(Debug)]
pub(crate) struct BlockKernels {
    num_blocks: u32,
    copy: LazyPipeline,
    zeros: LazyPipeline,
    poison: LazyPipeline,
}

/// Dispatches over all head shards of all layers, checked and ready to be recorded.
pub(crate) struct BlockWork<'a> {
    pipeline: wgpu::ComputePipeline,
    dispatches: Vec<(&'a HeadShard, [u32; 3])>,
}

impl BlockKernels {
    pub(crate) fn new(num_blocks: u32) -> Self {
        Self {
            num_blocks,
            copy: LazyPipeline::default(),
            zeros: LazyPipeline::default(),
            poison: LazyPipeline::default(),
        }
    }

    fn pipeline(&self, cache: &KvCache, kernel: &Kernel) -> Result<wgpu::ComputePipeline, GpuError> {
        let pipeline = match kernel {
            Kernel::BlockFill { fill: BlockFill::Zeros, .. } => &self.zeros,
            Kernel::BlockFill { .. } => &self.poison,
            _ => &self.copy,
        };
        pipeline.get(cache.device(), kernel, &[&cache.layouts.step, &cache.layouts.pools_append])
    }
}

impl BlockWork<'_> {
    pub(in crate::gpu) fn record(&self, pass: &mut wgpu::ComputePass<'_>, arena: &Arena) {
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, &arena.resident, &[]);
        for (head_shard, [x, y, z]) in &self.dispatches {
            pass.set_bind_group(1, &head_shard.write, &[]);
            pass.dispatch_workgroups(*x, *y, *z);
        }
    }
}

impl KvCache {
    /// Compiles the kernels of a step's copies and clears, which are otherwise compiled when they are first needed, so that
    /// no token waits for them. Without forks, a prefix cache or scrubbing they are never needed;
    /// [`Attention::warm_up`](crate::gpu::Attention::warm_up) compiles the others.
    ///
    /// # Errors
    /// What wgpu says of the kernels.
    pub fn warm_up(&self) -> Result<(), GpuError> {
        for kernel in [self.copy_kernel(), self.fill_kernel(self.block_fill())] {
            self.block_kernels.pipeline(self, &kernel)?;
        }
        Ok(())
    }

    /// Records copies of whole blocks, K and V of all layers, for engines that keep their own tables; what a
    /// [`CacheManager`](crate::blocks::CacheManager) wants copied is part of its step.
    ///
    /// Codes and scales are moved bit by bit. The copies come after what `encoder` holds, and before what is recorded
    /// into it next.
    ///
    /// # Errors
    /// [`GpuError::NoSuchBlock`], [`GpuError::CopyOrder`] if a target is a source too, or a target twice,
    /// [`GpuError::Limit`] or [`GpuError::Plan`] for more copies than a binding holds or a dispatch serves,
    /// [`GpuError::OutOfMemory`], [`GpuError::DeviceLost`]. Nothing is recorded then.
    pub fn copy_blocks(
        &self,
        queue: &wgpu::Queue,
        encoder: &mut wgpu::CommandEncoder,
        copies: &[BlockCopy],
    ) -> Result<(), GpuError> {
        self.check_blocks("copies", copies.iter().flat_map(|copy| [copy.source, copy.target]), 2)?;
        check_order(copies)?;
        let header = StepHeader { num_copies: copies.len() as u32, copies_base: HEADER_WORDS, ..Default::default() };
        self.record_blocks(queue, encoder, header, bytemuck::cast_slice(copies), self.copies(copies.len())?)
    }

    /// Records that whole blocks are overwritten, K and V of all layers: what a
    /// [`CacheManager`](crate::blocks::CacheManager) reports as released, or a new pool's for a test.
    ///
    /// # Errors
    /// As [`copy_blocks`](Self::copy_blocks); a block may be named twice.
    pub fn fill_blocks(
        &self,
        queue: &wgpu::Queue,
        encoder: &mut wgpu::CommandEncoder,
        blocks: &[u32],
        fill: BlockFill,
    ) -> Result<(), GpuError> {
        self.check_blocks("blocks", blocks.iter().copied(), 1)?;
        let header = StepHeader { num_clears: blocks.len() as u32, clears_base: HEADER_WORDS, ..Default::default() };
        self.record_blocks(queue, encoder, header, blocks, self.fills(fill, blocks.len())?)
    }

    /// The dispatches for a step's copies; none without any.
    pub(crate) fn copies(&self, copies: usize) -> Result<Option<BlockWork<'_>>, GpuError> {
        self.block_work(self.copy_kernel(), copies, COPY_LANES)
    }

    /// The dispatches for a step's clears, alike.
    pub(crate) fn fills(&self, fill: BlockFill, blocks: usize) -> Result<Option<BlockWork<'_>>, GpuError> {
        self.block_work(self.fill_kernel(fill), blocks, FILL_LANES)
    }

    fn copy_kernel(&self) -> Kernel {
        Kernel::BlockCopy { num_blocks: self.block_kernels.num_blocks }
    }

    fn fill_kernel(&self, fill: BlockFill) -> Kernel {
        Kernel::BlockFill { num_blocks: self.block_kernels.num_blocks, fill }
    }

    fn block_work(&self, kernel: Kernel, blocks: usize, lanes: u32) -> Result<Option<BlockWork<'_>>, GpuError> {
        if blocks == 0 {
            return Ok(None);
        }
        let num_blocks = u64::from(self.block_kernels.num_blocks);
        let dispatches = self.layers().iter().flatten().map(|head_shard| {
            let block_units = head_shard.k.size().max(head_shard.v.size()) / num_blocks / UNIT_BYTES;
            Ok((head_shard, grid((blocks as u64).saturating_mul(block_units), lanes, self.profile())?))
        });
        let dispatches = dispatches.collect::<Result<_, GpuError>>()?;
        Ok(Some(BlockWork { pipeline: self.block_kernels.pipeline(self, &kernel)?, dispatches }))
    }

    fn record_blocks(
        &self,
        queue: &wgpu::Queue,
        encoder: &mut wgpu::CommandEncoder,
        header: StepHeader,
        list: &[u32],
        work: Option<BlockWork<'_>>,
    ) -> Result<(), GpuError> {
        let Some(work) = work else { return Ok(()) };
        let words = u64::from(HEADER_WORDS) + list.len() as u64;
        let bytes = element_bytes("the list of blocks", words, self.profile())?;
        self.liveness.check()?;
        let lease = self.send(queue, encoder, bytes, |words| {
            words.clear();
            words.extend_from_slice(bytemuck::cast_slice(&[header]));
            words.extend_from_slice(list);
        })?;
        if let Some(arena) = lease.arena() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: Some("paged.blocks"),
                timestamp_writes: None,
            });
            work.record(&mut pass, arena);
        }
        Ok(())
    }

    /// Whether blocks exist, of which the list holds `per_entry` in an entry.
    pub(crate) fn check_blocks(
        &self,
        list: &'static str,
        mut blocks: impl Iterator<Item = u32>,
        per_entry: usize,
    ) -> Result<(), GpuError> {
        let num_blocks = self.layout().num_blocks();
        let mut index = 0;
        match blocks.find(|&block| {
            index += 1;
            block >= num_blocks
        }) {
            None => Ok(()),
            Some(block) => Err(GpuError::NoSuchBlock { list, index: (index - 1) / per_entry, block, num_blocks }),
        }
    }
}

/// All copies run at once, so no one may write what another reads or writes.
fn check_order(copies: &[BlockCopy]) -> Result<(), GpuError> {
    let mut touched: HashSet<u32> = copies.iter().map(|copy| copy.source).collect();
    match copies.iter().position(|copy| !touched.insert(copy.target)) {
        None => Ok(()),
        Some(index) => Err(GpuError::CopyOrder { index, block: copies[index].target }),
    }
}
