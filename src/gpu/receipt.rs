//! Whether what an encoder holds has run.
//!
//! wgpu does not say: it maps buffers even for an encoder that it refused. So the encoder writes a word as well, and the
//! host looks at it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::compat;
use super::error::DeviceError;
use super::make::Maker;

/// The word once the commands ran; without them it is zero.
const RAN: u32 = 1;

/// Tells whether an encoder's commands ran, and keeps something until they have.
#[derive(Debug)]
pub(super) struct Receipt<T>(Arc<Arrival<T>>);

/// What the device has said so far.
#[derive(Debug)]
struct Arrival<T> {
    word: wgpu::Buffer,
    /// Buffers that are not mapped yet.
    pending: AtomicUsize,
    failed: AtomicBool,
    answer: OnceLock<Result<(), DeviceError>>,
    kept: Mutex<Option<T>>,
}

impl<T: Send + 'static> Receipt<T> {
    /// Records into `encoder` what tells of all its commands, before and after this call. `buffers` can be read once they
    /// have run, and `kept` is dropped then.
    pub(super) fn record(
        maker: &Maker,
        encoder: &mut wgpu::CommandEncoder,
        buffers: &[wgpu::Buffer],
        kept: T,
    ) -> Result<Self, DeviceError> {
        let ran = maker.filled("paged.ran", wgpu::BufferUsages::COPY_SRC, &RAN.to_ne_bytes())?;
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let word = maker.buffer("paged.receipt", usage, 4)?;
        encoder.copy_buffer_to_buffer(&ran, 0, &word, 0, 4);
        let arrival = Arc::new(Arrival {
            word: word.clone(),
            pending: AtomicUsize::new(1 + buffers.len()),
            failed: AtomicBool::new(false),
            answer: OnceLock::new(),
            kept: Mutex::new(Some(kept)),
        });
        for buffer in buffers.iter().chain([&word]) {
            let arrival = Arc::clone(&arrival);
            encoder.map_buffer_on_submit(buffer, wgpu::MapMode::Read, .., move |result| {
                arrival.failed.fetch_or(result.is_err(), Ordering::AcqRel);
                if arrival.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                    arrival.settle();
                }
            });
        }
        Ok(Self(arrival))
    }

    /// Whether the commands ran: [`DeviceError::Pending`] until the encoder was submitted and the device polled,
    /// [`DeviceError::NotSubmitted`] if it was dropped or refused instead, [`DeviceError::Lost`].
    pub(super) fn check(&self) -> Result<(), DeviceError> {
        // Before the answer: who still holds it may be about to give one.
        let expected = Arc::strong_count(&self.0) > 1;
        fence(Ordering::Acquire);
        match self.0.answer.get() {
            Some(answer) => answer.clone(),
            None if expected => Err(DeviceError::Pending),
            None => Err(DeviceError::NotSubmitted),
        }
    }

    /// What was kept, unless the commands ran.
    pub(super) fn take(&self) -> Option<T> {
        self.0.take()
    }
}

impl<T> Arrival<T> {
    /// All buffers are mapped, or will never be.
    fn settle(&self) {
        let word = if self.failed.load(Ordering::Acquire) { None } else { compat::mapped(&self.word) };
        let answer = match word {
            Some(word) if word[..] == RAN.to_ne_bytes() => Ok(()),
            Some(_) => Err(DeviceError::NotSubmitted),
            None => Err(DeviceError::Lost),
        };
        if answer.is_ok() {
            drop(self.take());
        }
        // The last of the buffers sets it, and nothing else does.
        let _ = self.answer.set(answer);
    }

    fn take(&self) -> Option<T> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
