//! Buffers for the words of steps that are in flight.
//!
//! The words of two steps may be read by dispatches of one submit, so two steps need two buffers. A step therefore
//! *leases* an arena that the device has finished with: it comes back when the command buffers it was recorded into have
//! run, or were dropped, and the [`Step`](super::Step) is gone as well. After a few steps no new arena is made.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::error::DeviceError;
use super::make::{BindingKind, Maker};
use super::profile::DeviceProfile;

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
}

impl SharedLayouts {
    pub(super) fn new(maker: &Maker) -> Result<Self, DeviceError> {
        use BindingKind::{Read, Write};
        Ok(Self {
            step: maker.layout("paged.step", &[Read, Read])?,
            step_update: maker.layout("paged.step_update", &[Read, Write])?,
            pools: maker.layout("paged.pools", &[Read, Read])?,
            pools_append: maker.layout("paged.pools_append", &[Write, Write])?,
        })
    }
}

/// One step's buffer, and the bind groups that read it.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) words: wgpu::Buffer,
    /// With the resident tables, read.
    pub(super) resident: wgpu::BindGroup,
    /// With tables that travel in the same words.
    pub(super) inline: wgpu::BindGroup,
    /// With the resident tables, written.
    pub(super) update: wgpu::BindGroup,
    /// The words on the host, kept for its capacity.
    pub(super) staging: Vec<u32>,
}

/// The arenas that no step uses.
#[derive(Clone, Debug, Default)]
pub(super) struct ArenaPool {
    idle: Arc<Mutex<Vec<Arena>>>,
}

impl ArenaPool {
    /// An arena of at least `bytes`.
    pub(super) fn lease(
        &self,
        maker: &Maker,
        layouts: &SharedLayouts,
        tables: &wgpu::Buffer,
        profile: &DeviceProfile,
        bytes: u64,
    ) -> Result<Lease, DeviceError> {
        let found = {
            let mut idle = self.lock();
            let at = idle.iter().position(|arena| arena.words.size() >= bytes);
            // None fits: one that is too small gives way to the larger one made below.
            let at = at.or_else(|| idle.len().checked_sub(1));
            at.map(|at| idle.swap_remove(at))
        };
        let arena = match found {
            Some(arena) if arena.words.size() >= bytes => arena,
            _ => Arena::new(maker, layouts, tables, profile.roomy_bytes(bytes))?,
        };
        Ok(Lease { arena: Some(arena), pool: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arena>> {
        // The vector is whole whenever the lock is free, whatever panicked elsewhere.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arena {
    fn new(maker: &Maker, layouts: &SharedLayouts, tables: &wgpu::Buffer, bytes: u64) -> Result<Self, DeviceError> {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let words = maker.buffer("paged.step_words", usage, bytes)?;
        let group = |label, layout, tables: &wgpu::Buffer| {
            maker.bind_group(label, layout, &[words.as_entire_buffer_binding(), tables.as_entire_buffer_binding()])
        };
        Ok(Self {
            resident: group("paged.step", &layouts.step, tables)?,
            inline: group("paged.step_inline", &layouts.step, &words)?,
            update: group("paged.step_update", &layouts.step_update, tables)?,
            words,
            staging: Vec::new(),
        })
    }
}

/// The right to use an arena; dropping it gives the arena back.
#[derive(Debug)]
pub(super) struct Lease {
    /// Present until the lease is dropped.
    arena: Option<Arena>,
    pool: ArenaPool,
}

impl Lease {
    pub(super) fn arena(&self) -> Option<&Arena> {
        self.arena.as_ref()
    }

    pub(super) fn arena_mut(&mut self) -> Option<&mut Arena> {
        self.arena.as_mut()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(arena) = self.arena.take() {
            self.pool.lock().push(arena);
        }
    }
}
