//! CPU time of the calling thread: what other threads do meanwhile does not count.

use std::time::Duration;

/// A moment in the thread's CPU time.
pub struct ThreadTime(Duration);

impl ThreadTime {
    pub fn now() -> Self {
        Self(thread_time())
    }

    pub fn elapsed(&self) -> Duration {
        thread_time().saturating_sub(self.0)
    }
}

#[cfg(unix)]
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is that of a `timespec` that lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Elsewhere the wall clock has to do.
#[cfg(not(unix))]
fn thread_time() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}
