//! Blocks from and to the pools of other engines, converted on the device.

use std::collections::HashSet;

use bytemuck::{Pod, Zeroable};

use crate::blocks::BlockId;
use crate::gpu::binding::{check_disjoint, element_bytes, grid, storage_binding};
use crate::gpu::cache::KvCache;
use crate::gpu::error::{ArgumentError, DeviceError, GpuError};
use crate::gpu::group::LayerShape;
use crate::gpu::kernel::params::TransferParams;
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::kernel::{ITEM_LANES, Kernel};
use crate::gpu::make::{BindingKind, Dispatch, record};
use crate::gpu::ops::blocks::written_twice;
use crate::gpu::pools::pool_buffers;
use crate::gpu::value::{ExternalLayout, Identity};

/// One layer's K and V in another engine's pools.
///
/// K and V may lie in one buffer, as slices of it: a `[2, num_blocks, …]` pool is K from the start and V from the middle
/// on. A `[num_blocks, 2, …]` pool is K from the start and V from one block later on, each of `2 * num_blocks - 1` blocks,
/// of which block `2 * b` is named. A pool larger than a binding is passed in pieces.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ExternalPool<'a> {
    /// Blocks of each slice.
    pub num_blocks: u32,
    /// Blocks of K, `head_dim` wide, from the start of the slice on.
    pub k: wgpu::BufferSlice<'a>,
    /// Blocks of V, `v_head_dim` wide, alike.
    pub v: wgpu::BufferSlice<'a>,
}

/// A block of another engine's pool, and the block of the cache that goes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
#[non_exhaustive]
pub struct BlockPair {
    /// Theirs.
    pub external: u32,
    /// Ours.
    pub own: BlockId,
}

impl<'a> ExternalPool<'a> {
    /// Slices of `num_blocks` blocks each.
    pub fn new(num_blocks: u32, k: wgpu::BufferSlice<'a>, v: wgpu::BufferSlice<'a>) -> Self {
        Self { num_blocks, k, v }
    }
}

impl BlockPair {
    /// A block of theirs, and ours.
    pub fn new(external: u32, own: BlockId) -> Self {
        Self { external, own }
    }
}

/// Compiled kernels that copy blocks between the cache that made it and pools of an [`ExternalLayout`].
#[derive(Debug)]
pub struct Transfer {
    layout: ExternalLayout,
    cache: Identity,
    shape: LayerShape,
    io: wgpu::BindGroupLayout,
    /// For K and for V.
    import: [wgpu::ComputePipeline; 2],
    export: [wgpu::ComputePipeline; 2],
}

/// Which way the blocks go.
#[derive(Clone, Copy)]
enum Direction {
    Import,
    Export,
}

impl KvCache {
    /// Compiles the kernels for another engine's layout, for layers that are alike in KV heads and widths.
    pub fn transfer(&self, layout: ExternalLayout) -> Result<Transfer, GpuError> {
        self.layer_transfer(0, layout)
    }

    /// The same for layers of the shape that `layer` has, where they are not all alike.
    ///
    /// # Errors
    /// [`GpuError::Argument`] for a layer that does not exist, or [`GpuError::Device`].
    pub fn layer_transfer(&self, layer: u32, layout: ExternalLayout) -> Result<Transfer, GpuError> {
        use BindingKind::{Read, Uniform, Write};
        self.maker.check()?;
        let io = self.maker.layout("paged.transfer_io", &[Uniform, Read, Read, Write])?;
        let shape = LayerShape::of(self.layer(layer)?.layout);
        let [k, v] = sides(&shape.kv);
        let both = |kernel: fn(KvShape, ExternalLayout) -> Kernel| {
            let of_k = self.maker.pipeline(&kernel(k, layout), &[&io])?;
            let of_v = if k == v { of_k.clone() } else { self.maker.pipeline(&kernel(v, layout), &[&io])? };
            Ok::<_, DeviceError>([of_k, of_v])
        };
        let import = both(|kv, external| Kernel::PoolImport { kv, external })?;
        let export = both(|kv, external| Kernel::PoolExport { kv, external })?;
        Ok(Transfer { layout, cache: self.identity().clone(), shape, io, import, export })
    }

    /// Records the import of one layer's K and V: every pair's block of `pool` becomes our block, converted as
    /// [`append`](Self::append) would.
    ///
    /// Blocks that no pair names stay as they are. All tokens of a block are converted, also those that the other engine
    /// has not written. Two pairs with one destination are refused: they would be torn.
    pub fn import_pool(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        transfer: &Transfer,
        layer: u32,
        pool: ExternalPool<'_>,
        pairs: &[BlockPair],
    ) -> Result<(), GpuError> {
        self.record_transfer(pass, transfer, layer, pool, pairs, Direction::Import)
    }

    /// Records the export of one layer's K and V: every pair's block of ours is written to its block of `pool`.
    ///
    /// Blocks that no pair names stay as they are. Slots that were never written come out as whatever their bits mean,
    /// NaN perhaps: the lengths tell which they are. 16-bit elements are rounded to nearest even.
    pub fn export_pool(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        transfer: &Transfer,
        layer: u32,
        pool: ExternalPool<'_>,
        pairs: &[BlockPair],
    ) -> Result<(), GpuError> {
        self.record_transfer(pass, transfer, layer, pool, pairs, Direction::Export)
    }

    fn record_transfer(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        transfer: &Transfer,
        layer: u32,
        pool: ExternalPool<'_>,
        pairs: &[BlockPair],
        direction: Direction,
    ) -> Result<(), GpuError> {
        self.check()?;
        let served = self.layer(layer)?;
        let (maker, profile) = (&self.maker, self.profile());
        let (layout, head_shards) = (served.layout, served.head_shards);
        if transfer.cache != *self.identity() {
            return Err(ArgumentError::other_cache("transfer").into());
        }
        served.check_shape(layer, "transfer", &transfer.shape)?;
        check_pairs(pairs, pool.num_blocks, layout.num_blocks(), direction)?;
        let shapes = sides(&transfer.shape.kv);
        let per_word = transfer.layout.element.per_word();
        let theirs = |name, slice, shape: &KvShape| {
            let rows = u64::from(layout.num_kv_heads()) * u64::from(layout.block_size());
            let elements = u64::from(pool.num_blocks).saturating_mul(rows * u64::from(shape.head_dim));
            storage_binding(name, slice, elements.div_ceil(per_word.into()), profile)
        };
        let theirs = [theirs("k", pool.k, &shapes[0])?, theirs("v", pool.v, &shapes[1])?];
        let (named, ours) = ([("k", theirs[0].buffer), ("v", theirs[1].buffer)], pool_buffers(head_shards));
        match direction {
            Direction::Import => check_disjoint(named, ours)?,
            Direction::Export => check_disjoint(ours, named)?,
        }
        if pairs.is_empty() {
            return Ok(());
        }

        element_bytes("the pairs of blocks", 2 * pairs.len() as u64, profile)?;
        let list = maker.filled("paged.pairs", wgpu::BufferUsages::STORAGE, bytemuck::cast_slice(pairs))?;
        let mut dispatches = Vec::with_capacity(2 * head_shards.len());
        for head_shard in head_shards {
            let params = TransferParams {
                num_pairs: pairs.len() as u32,
                first_kv_head: head_shard.first_head,
                num_kv_heads: head_shard.num_heads,
                total_kv_heads: layout.num_kv_heads(),
            };
            let params = maker.uniform("paged.transfer_params", &params)?;
            let rows = pairs.len() as u64 * u64::from(head_shard.num_heads) * u64::from(layout.block_size());
            for (side, ours) in [&head_shard.k, &head_shard.v].into_iter().enumerate() {
                let (ours, theirs) = (ours.as_entire_buffer_binding(), theirs[side].clone());
                let (pipeline, per_row, lanes, read, written) = match direction {
                    Direction::Import => (&transfer.import[side], shapes[side].row_lanes(), ITEM_LANES, theirs, ours),
                    Direction::Export => {
                        (&transfer.export[side], shapes[side].head_dim.div_ceil(per_word), ITEM_LANES, ours, theirs)
                    }
                };
                let grid = grid(rows.saturating_mul(per_row.into()), lanes, profile)?;
                let resources = [params.as_entire_buffer_binding(), list.as_entire_buffer_binding(), read, written];
                let io = maker.bind_group("paged.transfer_io", &transfer.io, &resources)?;
                dispatches.push(Dispatch::new(pipeline, [&io], grid));
            }
        }
        record(pass, &dispatches);
        Ok(())
    }
}

/// What a dispatch that copies only K, or only V, must know of the cache: both widths are that one's.
fn sides(kv: &KvShape) -> [KvShape; 2] {
    [kv.head_dim, kv.v_head_dim].map(|width| KvShape { head_dim: width, v_head_dim: width, ..*kv })
}

fn check_pairs(
    pairs: &[BlockPair],
    num_external: u32,
    num_own: u32,
    direction: Direction,
) -> Result<(), ArgumentError> {
    let mut written = HashSet::with_capacity(pairs.len());
    for (index, pair) in pairs.iter().enumerate() {
        for (field, block, num_blocks) in [("external", pair.external, num_external), ("own", pair.own.get(), num_own)]
        {
            if block >= num_blocks {
                let problem =
                    format!("[{index}].{field} is block {block}, but that pool has {num_blocks}; correct the pair");
                return Err(ArgumentError::new("pairs", problem));
            }
        }
        let target = match direction {
            Direction::Import => pair.own.get(),
            Direction::Export => pair.external,
        };
        if !written.insert(target) {
            return Err(written_twice("pairs", index, target));
        }
    }
    Ok(())
}
