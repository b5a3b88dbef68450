//! The cache on a device: pools of all layers, resident block tables, and the recording of a step.

use std::sync::Arc;

use super::arena::{Arena, ArenaPool, Lease};
use super::binding::{element_bytes, grid};
use super::error::GpuError;
use super::pipeline::{BindingKind, SharedLayouts, bind_group, bind_group_layout, compile};
use super::profile::DeviceProfile;
use super::scope::{Liveness, scoped};
use super::step::Step;
use crate::gpu::kernel::params::AppendParams;
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::kernel::{Kernel, UPDATE_LANES};
use crate::gpu::ops::block_work::{BlockFill, BlockKernels};
use crate::layout::{HeadShards, KvLayout};
use crate::plan::{Schedule, StepPlan};

/// K and V of all layers on a device, with the block tables of all sequences.
///
/// It records into the caller's encoder and pass; it never submits, waits or reads back. Which block belongs to whom is
/// decided elsewhere: by a [`CacheManager`](crate::blocks::CacheManager), which keeps track of one cache's tables and
/// must not be shared by two, or by an engine that hands over its own tables
/// through [`StepPlan::plan_tables`].
#[derive(Debug)]
pub struct KvCache {
    identity: Identity,
    device: wgpu::Device,
    layout: KvLayout,
    profile: DeviceProfile,
    pub(super) layouts: SharedLayouts,
    /// `[num_layers][head shards]`
    layers: Vec<Vec<HeadShard>>,
    tables: wgpu::Buffer,
    pub(super) append_io: wgpu::BindGroupLayout,
    pub(super) append: wgpu::ComputePipeline,
    table_update: wgpu::ComputePipeline,
    pub(super) block_kernels: BlockKernels,
    block_fill: BlockFill,
    arenas: ArenaPool,
    pub(super) liveness: Liveness,
}

/// The KV heads of one layer that share a pair of bindings.
#[derive(Debug)]
pub struct HeadShard {
    /// First KV head.
    pub first_head: u32,
    /// KV heads.
    pub num_heads: u32,
    /// K: `[num_blocks, num_heads, block_size, k_row_units]` units of 16 bytes.
    pub k: wgpu::Buffer,
    /// V: `[num_blocks, num_heads, block_size, v_row_units]`.
    pub v: wgpu::Buffer,
    pub(super) read: wgpu::BindGroup,
    pub(super) write: wgpu::BindGroup,
    pub(super) append_params: wgpu::Buffer,
}

/// Tells caches apart, whatever their shape.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity(Arc<()>);

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl KvCache {
    /// Creates the pools on `device`, with the kernels' form chosen for it.
    ///
    /// # Errors
    /// [`GpuError::Layout`] if one KV head's pool exceeds a binding of the device, [`GpuError::Limit`] if a buffer would
    /// be too large, [`GpuError::OutOfMemory`], [`GpuError::DeviceLost`].
    pub fn new(device: &wgpu::Device, layout: &KvLayout) -> Result<Self, GpuError> {
        Self::with_profile(device, layout, DeviceProfile::of(device))
    }

    /// Like [`new`](Self::new), with a profile of the caller's; for tests and for tuning.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`GpuError::Profile`] for a form that the device cannot run.
    pub fn with_profile(device: &wgpu::Device, layout: &KvLayout, profile: DeviceProfile) -> Result<Self, GpuError> {
        profile.check(device)?;
        let liveness = Liveness::new(device)?;
        let head_shards = layout.head_shards(profile.max_binding_bytes.min(profile.max_buffer_bytes))?;
        let table_words = u64::from(layout.max_sequences()) * u64::from(layout.max_blocks_per_seq());
        let table_bytes = element_bytes("the block tables", table_words, &profile)?;
        let layouts = scoped(device, "bind group layouts", 0, || SharedLayouts::new(device))?;
        let append_io = scoped(device, "bind group layouts", 0, || {
            bind_group_layout(device, "paged.append_io", &[BindingKind::Uniform, BindingKind::Read, BindingKind::Read])
        })?;
        let append = compile(
            device,
            &Kernel::KvAppend { kv: KvShape::of(layout) },
            &[&layouts.step, &layouts.pools_append, &append_io],
        )?;
        let table_update = compile(device, &Kernel::TableUpdate, &[&layouts.step_update])?;
        let tables = scoped(device, "the block tables", table_bytes, || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("paged.tables"),
                size: table_bytes,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            })
        })?;
        let layers = (0..layout.num_layers())
            .map(|layer| new_layer(device, layout, &layouts, &head_shards, layer))
            .collect::<Result<_, _>>()?;
        // Out of memory can also mean that the device went away.
        liveness.check()?;
        Ok(Self {
            identity: Identity::default(),
            device: device.clone(),
            layout: layout.clone(),
            profile,
            layouts,
            layers,
            tables,
            append_io,
            append,
            table_update,
            block_kernels: BlockKernels::new(layout.num_blocks()),
            block_fill: BlockFill::default(),
            arenas: ArenaPool::default(),
            liveness,
        })
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The shape of the cache.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The form of the kernels and the limits they keep.
    pub fn profile(&self) -> &DeviceProfile {
        &self.profile
    }

    /// The device that the cache was made on.
    pub fn device(&self) -> &wgpu::Device {
        &self.device
    }

    /// What the blocks that a plan [clears](StepPlan::clears) are overwritten with.
    pub fn block_fill(&self) -> BlockFill {
        self.block_fill
    }

    /// Sets [`block_fill`](Self::block_fill); zeros unless set.
    pub fn set_block_fill(&mut self, fill: BlockFill) {
        self.block_fill = fill;
    }

    /// The pools of all layers.
    pub(super) fn layers(&self) -> &[Vec<HeadShard>] {
        &self.layers
    }

    /// The pools of a layer, in the order of their KV heads; for copies, dumps and tests.
    ///
    /// # Errors
    /// [`GpuError::Layer`] if there is no such layer.
    pub fn head_shards(&self, layer: u32) -> Result<&[HeadShard], GpuError> {
        let missing = GpuError::Layer { layer, num_layers: self.layout.num_layers() };
        self.layers.get(layer as usize).map(Vec::as_slice).ok_or(missing)
    }

    /// How plans for this cache cut their work.
    pub fn schedule(&self) -> Schedule {
        self.profile.schedule(&KvShape::of(&self.layout))
    }

    /// An empty plan with the schedule of this cache.
    pub fn new_plan(&self) -> StepPlan {
        StepPlan::new(self.schedule())
    }

    /// Sends a plan to the device, once for all layers, and records what comes before the first append: changes of the
    /// block tables, [clears](StepPlan::clears) and [copies](StepPlan::copies) of blocks in all layers.
    ///
    /// Record the step into `encoder`, or into encoders submitted after it. Steps must be submitted in the order in
    /// which they were begun. The upload is as long as the batch, whatever the context. Kernels for clears and copies that
    /// were not [warmed up](Self::warm_up) are compiled here.
    ///
    /// # Errors
    /// [`GpuError::Foreign`] for a plan of another layout, [`GpuError::Schedule`] for one that was not made by
    /// [`new_plan`](Self::new_plan), [`GpuError::Limit`] for one larger than a binding, [`GpuError::OutOfMemory`],
    /// [`GpuError::DeviceLost`]. Nothing is recorded then.
    pub fn begin_step(
        &self,
        queue: &wgpu::Queue,
        encoder: &mut wgpu::CommandEncoder,
        plan: &StepPlan,
    ) -> Result<Step, GpuError> {
        if !plan.fits(&self.layout) {
            return Err(GpuError::Foreign { what: "plan" });
        }
        let (given, expected) = (plan.schedule(), self.schedule());
        if given != expected {
            return Err(GpuError::Schedule { given, expected });
        }
        let bytes = element_bytes("the step's words", plan.upload_bytes() / 4, &self.profile)?;
        let updates = grid(plan.updates().len() as u64, UPDATE_LANES, &self.profile)?;
        let fills = self.fills(self.block_fill, plan.clears().len())?;
        let copies = self.copies(plan.copies().len())?;
        self.liveness.check()?;
        let lease = self.send(queue, encoder, bytes, |words| plan.encode(words))?;
        if let Some(arena) = lease.arena()
            && (updates[0] > 0 || fills.is_some() || copies.is_some())
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: Some("paged.begin_step"),
                timestamp_writes: None,
            });
            if updates[0] > 0 {
                pass.set_pipeline(&self.table_update);
                pass.set_bind_group(0, &arena.update, &[]);
                pass.dispatch_workgroups(updates[0], updates[1], updates[2]);
            }
            for work in [fills, copies].into_iter().flatten() {
                work.record(&mut pass, arena);
            }
        }
        Ok(Step::new(plan, lease, self.identity.clone()))
    }

    /// Sends the words of a step to an arena, which is kept until what `encoder` holds has run, or was dropped.
    pub(super) fn send(
        &self,
        queue: &wgpu::Queue,
        encoder: &wgpu::CommandEncoder,
        bytes: u64,
        encode: impl FnOnce(&mut Vec<u32>),
    ) -> Result<Arc<Lease>, GpuError> {
        let mut lease = self.arenas.lease(&self.device, &self.layouts, &self.tables, &self.profile, bytes)?;
        if let Some(Arena { words, staging, .. }) = lease.arena_mut() {
            encode(staging);
            queue.write_buffer(words, 0, bytemuck::cast_slice(staging));
        }
        let lease = Arc::new(lease);
        let in_flight = Arc::clone(&lease);
        encoder.on_submitted_work_done(move || drop(in_flight));
        Ok(lease)
    }
}

fn new_layer(
    device: &wgpu::Device,
    layout: &KvLayout,
    layouts: &SharedLayouts,
    head_shards: &HeadShards,
    layer: u32,
) -> Result<Vec<HeadShard>, GpuError> {
    let pool = |name: &str, bytes| {
        scoped(device, "a pool of K or V", bytes, || {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(&format!("paged.{name}[{layer}]")),
                size: bytes,
                usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            })
        })
    };
    head_shards
        .iter()
        .map(|(first_head, num_heads)| {
            let k = pool("k", layout.k_shard_bytes(num_heads))?;
            let v = pool("v", layout.v_shard_bytes(num_heads))?;
            scoped(device, "the bindings of a pool", 0, || {
                let pools = [k.as_entire_buffer_binding(), v.as_entire_buffer_binding()];
                let params = AppendParams {
                    first_kv_head: first_head,
                    num_kv_heads: num_heads,
                    total_kv_heads: layout.num_kv_heads(),
                    padding: 0,
                };
                HeadShard {
                    first_head,
                    num_heads,
                    read: bind_group(device, "paged.pools", &layouts.pools, &pools),
                    write: bind_group(device, "paged.pools_append", &layouts.pools_append, &pools),
                    append_params: uniform(device, "paged.append_params", &params),
                    k: k.clone(),
                    v: v.clone(),
                }
            })
        })
        .collect()
}

/// The pools of some head shards, as arguments that are written.
pub(super) fn pool_buffers(head_shards: &[HeadShard]) -> Vec<(&'static str, &wgpu::Buffer)> {
    head_shards
        .iter()
        .flat_map(|head_shard| [("the pool of K", &head_shard.k), ("the pool of V", &head_shard.v)])
        .collect()
}

/// A uniform buffer that never changes.
pub(super) fn uniform<T: bytemuck::Pod>(device: &wgpu::Device, label: &str, value: &T) -> wgpu::Buffer {
    filled_buffer(device, label, wgpu::BufferUsages::UNIFORM, bytemuck::bytes_of(value))
}

/// A buffer that never changes; `contents` are whole words.
pub(super) fn filled_buffer(
    device: &wgpu::Device,
    label: &str,
    usage: wgpu::BufferUsages,
    contents: &[u8],
) -> wgpu::Buffer {
    let buffer = device.create_buffer(&wgpu::BufferDescriptor {
        label: Some(label),
        size: contents.len() as u64,
        usage,
        mapped_at_creation: true,
    });
    // A buffer that was not made has no range; the error scope around this knows why.
    if let Ok(mut range) = buffer.get_mapped_range_mut(..) {
        range.copy_from_slice(contents);
    }
    buffer.unmap();
    buffer
}
