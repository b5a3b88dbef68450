//! Says which kernel a driver compiles, where that takes longer than a second. Lavapipe compiles later, at the first use.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

const SHORT: Duration = Duration::from_secs(1);

/// Hears the library's spans of this name, and no others.
const SPAN: &str = "paged.compile";

/// The latest `say` is told of every kernel that takes longer than [`SHORT`].
pub fn say_what_compiles(say: impl Fn(&str) + Clone + Send + Sync + 'static) {
    // A command that has said so before goes on.
    let _ = tracing::subscriber::set_global_default(Compiling::new(say, SHORT));
}

struct Compiling<F> {
    say: F,
    short: Duration,
    latest: AtomicU64,
    /// A span that closes ends the wait of its thread.
    open: Mutex<HashMap<u64, Sender<()>>>,
}

impl<F> Compiling<F> {
    fn new(say: F, short: Duration) -> Self {
        Self { say, short, latest: AtomicU64::new(0), open: Mutex::default() }
    }

    fn close(&self, id: &Id) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&id.into_u64());
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        // Memory takes it.
        let _ = write!(self.0, " {value:?}");
    }
}

impl<F: Fn(&str) + Clone + Send + Sync + 'static> Subscriber for Compiling<F> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.name() == SPAN
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = self.latest.fetch_add(1, Ordering::Relaxed) + 1;
        let mut line = Fields("compiling".to_owned());
        span.record(&mut line);
        let (sender, closed) = channel::<()>();
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        let (say, short) = (self.say.clone(), self.short);
        std::thread::spawn(move || {
            if closed.recv_timeout(short) == Err(RecvTimeoutError::Timeout) {
                say(&line.0);
            }
        });
        Id::from_u64(id)
    }

    fn try_close(&self, id: Id) -> bool {
        self.close(&id);
        true
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn only_what_takes_long_is_named() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let say = move |line: &str| kept.lock().unwrap().push(line.to_owned());
        tracing::subscriber::with_default(Compiling::new(say, Duration::from_millis(200)), || {
            let compile = |kernel: &str, ms| {
                let _span = tracing::debug_span!("paged.compile", kernel).entered();
                std::thread::sleep(Duration::from_millis(ms));
            };
            compile("quick", 0);
            compile("slow", 1_000);
            let _other = tracing::debug_span!("paged.other", kernel = "other").entered();
            std::thread::sleep(Duration::from_millis(400));
        });
        assert_eq!(*lines.lock().unwrap(), ["compiling \"slow\""]);
    }
}
