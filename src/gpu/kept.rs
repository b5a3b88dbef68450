//! Bind groups over the caller's buffers, kept from step to step: making one costs more than recording the dispatch that
//! uses it.
//!
//! A bind group keeps its buffers alive, so it is kept only for callers who come again with the same ones, and not for
//! long after the last time.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::DeviceError;
use super::make::Maker;
use super::mix::{Mix, MixState};

/// Bind groups, and those that came once.
const MAX_KEPT: usize = 4096;

/// What a bind group consists of: parameters at binding 0, then ranges of buffers.
#[derive(Clone, Copy)]
pub(super) struct GroupParts<'a> {
    pub(super) label: &'static str,
    pub(super) layout: &'a wgpu::BindGroupLayout,
    pub(super) params: &'a [u8],
    pub(super) ranges: &'a [wgpu::BufferBinding<'a>],
}

/// Bind groups that may be used again. Their owner counts the time, in ticks.
#[derive(Debug)]
pub(super) struct KeptGroups {
    kept: Mutex<Inner>,
    /// A bind group that was not used for so many ticks is dropped by the next sweep, and there is one as often.
    ticks: u64,
}

#[derive(Debug, Default)]
struct Inner {
    /// By the hash of their parts.
    groups: HashMap<u64, Kept, MixState>,
    /// The tick at which parts were first seen, by their hash; they are kept if they come again at another.
    seen: HashMap<u64, u64, MixState>,
    swept: u64,
}

#[derive(Debug)]
struct Kept {
    layout: wgpu::BindGroupLayout,
    params: Vec<u8>,
    ranges: Vec<(wgpu::Buffer, u64, Option<wgpu::BufferSize>)>,
    group: wgpu::BindGroup,
    used: u64,
}

impl GroupParts<'_> {
    fn hash(&self) -> u64 {
        let mut hasher = Mix::default();
        self.layout.hash(&mut hasher);
        self.params.hash(&mut hasher);
        for range in self.ranges {
            (range.buffer, range.offset, range.size).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn make(&self, maker: &Maker) -> Result<wgpu::BindGroup, DeviceError> {
        let params = maker.filled("paged.params", wgpu::BufferUsages::UNIFORM, self.params)?;
        let mut resources = vec![params.as_entire_buffer_binding()];
        resources.extend_from_slice(self.ranges);
        maker.bind_group(self.label, self.layout, &resources)
    }
}

impl Kept {
    fn is_of(&self, parts: &GroupParts<'_>) -> bool {
        let same = |((buffer, offset, size), range): (&(wgpu::Buffer, _, _), &wgpu::BufferBinding<'_>)| {
            buffer == range.buffer && *offset == range.offset && *size == range.size
        };
        self.layout == *parts.layout
            && self.params == parts.params
            && self.ranges.len() == parts.ranges.len()
            && self.ranges.iter().zip(parts.ranges).all(same)
    }
}

impl KeptGroups {
    /// None yet; what is not used is dropped after `ticks` to twice as many.
    pub(super) fn new(ticks: u64) -> Self {
        Self { kept: Mutex::default(), ticks }
    }

    /// The bind group of these parts: a kept one, or a new one, which is kept if the same parts came at an earlier tick.
    pub(super) fn get(&self, maker: &Maker, now: u64, parts: &GroupParts<'_>) -> Result<wgpu::BindGroup, DeviceError> {
        self.lock().get(maker, now, parts)
    }

    /// Drops what has not been used lately.
    pub(super) fn sweep(&self, now: u64) {
        let (mut inner, ticks) = (self.lock(), self.ticks);
        if now.saturating_sub(inner.swept) >= ticks {
            inner.swept = now;
            inner.groups.retain(|_, kept| now.saturating_sub(kept.used) < ticks);
            inner.seen.retain(|_, first| now.saturating_sub(*first) < ticks);
        }
    }

    /// Drops everything.
    pub(super) fn clear(&self) {
        let mut inner = self.lock();
        inner.groups.clear();
        inner.seen.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each entry is whole, whatever panicked elsewhere.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn get(&mut self, maker: &Maker, now: u64, parts: &GroupParts<'_>) -> Result<wgpu::BindGroup, DeviceError> {
        let hash = parts.hash();
        if let Some(kept) = self.groups.get_mut(&hash).filter(|kept| kept.is_of(parts)) {
            kept.used = now;
            return Ok(kept.group.clone());
        }
        let group = parts.make(maker)?;
        if self.comes_again(hash, now) {
            let ranges = parts.ranges.iter().map(|it| (it.buffer.clone(), it.offset, it.size)).collect();
            let (layout, params, group) = (parts.layout.clone(), parts.params.to_vec(), group.clone());
            self.groups.insert(hash, Kept { layout, params, ranges, group, used: now });
        }
        Ok(group)
    }

    /// Whether the same parts came at another tick, and there is room to keep them.
    fn comes_again(&mut self, hash: u64, now: u64) -> bool {
        if self.seen.get(&hash).is_some_and(|&first| first != now) {
            self.seen.remove(&hash);
            return self.groups.len() < MAX_KEPT;
        }
        if self.seen.len() < MAX_KEPT {
            self.seen.insert(hash, now);
        }
        false
    }
}
