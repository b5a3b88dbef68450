//! What a test needs and may not find: a device, a file that is not part of the project. Every skip is counted and
//! printed; where the environment demands the thing, its absence is a failure.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Gpu, GpuOptions, OpenError};

/// Set to 1 where a missing adapter is a fault of the machine, as in CI.
pub const REQUIRE_ADAPTER: &str = "PAGED_ATTENTION_REQUIRE_ADAPTER";

/// Names a folder of published request logs; without it, tests look in `../shared/traces` beside the checkout.
const TRACES: &str = "PAGED_ATTENTION_TRACES";

/// Reports that a test cannot run here, with the number of skips so far in this process.
///
/// # Panics
/// If the environment variable `required` is 1: then a skip is a failure.
pub fn skip(required: Option<&str>, reason: &str) {
    static SKIPPED: AtomicU32 = AtomicU32::new(0);
    if let Some(name) = required {
        assert!(std::env::var_os(name).is_none_or(|value| value != "1"), "{name} is set, but {reason}");
    }
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    // Straight to the handle: the test runner hides what a passing test prints with a macro.
    let _ = writeln!(std::io::stderr(), "skipped ({count}): {reason}");
}

/// A number from the environment.
///
/// # Panics
/// If the variable holds something else.
pub fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// A device with the recommended features and limits, or `None` after a [`skip`].
pub fn test_device() -> Option<Gpu> {
    test_device_with(&GpuOptions::default())
}

/// A device opened with `options`. A machine without an adapter skips; an adapter that gives no device fails everywhere.
///
/// # Panics
/// If there is an adapter but no device, or no adapter where [`REQUIRE_ADAPTER`] is set.
pub fn test_device_with(options: &GpuOptions) -> Option<Gpu> {
    match Gpu::open(options) {
        Ok(gpu) => Some(gpu),
        Err(error @ OpenError::NoAdapter) => {
            skip(Some(REQUIRE_ADAPTER), &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A published request log, which is not part of the project, or `None` after a [`skip`].
pub fn published_log(name: &str) -> Option<String> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/traces");
    let path = std::env::var_os(TRACES).map_or_else(beside, PathBuf::from).join(name);
    if !path.exists() {
        skip(None, &format!("no {name}; {TRACES} names the folder of published logs"));
        return None;
    }
    Some(path.display().to_string())
}
