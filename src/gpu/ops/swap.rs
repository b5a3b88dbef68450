//! Blocks out to host memory, and back.

use crate::blocks::{BlockId, CacheManager, SeqId, SequenceRecord};
use crate::error::ManagerError;
use crate::gpu::cache::KvCache;
use crate::gpu::compat;
use crate::gpu::error::{ArgumentError, DeviceError, GpuError};
use crate::gpu::ops::blocks::written_twice;
use crate::gpu::ops::staging::{Route, host_blocks};
use crate::gpu::receipt::Receipt;
use crate::host::HostBlocks;
use crate::layout::KvLayout;

/// Blocks on their way to the host; see [`KvCache::swap_out`].
#[derive(Debug)]
pub struct SwapOut {
    /// Of the cache.
    layout: KvLayout,
    /// In ascending order, none twice.
    ids: Vec<BlockId>,
    route: Route,
    /// The chunks.
    staging: Vec<wgpu::Buffer>,
    /// Of the copies; none where no block was named.
    receipt: Option<Receipt<()>>,
}

/// Why sequences did not come back.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwapInError {
    /// The manager has no room for them, or they make no sense.
    #[error(transparent)]
    Manager(#[from] ManagerError),
    /// Their blocks cannot be copied.
    #[error(transparent)]
    Gpu(#[from] GpuError),
}

impl SwapOut {
    /// The blocks, in ascending order.
    pub fn ids(&self) -> &[BlockId] {
        &self.ids
    }

    /// Whether [`read`](Self::read) would find all blocks, or know that they will not come.
    pub fn is_ready(&self) -> bool {
        self.check() != Err(DeviceError::Pending)
    }

    fn check(&self) -> Result<(), DeviceError> {
        self.receipt.as_ref().map_or(Ok(()), Receipt::check)
    }

    /// What the blocks held when the encoder's commands ran.
    ///
    /// # Errors
    /// [`DeviceError::Pending`] until the encoder was submitted and the device polled, [`DeviceError::NotSubmitted`] if it
    /// was dropped or refused instead, [`DeviceError::Lost`], [`DeviceError::HostMemory`].
    pub fn read(&self) -> Result<HostBlocks, DeviceError> {
        self.check()?;
        let mut blocks = host_blocks(&self.layout, &self.ids)?;
        let views = self.staging.iter().map(|buffer| compat::mapped(buffer).ok_or(DeviceError::Lost));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        for run in &self.route.runs {
            let staged = &views[run.chunk][..];
            for (place, host, from) in run.pieces() {
                let len = host.len();
                blocks.block_mut(place)[host].copy_from_slice(&staged[from..from + len]);
            }
        }
        Ok(blocks)
    }
}

impl KvCache {
    /// Records copies of blocks, K and V of all layers, into memory that the host can read once `encoder` was submitted
    /// and the device polled. A block that is named twice is copied once.
    ///
    /// The blocks may be released as soon as this is recorded, if what overwrites them is submitted later.
    ///
    /// ```no_run
    /// # use wgpu_paged_attention::{blocks::{CacheManager, SeqId}, gpu::KvCache, host::distinct_blocks, wgpu};
    /// # fn swap(device: &wgpu::Device, queue: &wgpu::Queue, cache: &KvCache, manager: &mut CacheManager, seq: SeqId)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let record = manager.export_sequence(seq)?;
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// let out = cache.swap_out(&mut encoder, &distinct_blocks([&record]))?;
    /// manager.release(seq)?;
    /// queue.submit([encoder.finish()]);
    /// device.poll(wgpu::PollType::wait_indefinitely())?; // or poll now and then, and ask out.is_ready()
    /// let host = out.read()?;
    ///
    /// // and back
    /// let mut encoder = device.create_command_encoder(&Default::default());
    /// let seqs = cache.swap_in_sequences(&mut encoder, manager, &[record], &host)?;
    /// queue.submit([encoder.finish()]);
    /// # Ok(()) }
    /// ```
    pub fn swap_out(&self, encoder: &mut wgpu::CommandEncoder, blocks: &[BlockId]) -> Result<SwapOut, GpuError> {
        self.check()?;
        self.check_blocks("blocks", blocks.iter().copied(), 1)?;
        let mut ids = blocks.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let route = Route::new(self, &ids);
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let staging = route.chunks.iter().map(|&size| self.maker.buffer("paged.staging", usage, size));
        let staging = staging.collect::<Result<Vec<_>, _>>()?;
        let receipt = (!ids.is_empty()).then(|| Receipt::record(&self.maker, encoder, &staging, ()));
        let receipt = receipt.transpose()?;
        for run in &route.runs {
            let to = &staging[run.chunk];
            encoder.copy_buffer_to_buffer(&run.pool, run.pool_offset, to, run.chunk_offset, run.bytes());
        }
        Ok(SwapOut { layout: self.layout().clone(), ids, route, staging, receipt })
    }

    /// Records copies of blocks from the host: for every pair, the block that held `pair.0` when it was swapped out comes
    /// back as block `pair.1`. Of the same cache or another one, whatever its head shards; where layers form groups, its groups
    /// and limits are the same.
    ///
    /// # Errors
    /// [`GpuError::Argument`] for blocks of another shape, a block that was not swapped out, that does not exist or that
    /// would be written twice, or [`GpuError::Device`]. Nothing is recorded then.
    pub fn swap_in(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        host: &HostBlocks,
        pairs: &[(BlockId, BlockId)],
    ) -> Result<(), GpuError> {
        self.check()?;
        if let Some((field, given, expected)) = host.difference(self.layout()) {
            let problem = format!("has blocks of {field} {given}, but the cache has {expected}");
            return Err(ArgumentError::new("host", problem).into());
        }
        self.check_blocks("pairs", pairs.iter().map(|pair| pair.1), 1)?;
        let mut moves = Vec::with_capacity(pairs.len());
        for (index, &(old, new)) in pairs.iter().enumerate() {
            let place = host.place(old).ok_or_else(|| {
                let problem = format!("[{index}] asks for what block {old} held, but that one was not swapped out");
                ArgumentError::new("pairs", problem)
            })?;
            moves.push((new, place));
        }
        // So that neighbours on the device are neighbours in the list.
        moves.sort_unstable();
        if let Some(twice) = moves.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let block = twice[0].0;
            let index = pairs.iter().rposition(|pair| pair.1 == block).unwrap_or(0);
            return Err(written_twice("pairs", index, block).into());
        }
        let targets: Vec<BlockId> = moves.iter().map(|&(new, _)| new).collect();
        let route = Route::new(self, &targets);
        let (bytes, block_bytes) = (host.bytes(), host.shape().block_bytes() as usize);
        let fill = |chunk: usize, buffer: &wgpu::Buffer| {
            let mut view = compat::mapped_mut(buffer, ..)?;
            for run in route.runs.iter().filter(|run| run.chunk == chunk) {
                for (place, range, to) in run.pieces() {
                    let block = moves[place].1 * block_bytes;
                    let piece = &bytes[block + range.start..block + range.end];
                    view.slice(to..to + piece.len()).copy_from_slice(piece);
                }
            }
            Some(())
        };
        let staged = route.chunks.iter().enumerate().map(|(chunk, &size)| {
            let usage = wgpu::BufferUsages::COPY_SRC;
            self.maker.mapped_buffer("paged.staging", usage, size, |buffer| fill(chunk, buffer))
        });
        let staging = staged.collect::<Result<Vec<_>, _>>()?;
        for run in &route.runs {
            let from = &staging[run.chunk];
            encoder.copy_buffer_to_buffer(from, run.chunk_offset, &run.pool, run.pool_offset, run.bytes());
        }
        Ok(())
    }

    /// Imports sequences into the manager of this cache and records the copies of their blocks from the host: all or none.
    ///
    /// The sequences exist at once; what they hold is there for whatever is recorded into `encoder` next, or submitted
    /// later.
    ///
    /// # Errors
    /// [`SwapInError::Manager`] if the manager does not take them, [`SwapInError::Gpu`] as [`swap_in`](Self::swap_in).
    /// Nothing is recorded then, and the manager has the sequences and free blocks that it had.
    pub fn swap_in_sequences(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        manager: &mut CacheManager,
        records: &[SequenceRecord],
        host: &HostBlocks,
    ) -> Result<Vec<SeqId>, SwapInError> {
        self.check().map_err(GpuError::from)?;
        if let Some(difference) = self.layout().difference(manager.layout()) {
            return Err(GpuError::from(ArgumentError::other_shape("manager", difference)).into());
        }
        let imported = manager.import_sequences(records)?;
        if let Err(error) = self.swap_in(encoder, host, &imported.blocks) {
            for &seq in imported.sequences.iter().rev() {
                manager.release(seq)?;
            }
            return Err(error.into());
        }
        Ok(imported.sequences)
    }
}
