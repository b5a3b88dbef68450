//! The cache on a device: pools of all layers and resident block tables.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::arena::{Arena, ArenaPart, ArenaPool, SharedLayouts};
use super::error::{DeviceError, GpuError};
use super::group::{LayerGroup, table_bytes};
use super::kept::{GroupParts, KeptGroups};
use super::kernel::Kernel;
use super::kernel::shape::KvShape;
use super::make::{LazyPipeline, Maker};
use super::ops::resize::Moves;
use super::pools::HeadShard;
use super::profile::DeviceProfile;
use super::value::{ClearValue, Identity};
use crate::layout::KvLayout;
use crate::plan::{Schedule, StepPlan};

/// Steps after which a bind group over buffers that no call named is let go, or twice as many.
const KEPT_STEPS: u64 = 16;

/// K and V of all layers on a device, with the block tables of all sequences.
///
/// It records into the caller's encoder and pass; it never submits, waits or reads back. Which block belongs to which
/// sequence is decided elsewhere: by a [`CacheManager`](crate::blocks::CacheManager), or by an engine that hands over its
/// own tables through [`StepPlan::plan_tables`].
///
/// # Several caches of one manager
///
/// One manager and one plan may drive several caches of one shape: the shards of tensor-parallel heads, each on a device of
/// its own and with its part of the KV heads, or the parts of a model that is cut by layers. They have one layout and one
/// [schedule](Self::schedule), so the same profile; a cache of another shape is refused by the name of what differs. Each cache
/// [begins](Self::begin_step) every step, before the manager commits it, and its own encoder is submitted to its own device;
/// tables, copies and clears are then the same everywhere. Swaps are recorded for each cache as well. A cache has one manager.
///
/// ```no_run
/// # use wgpu_paged_attention::{blocks::{CacheManager, SeqId}, config::CacheConfig, gpu::KvCache, wgpu};
/// # fn serve(devices: &[(wgpu::Device, wgpu::Queue)], record: impl Fn(usize)) -> Result<(), Box<dyn std::error::Error>> {
/// // 8 KV heads on two devices: four each.
/// let layout = CacheConfig::new(32, 8 / devices.len() as u32, 128).with_num_blocks(1000).layout()?;
/// let caches = devices.iter().map(|(device, _)| KvCache::new(device, &layout)).collect::<Result<Vec<_>, _>>()?;
/// let (mut manager, mut plan) = (CacheManager::new(&layout)?, caches[0].new_plan());
/// let seq = manager.create_sequence()?;
/// let step = manager.step(&[(seq, 1)], &mut plan)?;
/// for (cache, (device, queue)) in caches.iter().zip(devices) {
///     let mut encoder = device.create_command_encoder(&Default::default());
///     let begun = cache.begin_step(&mut encoder, step.plan())?;
///     // append and attend with this shard's heads
///     queue.submit([encoder.finish()]);
/// }
/// step.commit();
/// # Ok(()) }
/// ```
///
/// # Layers of unlike kinds
///
/// A model whose layers differ in heads, widths or windows has one cache all the same, where its layers are described [one by
/// one](crate::config::CacheConfig::of_layers): a step is begun once, and every layer is called by its number in the model.
/// Appenders serve layers of one shape, attentions those of one shape and one window; each is made for a
/// [layer](super::AttentionSpec::with_layer) that has them.
///
/// ```no_run
/// # use wgpu_paged_attention::{blocks::{CacheManager, SeqId}, config::{CacheConfig, LayerKind}, gpu::*, wgpu};
/// # fn decode(device: &wgpu::Device, io: impl Fn(u32) -> (AppendIo<'static>, AttentionIo<'static>))
/// # -> Result<(), Box<dyn std::error::Error>> {
/// // Gemma-3-27B: every sixth of 62 layers sees all keys, the others their last 1,024, and their rotations differ as well.
/// let (full, local) = (LayerKind::new(16, 128), LayerKind::new(16, 128).with_window(1024));
/// let layers: Vec<_> = (0..62).map(|layer| if layer % 6 == 5 { full } else { local }).collect();
/// let config = CacheConfig::of_layers(&layers).with_max_seq_len(131_072).with_memory_budget_bytes(8 << 30);
/// let cache = KvCache::new(device, &config.layout()?)?;
/// let kernels = |spec: AttentionSpec, base| -> Result<_, GpuError> {
///     let rotary = RotarySpec::new(RotaryStyle::HalfSplit, 128).with_base(base);
///     Ok((cache.appender(AppendSpec::for_attention(&spec).with_rotary(rotary))?, cache.attention(spec)?))
/// };
/// let of_full = kernels(AttentionSpec::new(32).with_layer(5), 1e6)?;
/// let of_local = kernels(AttentionSpec::new(32).with_layer(0).with_window(1024), 1e4)?;
/// # let mut manager = CacheManager::new(cache.layout())?;
/// # let (mut plan, seq) = (cache.new_plan(), manager.create_sequence()?);
/// # let mut encoder = device.create_command_encoder(&Default::default());
/// let step = manager.step(&[(seq, 1)], &mut plan)?;
/// let begun = cache.begin_step(&mut encoder, step.plan())?;
/// # let mut pass = encoder.begin_compute_pass(&Default::default());
/// for (layer, kind) in (0..).zip(&layers) {
///     let (appender, attention) = if *kind == full { &of_full } else { &of_local };
///     # let (append_io, attention_io) = io(layer);
///     cache.append(&mut pass, appender, &begun, layer, append_io)?;
///     cache.attend(&mut pass, attention, &begun, layer, attention_io)?;
/// }
/// # Ok(()) }
/// ```
///
/// All layers share the pools, block by block; [`KvLayout::groups`] tells how. [Swaps](Self::swap_out) and
/// [copies](Self::copy_blocks) take blocks of any group, [transfers](Self::layer_transfer) are made for a layer, and
/// [snapshots](crate::host::snapshot) are refused.
#[derive(Debug)]
pub struct KvCache {
    identity: Identity,
    pub(super) maker: Maker,
    layout: KvLayout,
    profile: DeviceProfile,
    pub(super) layouts: SharedLayouts,
    /// At least one.
    groups: Vec<LayerGroup>,
    /// These are compiled when they are first needed: a cache that shares nothing needs the first alone.
    table_update: LazyPipeline,
    pub(super) copy: LazyPipeline,
    /// By the value that is written.
    pub(super) clear: [LazyPipeline; 2],
    clear_value: ClearValue,
    arenas: ArenaPool,
    /// A step's words on the host, kept for its capacity.
    words: Mutex<Vec<u32>>,
    /// Steps that were begun.
    steps: AtomicU64,
    kept: KeptGroups,
    pub(super) moves: Moves,
    shrinks: Shrinks,
}

/// How often the cache lost its last blocks, and how many the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shrinks {
    count: u64,
    pub(super) from: u32,
    pub(super) to: u32,
}

impl KvCache {
    /// Creates the pools on `device`, with the kernels' form chosen for it.
    ///
    /// # Errors
    /// [`GpuError::Layout`] if one KV head's pool exceeds a binding of the device, or the KV heads of unlike layers cannot be
    /// dealt out to bindings alike; [`GpuError::Device`] if a buffer would be too large, or the device is out of memory or
    /// lost; [`GpuError::Spec`] if heads so wide take more workgroup memory than it has.
    pub fn new(device: &wgpu::Device, layout: &KvLayout) -> Result<Self, GpuError> {
        Self::with_profile(device, layout, DeviceProfile::of(device))
    }

    /// Like [`new`](Self::new), with a profile of the caller's; for tests and for tuning.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`GpuError::Spec`] for a form that the device cannot run.
    pub fn with_profile(device: &wgpu::Device, layout: &KvLayout, profile: DeviceProfile) -> Result<Self, GpuError> {
        let maker = Maker::new(device)?;
        profile.check(device)?;
        layout.groups().iter().try_for_each(|group| profile.check_memory(&KvShape::of(group), &device.limits()))?;
        let cuts = layout.group_head_shards(profile.max_binding_bytes.min(profile.max_buffer_bytes))?;
        let tables = layout.groups().iter().map(|group| table_bytes(group, &profile));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        let layouts = SharedLayouts::new(&maker)?;
        let pools = (0..layout.layers_per_group())
            .map(|place| HeadShard::of_place(&maker, &layout.groups()[0], &layouts, &cuts[0], place))
            .collect::<Result<Vec<_>, _>>()?;
        let groups = cuts.iter().zip(tables).map(|(cut, bytes)| LayerGroup::new(&maker, bytes, cut, &pools));
        let groups = groups.collect::<Result<_, _>>()?;
        let cache = Self {
            identity: Identity::default(),
            layout: layout.clone(),
            profile,
            groups,
            table_update: LazyPipeline::default(),
            copy: LazyPipeline::default(),
            clear: Default::default(),
            clear_value: ClearValue::default(),
            arenas: ArenaPool::default(),
            words: Mutex::default(),
            steps: AtomicU64::new(0),
            kept: KeptGroups::new(KEPT_STEPS),
            moves: Moves::default(),
            shrinks: Shrinks::default(),
            layouts,
            maker,
        };
        // Out of memory can also mean that the device went away.
        cache.maker.check()?;
        Ok(cache)
    }

    /// Calls that reach the pools begin with this: [`DeviceError::Lost`], or [`DeviceError::ResizeNotSubmitted`] where a
    /// layer's pools lack what they held before.
    pub(super) fn check(&self) -> Result<(), DeviceError> {
        self.maker.check()?;
        self.moves.check()
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
        self.maker.device()
    }

    /// What the blocks that a plan [clears](StepPlan::clears) are overwritten with.
    pub fn clear_value(&self) -> ClearValue {
        self.clear_value
    }

    /// Sets [`clear_value`](Self::clear_value); zeros unless set.
    pub fn set_clear_value(&mut self, value: ClearValue) {
        self.clear_value = value;
    }

    /// What the driver keeps of the kernels that it compiles, if it was [set](Self::set_pipeline_cache).
    pub fn pipeline_cache(&self) -> Option<&wgpu::PipelineCache> {
        self.maker.pipeline_cache()
    }

    /// Sets [`pipeline_cache`](Self::pipeline_cache): every kernel that is compiled for this cache from now on is looked up
    /// there, and kept there. [`load_pipeline_cache`](super::load_pipeline_cache) makes one from a file. A new cache of blocks
    /// has compiled nothing yet; set it before [`attention`](Self::attention) and [`appender`](Self::appender) are made.
    ///
    /// One that was made on another device is refused when the first kernel is compiled, with [`DeviceError::Validation`].
    pub fn set_pipeline_cache(&mut self, cache: wgpu::PipelineCache) {
        self.maker.set_pipeline_cache(cache);
    }

    pub(super) fn table_update(&self) -> Result<wgpu::ComputePipeline, DeviceError> {
        self.table_update.get(&self.maker, &Kernel::TableUpdate, &[&self.layouts.step_update])
    }

    /// The groups of layers.
    pub(super) fn groups(&self) -> &[LayerGroup] {
        &self.groups
    }

    /// The pools of all places, for kernels that handle whole blocks; the first group's KV heads say how they are cut.
    pub(super) fn places(&self) -> &[Vec<HeadShard>] {
        &self.groups[0].places
    }

    /// The pools of a layer, in the order of their KV heads; for copies, dumps and tests. Where layers form
    /// [groups](KvLayout::groups), a block of these buffers is the layer's while its group has it.
    pub fn head_shards(&self, layer: u32) -> Result<&[HeadShard], GpuError> {
        Ok(self.layer(layer)?.head_shards)
    }

    /// Gives a place other pools, cut by the KV heads of the first group.
    pub(super) fn set_place(&mut self, place: u32, pools: &[HeadShard]) {
        self.groups.iter_mut().for_each(|group| group.set_place(place as usize, pools));
        let blocks = |shard: &HeadShard| shard.k.size() / self.layout.k_block_bytes(shard.num_heads);
        let to = self.places().iter().flatten().map(blocks).min().unwrap_or(1) as u32;
        let from = self.layout.num_blocks();
        if to < from {
            self.shrinks = Shrinks { count: self.shrinks.count + 1, from, to };
        }
        self.layout = self.layout.with_num_blocks(to);
    }

    pub(super) fn shrinks(&self) -> Shrinks {
        self.shrinks
    }

    /// How plans for this cache cut their work, in all groups of layers alike: query tiles are as wide as the kernels of every
    /// group have room for.
    pub fn schedule(&self) -> Schedule {
        let mut groups = self.layout.groups().iter().map(|group| self.profile.schedule(&KvShape::of(group)));
        let first = groups.next().unwrap_or_default();
        groups.fold(first, |all, own| Schedule { tile_tokens: all.tile_tokens.min(own.tile_tokens), ..all })
    }

    /// An empty plan with the schedule of this cache.
    pub fn new_plan(&self) -> StepPlan {
        StepPlan::new(self.schedule())
    }

    /// The number of a step that is begun.
    pub(super) fn next_step(&self) -> u64 {
        let number = self.steps.fetch_add(1, Ordering::Relaxed);
        self.kept.sweep(number);
        number
    }

    /// A bind group for a call of a step: one that was kept, or a new one.
    pub(super) fn io_group(&self, step: u64, parts: &GroupParts<'_>) -> Result<wgpu::BindGroup, DeviceError> {
        self.kept.get(&self.maker, step, parts)
    }

    /// Drops the bind groups that are kept for steps to come, and with them what holds the caller's buffers.
    ///
    /// [`append`](Self::append) and [`attend`](Self::attend) keep the bind groups over buffers that come in more than one
    /// step, so that recording a step makes none. Buffers that are not used any more are let go by themselves after 16 to
    /// 32 further steps; an engine that drops its buffers and begins no step calls this to have their memory back.
    /// Steps that are recorded already keep what they need.
    pub fn forget_buffers(&self) {
        self.kept.clear();
    }

    /// Records the upload of a step's words to an arena, which is kept until what `encoder` holds has run, or was dropped.
    /// `encode` adds the words of a group, which take as many of `bytes`; later groups than those have none.
    pub(super) fn send(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        bytes: &[u64],
        fill: impl FnOnce(&mut [ArenaPart]),
        encode: impl Fn(usize, &mut Vec<u32>),
    ) -> Result<Arc<Arena>, DeviceError> {
        let arena = self.arenas.lease(&self.maker, &self.layouts, &self.groups, &self.profile, bytes, fill)?;
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.clear();
        (0..bytes.len()).for_each(|group| encode(group, &mut words));
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        let upload = self.maker.filled("paged.step_upload", usage, bytemuck::cast_slice(&words))?;
        let mut from = 0;
        for (part, &bytes) in arena.parts.iter().zip(bytes) {
            encoder.copy_buffer_to_buffer(&upload, from, &part.words, 0, bytes);
            from += bytes;
        }
        let in_flight = Arc::clone(&arena);
        encoder.on_submitted_work_done(move || drop(in_flight));
        Ok(arena)
    }
}
