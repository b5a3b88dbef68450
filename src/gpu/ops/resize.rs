//! Pools that grow and shrink, layer by layer, and keep what they hold.

use std::sync::{Mutex, PoisonError};

use crate::gpu::cache::KvCache;
use crate::gpu::error::{ArgumentError, DeviceError, GpuError};
use crate::gpu::pools::HeadShard;
use crate::gpu::receipt::Receipt;

/// The copies out of pools that were replaced, until they have run; in the order in which they were recorded.
#[derive(Debug, Default)]
pub(in crate::gpu) struct Moves(Mutex<Vec<Move>>);

#[derive(Debug)]
struct Move {
    place: u32,
    /// The layer that was named, whose place it is.
    layer: u32,
    /// Keeps the old pools.
    receipt: Receipt<Vec<HeadShard>>,
}

impl Moves {
    /// Whether no copy was dropped or refused. Forgets those that have run.
    pub(in crate::gpu) fn check(&self) -> Result<(), DeviceError> {
        let mut failed = Ok(());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|it| match it.receipt.check() {
            Ok(()) => false,
            Err(DeviceError::Pending) => true,
            Err(error) => {
                let not_submitted = error == DeviceError::NotSubmitted;
                failed = Err(if not_submitted { DeviceError::ResizeNotSubmitted { layer: it.layer } } else { error });
                true
            }
        });
        failed
    }

    fn push(&mut self, place: u32, layer: u32, receipt: Receipt<Vec<HeadShard>>) {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).push(Move { place, layer, receipt });
    }

    /// The pools that a place had before the first copy that was dropped or refused. Forgets it and those after it, which
    /// copied nothing that was right.
    fn take_back(&mut self, place: u32) -> Option<Vec<HeadShard>> {
        let moves = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        let lost = |it: &Move| it.place == place && it.receipt.check() == Err(DeviceError::NotSubmitted);
        let first = moves.iter().position(lost)?;
        let old = moves[first].receipt.take();
        let mut at = 0;
        moves.retain(|it| {
            at += 1;
            at <= first || it.place != place
        });
        old
    }
}

impl KvCache {
    /// Gives the pools of a layer room for `num_blocks` blocks, and records into `encoder` the copy of what they hold: all
    /// blocks that the old and the new pools have. A pool of that size already is left as it is.
    ///
    /// Where layers form [groups](crate::layout::KvLayout::groups), a layer shares its pools with one of every other group, and
    /// all of these grow at once: a call for another of them finds it done.
    ///
    /// The cache has as many blocks as the smallest of its layers. So all layers grow before the manager
    /// [does](crate::blocks::CacheManager::resize), and shrink after it. What was recorded before uses the old pools: submit it
    /// before `encoder`, and `encoder` before what is recorded from now on. A step that was begun before the cache shrank is
    /// refused, also where it has grown since; [`take_clears`](crate::blocks::CacheManager::take_clears) and record them
    /// before, too.
    ///
    /// # If the copy does not run
    ///
    /// The new pools serve from this call on, and the cache keeps the old ones until the copy has run. If `encoder` is dropped,
    /// or wgpu refuses it, every call that reaches the pools says [`DeviceError::ResizeNotSubmitted`]: after a drop at once,
    /// after a refusal once the device was polled. Then resize that layer again, to whatever size: the copy is recorded anew
    /// from the old pools, which simply come back if the size is theirs. What was recorded in the meantime is lost for that
    /// layer; roll those steps back.
    ///
    /// An old pool's memory is free once what `encoder` holds has run. Submitting and polling the device after each layer thus
    /// takes the memory of one layer more at the most:
    ///
    /// ```no_run
    /// # use wgpu_paged_attention::{blocks::CacheManager, gpu::KvCache, wgpu};
    /// # fn grow(device: &wgpu::Device, queue: &wgpu::Queue, cache: &mut KvCache, manager: &mut CacheManager)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let num_blocks = 2 * manager.num_blocks(); // max_num_blocks at the most
    /// for layer in 0..cache.layout().num_layers() {
    ///     let mut encoder = device.create_command_encoder(&Default::default());
    ///     cache.resize_layer(&mut encoder, layer, num_blocks)?;
    ///     queue.submit([encoder.finish()]);
    ///     device.poll(wgpu::PollType::wait_indefinitely())?;
    /// }
    /// manager.resize(num_blocks)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`GpuError::Argument`] for a layer that does not exist, or a size beyond
    /// [`max_num_blocks`](crate::config::CacheConfig::max_num_blocks); [`GpuError::Device`] if there is no memory. Nothing is
    /// recorded then, and layers that have grown before serve as well: try again, or shrink them.
    pub fn resize_layer(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        layer: u32,
        num_blocks: u32,
    ) -> Result<(), GpuError> {
        self.maker.check()?;
        let most = self.layout().max_num_blocks();
        if num_blocks == 0 || num_blocks > most {
            let problem = format!("is {num_blocks}, outside 1..={most}; make the cache with a larger max_num_blocks");
            return Err(ArgumentError::new("num_blocks", problem).into());
        }
        let place = self.layer(layer)?.place;
        if let Some(old) = self.moves.take_back(place) {
            self.set_place(place, &old);
        }
        let resized = self.layout().with_num_blocks(num_blocks);
        let old = &self.places()[place as usize];
        if old.iter().all(|shard| shard.k.size() == resized.k_shard_bytes(shard.num_heads)) {
            return Ok(());
        }
        let new = old.iter().map(|shard| shard.resized(&self.maker, &resized, &self.layouts, place));
        let new = new.collect::<Result<Vec<_>, _>>()?;
        // Out of memory can also mean that the device went away.
        self.maker.check()?;
        let receipt = Receipt::record(&self.maker, encoder, &[], old.clone())?;
        for (old, new) in old.iter().zip(&new) {
            for (old, new) in [(&old.k, &new.k), (&old.v, &new.v)] {
                encoder.copy_buffer_to_buffer(old, 0, new, 0, old.size().min(new.size()));
            }
        }
        self.moves.push(place, layer, receipt);
        self.set_place(place, &new);
        Ok(())
    }
}
