//! Hears which kernels are compiled.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The library's span around the compilation of a kernel.
const SPAN: &str = "paged.compile";

/// A subscriber of `tracing` that calls back for every kernel that is compiled, from the thread that compiles it: with a
/// number and the kernel's readable key before, and with the number after. It hears nothing else.
pub struct CompileListener<B, E> {
    begin: B,
    end: E,
    latest: AtomicU64,
}

impl<B: Fn(u64, &str), E: Fn(u64)> CompileListener<B, E> {
    /// Calls `begin` and `end`.
    pub fn new(begin: B, end: E) -> Self {
        Self { begin, end, latest: AtomicU64::new(0) }
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        // Memory takes it.
        let _ = write!(self.0, "{value:?}");
    }
}

impl<B: Fn(u64, &str) + 'static, E: Fn(u64) + 'static> Subscriber for CompileListener<B, E> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.name() == SPAN
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let number = self.latest.fetch_add(1, Ordering::Relaxed) + 1;
        let mut kernel = Fields(String::new());
        span.record(&mut kernel);
        (self.begin)(number, &kernel.0);
        Id::from_u64(number)
    }

    fn try_close(&self, id: Id) -> bool {
        (self.end)(id.into_u64());
        true
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
