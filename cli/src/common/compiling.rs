//! Says which kernel a driver compiles, where that takes longer than a second. Lavapipe compiles later, at the first use.

use std::collections::HashMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tracing::Subscriber;
use wgpu_paged_attention::testkit::CompileListener;

const SHORT: Duration = Duration::from_secs(1);

/// Calls `say` for every kernel that takes longer than [`SHORT`]. Only the first call in a program has an effect.
pub fn say_what_compiles(say: impl Fn(&str) + Clone + Send + Sync + 'static) {
    let _ = tracing::subscriber::set_global_default(compiling(say, SHORT));
}

fn compiling(say: impl Fn(&str) + Clone + Send + Sync + 'static, short: Duration) -> impl Subscriber + Send + Sync {
    // A kernel that is done ends the wait of its thread.
    let waits: Arc<Mutex<HashMap<u64, Sender<()>>>> = Arc::default();
    let begun = Arc::clone(&waits);
    let begin = move |number, kernel: &str| {
        let (sender, done) = channel::<()>();
        begun.lock().unwrap_or_else(PoisonError::into_inner).insert(number, sender);
        let (say, line) = (say.clone(), format!("compiling {kernel}"));
        std::thread::spawn(move || {
            if done.recv_timeout(short) == Err(RecvTimeoutError::Timeout) {
                say(&line);
            }
        });
    };
    let end = move |number| drop(waits.lock().unwrap_or_else(PoisonError::into_inner).remove(&number));
    CompileListener::new(begin, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_long_is_named() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&lines);
        let say = move |line: &str| kept.lock().unwrap().push(line.to_owned());
        tracing::subscriber::with_default(compiling(say, Duration::from_millis(200)), || {
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
