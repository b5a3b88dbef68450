//! How a log is served.

use wgpu_paged_attention::blocks::ManagerOptions;
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::plan::Schedule;

#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The cache. [`paged`](CacheConfig::paged) is set by [`serve`](super::serve), `max_sequences` is the most
    /// concurrent requests, and requests are cut at `max_seq_len`.
    pub cache: CacheConfig,
    /// The window of every group of layers, as in [`ManagerOptions::windows`].
    pub windows: Vec<Option<u32>>,
    pub step_tokens: u32,
    /// Whether equal beginnings are shared, where the log tells what prompts begin with.
    pub prefix_cache: bool,
    pub schedule: Schedule,
}

impl ServeOptions {
    pub fn new(cache: CacheConfig) -> Self {
        // No device looks for shared runs here, so no time is spent on it.
        let schedule = Schedule { share_prefixes: false, ..Schedule::default() };
        Self { cache, windows: Vec::new(), step_tokens: 2048, prefix_cache: true, schedule }
    }

    pub(super) fn manager(&self, prefix_cache: bool) -> ManagerOptions {
        ManagerOptions::default().with_windows(&self.windows).with_prefix_cache(prefix_cache)
    }

    /// The narrowest window of all layers, which is what windowed layers see.
    pub(super) fn window(&self) -> Option<u32> {
        self.windows.iter().copied().flatten().min()
    }
}
