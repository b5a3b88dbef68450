//! The allocator of this binary: it counts what a thread asks for, and says whose code asked.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};

thread_local! {
    /// Calls to the allocator from this thread; the test harness has threads of its own.
    static CALLS: Cell<u64> = const { Cell::new(0) };
    /// Whether the next allocations are traced. Tracing one allocates too.
    static TRACING: Cell<bool> = const { Cell::new(false) };
    static TRACES: RefCell<Vec<Backtrace>> = const { RefCell::new(Vec::new()) };
}

struct Counting;

fn count(asks: bool) {
    // What a thread has of its own is gone while it ends, and nobody asks for it then.
    let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
    if asks && TRACING.try_with(|tracing| tracing.replace(false)).unwrap_or(false) {
        let trace = Backtrace::force_capture();
        TRACES.with(|traces| traces.borrow_mut().push(trace));
        TRACING.set(true);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(true);
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(true);
        // SAFETY: the caller keeps the promises of `GlobalAlloc::realloc`.
        unsafe { System.realloc(pointer, layout, new_size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(false);
        // SAFETY: the caller keeps the promises of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls to the allocator, those that give memory back included.
pub fn calls_during(work: impl FnOnce()) -> u64 {
    let before = CALLS.get();
    work();
    CALLS.get() - before
}

/// Who asked for memory.
#[derive(Debug, Default)]
pub struct Askers {
    /// Lines of this library that did so themselves, or through the standard library.
    pub ours: Vec<String>,
    /// Allocations of the crates that this library calls.
    pub others: usize,
}

/// Who asks for memory while `work` runs: of every allocation the innermost line that is not the standard library's. Lines,
/// because a release build keeps the files of inlined functions and not their full names.
pub fn askers_during(work: impl FnOnce()) -> Askers {
    TRACING.set(true);
    work();
    TRACING.set(false);
    let library = concat!(env!("CARGO_MANIFEST_DIR"), "/src/");
    let mut askers = Askers::default();
    for trace in TRACES.take() {
        let trace = trace.to_string();
        match trace.lines().filter_map(|line| line.trim_start().strip_prefix("at ")).find(|line| !is_passed_over(line))
        {
            Some(line) if line.starts_with("./src/") || line.starts_with(library) => askers.ours.push(line.to_owned()),
            _ => askers.others += 1,
        }
    }
    askers
}

/// Whether a line is part of the standard library, whose map is a crate of its own, or of the allocator above.
fn is_passed_over(line: &str) -> bool {
    line.starts_with("/rustc/") || line.contains("/hashbrown-") || line.contains("tests/host/allocations.rs")
}

#[test]
fn a_counted_allocation_is_noticed() {
    assert_eq!(calls_during(|| drop(Box::new(1_u32))), 2);
}
