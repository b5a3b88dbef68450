//! Buffers for the words of steps that are in flight.
//!
//! The words of two steps may be read by dispatches of one submit, so two steps need two buffers. A step therefore
//! *leases* an arena that the device has finished with: it comes back when the command buffers it was recorded into have
//! run, or were dropped, and the [`Step`](super::Step) is gone as well. After a few steps no new arena is made.

use std::sync::{Arc, Mutex, PoisonError};

use super::error::DeviceError;
use super::group::LayerGroup;
use super::make::{BindingKind, Maker};
use super::profile::DeviceProfile;
use super::work::StepWork;

/// Layouts of bind groups 0 (the step) and 1 (a head shard's pools), shared by all kernels and layers.
#[derive(Clone, Debug)]
pub(super) struct SharedLayouts {
    /// Step words and tables, read.
    pub(super) step: wgpu::BindGroupLayout,
    /// Step words, read; tables, written.
    pub(super) step_update: wgpu::BindGroupLayout,
    /// K and V, read.
    pub(super) pools: wgpu::BindGroupLayout,
    /// K and V, written.
    pub(super) pools_append: wgpu::BindGroupLayout,
    /// Which heads a shard has.
    pub(super) shard: wgpu::BindGroupLayout,
}

impl SharedLayouts {
    pub(super) fn new(maker: &Maker) -> Result<Self, DeviceError> {
        use BindingKind::{Read, Uniform, Write};
        Ok(Self {
            step: maker.layout("paged.step", &[Read, Read])?,
            step_update: maker.layout("paged.step_update", &[Read, Write])?,
            pools: maker.layout("paged.pools", &[Read, Read])?,
            pools_append: maker.layout("paged.pools_append", &[Write, Write])?,
            shard: maker.layout("paged.shard", &[Uniform])?,
        })
    }

    /// Those of the kernels that treat blocks as a whole.
    pub(super) fn whole_blocks(&self) -> [&wgpu::BindGroupLayout; 3] {
        [&self.step, &self.pools_append, &self.shard]
    }
}

/// What holds one step: a part for each group of layers.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) parts: Vec<ArenaPart>,
}

/// A group's words of one step, the bind groups that read them, and what the step asks of the kernels.
#[derive(Debug)]
pub(super) struct ArenaPart {
    pub(super) work: StepWork,
    pub(super) words: wgpu::Buffer,
    /// With the resident tables, read.
    pub(super) resident: wgpu::BindGroup,
    /// With tables that travel in the same words.
    pub(super) inline: wgpu::BindGroup,
    /// With the resident tables, written.
    pub(super) update: wgpu::BindGroup,
}

/// All arenas; those that nothing else holds are idle.
#[derive(Debug, Default)]
pub(super) struct ArenaPool(Mutex<Vec<Arc<Arena>>>);

impl ArenaPool {
    /// An arena for a step whose work is filled in, idle again once it is dropped. `bytes` has what each group needs, and
    /// nothing for groups that have no words.
    pub(super) fn lease(
        &self,
        maker: &Maker,
        layouts: &SharedLayouts,
        groups: &[LayerGroup],
        profile: &DeviceProfile,
        bytes: &[u64],
        fill: impl FnOnce(&mut [ArenaPart]),
    ) -> Result<Arc<Arena>, DeviceError> {
        // The vector is whole whenever the lock is free, whatever panicked elsewhere.
        let mut arenas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |arena: &mut Arc<Arena>| Arc::get_mut(arena).is_some_and(|arena| arena.has_room(bytes));
        let at = match arenas.iter_mut().position(fits) {
            Some(at) => at,
            None => {
                let arena = Arc::new(Arena::new(maker, layouts, groups, profile, bytes)?);
                // An idle one that is too small gives way to the larger one.
                if let Some(small) = arenas.iter_mut().position(|arena| Arc::get_mut(arena).is_some()) {
                    arenas.swap_remove(small);
                }
                arenas.push(arena);
                arenas.len() - 1
            }
        };
        if let Some(idle) = Arc::get_mut(&mut arenas[at]) {
            fill(&mut idle.parts);
        }
        Ok(Arc::clone(&arenas[at]))
    }
}

impl Arena {
    fn new(
        maker: &Maker,
        layouts: &SharedLayouts,
        groups: &[LayerGroup],
        profile: &DeviceProfile,
        bytes: &[u64],
    ) -> Result<Self, DeviceError> {
        let part = |(group, at): (&LayerGroup, usize)| {
            let bytes = bytes.get(at).copied().unwrap_or(0);
            ArenaPart::new(maker, layouts, &group.tables, profile.roomy_bytes(bytes))
        };
        Ok(Self { parts: groups.iter().zip(0..).map(part).collect::<Result<_, _>>()? })
    }

    fn has_room(&self, bytes: &[u64]) -> bool {
        self.parts.iter().zip(bytes).all(|(part, &bytes)| part.words.size() >= bytes)
    }
}

impl ArenaPart {
    fn new(maker: &Maker, layouts: &SharedLayouts, tables: &wgpu::Buffer, bytes: u64) -> Result<Self, DeviceError> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let words = maker.buffer("paged.step_words", usage, bytes)?;
        let group = |label, layout, tables: &wgpu::Buffer| {
            maker.bind_group(label, layout, &[words.as_entire_buffer_binding(), tables.as_entire_buffer_binding()])
        };
        Ok(Self {
            work: StepWork::default(),
            resident: group("paged.step", &layouts.step, tables)?,
            inline: group("paged.step_inline", &layouts.step, &words)?,
            update: group("paged.step_update", &layouts.step_update, tables)?,
            words,
        })
    }
}
