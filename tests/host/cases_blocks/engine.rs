//! A manager and a plan, with shorthands that expect success.

use wgpu_paged_attention::blocks::{BlockId, CacheManager, Domain, ManagerOptions, SeqId};
use wgpu_paged_attention::config::CacheConfig;
use wgpu_paged_attention::plan::{Schedule, StepPlan};

pub struct Engine {
    pub cache: CacheManager,
    pub plan: StepPlan,
}

impl Engine {
    pub fn new(num_blocks: u32, options: &ManagerOptions) -> Self {
        let config = CacheConfig::new(1, 1, 8).with_num_blocks(num_blocks).with_max_seq_len(320).with_max_sequences(8);
        let cache = CacheManager::with_options(&config.layout().unwrap(), options).unwrap();
        Self { cache, plan: StepPlan::new(Schedule::default()) }
    }

    /// Whose queries see so many keys.
    pub fn windowed(num_blocks: u32, window: u32, options: &ManagerOptions) -> Self {
        let config = CacheConfig::new(1, 1, 8).with_num_blocks(num_blocks).with_max_seq_len(320).with_max_sequences(8);
        let cache = CacheManager::with_options(&config.with_window(window).layout().unwrap(), options).unwrap();
        Self { cache, plan: StepPlan::new(Schedule::default()) }
    }

    pub fn caching(num_blocks: u32) -> Self {
        Self::new(num_blocks, &ManagerOptions::default().with_prefix_cache(true).with_events(true))
    }

    pub fn plain(num_blocks: u32) -> Self {
        Self::new(num_blocks, &ManagerOptions::default())
    }

    pub fn grow(&mut self, seq: SeqId, tokens: u32) {
        self.cache.reserve(&[(seq, tokens)], &mut self.plan).unwrap();
        self.commit();
    }

    pub fn commit(&mut self) {
        self.cache.commit(&mut self.plan).unwrap();
        self.cache.check_invariants().unwrap();
    }

    pub fn sequence(&mut self, tokens: u32) -> SeqId {
        let seq = self.cache.create_sequence().unwrap();
        self.grow(seq, tokens);
        seq
    }

    /// A sequence with all of a text; how much of it was cached.
    pub fn text(&mut self, tokens: &[u32], domain: &Domain) -> (SeqId, u32) {
        let (seq, cached) = self.cache.create_sequence_with_tokens(tokens, domain).unwrap();
        self.cache.reserve_tokens(&[(seq, &tokens[cached as usize..])], &mut self.plan).unwrap();
        self.commit();
        (seq, cached)
    }

    pub fn cached(&self, tokens: &[u32]) -> u32 {
        self.cache.cached_tokens(tokens, &Domain::default())
    }

    pub fn free(&self) -> Vec<u32> {
        self.cache.free_blocks().map(BlockId::get).collect()
    }

    pub fn table(&self, seq: SeqId) -> Vec<u32> {
        self.cache.block_table(seq).unwrap().iter().map(|block| block.get()).collect()
    }

    pub fn used(&self) -> u32 {
        self.cache.stats().used_blocks
    }
}

/// `count` times each of the words, one after the other.
pub fn repeat(words: &[u32], count: usize) -> Vec<u32> {
    words.iter().flat_map(|&word| vec![word; count]).collect()
}
