//! Work that is dealt out to threads: drivers take seconds to compile a kernel, and each uses one core.

/// Runs `work` for every item, on no more threads than the host has cores. When it returns, all is done and every thread
/// has ended. An error does not keep the other items from being served; the first that occurred is returned.
#[cfg(not(target_family = "wasm"))]
pub fn for_each<T: Sync, E: Send>(items: &[T], work: impl Fn(&T) -> Result<(), E> + Sync) -> Result<(), E> {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, PoisonError};

    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let serve = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = work(item) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(items.len()));
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // A system that gives no further thread leaves the work to those that there are.
            if std::thread::Builder::new().spawn_scoped(scope, serve).is_err() {
                break;
            }
        }
        serve();
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// A browser gives no threads, and what wgpu makes there belongs to one of them.
#[cfg(target_family = "wasm")]
pub fn for_each<T, E>(items: &[T], work: impl Fn(&T) -> Result<(), E>) -> Result<(), E> {
    items.iter().map(work).fold(Ok(()), Result::and)
}

#[cfg(all(test, not(target_family = "wasm")))]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread::{available_parallelism, current, sleep};
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_item_is_served_once_and_by_no_more_threads_than_cores() {
        let items: [AtomicU32; 40] = std::array::from_fn(|_| AtomicU32::new(0));
        let threads = Mutex::new(HashSet::new());
        let serve = |item: &AtomicU32| {
            sleep(Duration::from_millis(2));
            threads.lock().unwrap().insert(current().id());
            item.fetch_add(1, Ordering::Relaxed);
            Ok::<_, ()>(())
        };
        for_each(&items, serve).unwrap();
        assert!(items.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        let (threads, cores) = (threads.lock().unwrap().len(), available_parallelism().unwrap().get());
        assert!(threads <= cores && (cores == 1 || threads > 1), "{threads} threads, {cores} cores");
        for_each(&items[..0], serve).unwrap();
    }

    #[test]
    fn an_error_is_returned_after_the_other_items_were_served() {
        let served = AtomicU32::new(0);
        let work = |item: &u32| {
            served.fetch_add(1, Ordering::Relaxed);
            if *item == 3 { Err("three") } else { Ok(()) }
        };
        assert_eq!(for_each(&[1, 2, 3, 4, 5], work), Err("three"));
        assert_eq!(served.load(Ordering::Relaxed), 5);
    }
}
