//! What must hold after every operation.

use wgpu_paged_attention::blocks::{BlockId, RELEASED};

use crate::pool_model::harness::Harness;

impl Harness {
    pub fn check(&self) {
        self.cache.check_invariants().unwrap();
        let (model, layout) = (&self.model, &self.model.layout);
        assert!(self.cache.free_blocks().map(BlockId::get).eq(model.free.iter().copied()), "another order");
        assert_eq!(self.cache.num_free_blocks() as usize, model.free.len());
        assert_eq!(self.cache.num_sequences() as usize, model.seqs.len());
        assert_eq!(self.cache.is_step_open(), model.step.is_some());
        for seq in &model.seqs {
            let table: Vec<u32> = seq.blocks.iter().map(|block| block.unwrap_or(RELEASED.get())).collect();
            assert_eq!(self.cache.block_table(seq.id).unwrap(), table);
            assert_eq!(self.cache.seq_len(seq.id), Ok(seq.len()));
            for (position, &value) in seq.values.iter().enumerate() {
                let (column, within) = (position / model.block_size(), position % model.block_size());
                if model.step.as_ref().is_some_and(|step| step.grown.iter().any(|grown| grown.id == seq.id)) {
                    // The copy that its table names is not made yet.
                    continue;
                }
                if let Some(block) = seq.blocks[column] {
                    assert_eq!(self.device.block(block)[within], value, "wrong data");
                }
            }
        }
        for entry in &model.registry {
            assert_eq!(self.device.block(entry.block), entry.values, "wrong data in a cached block");
        }
        self.check_numbers();
        for &handle in &self.handles[self.handles.len().saturating_sub(20)..] {
            let alive = model.seqs.iter().any(|seq| seq.id == handle);
            assert_eq!(self.cache.contains(handle), alive);
        }
        let found = model.step.as_ref().map_or(&model.registry, |step| &step.registry_before);
        let mut blocks: Vec<u32> = found.iter().map(|entry| entry.block).collect();
        blocks.sort_unstable();
        assert!(self.heard.keys().copied().eq(blocks));
        assert!(layout.num_blocks() as usize >= model.free.len());
    }

    fn check_numbers(&self) {
        let (model, stats) = (&self.model, self.cache.stats());
        let used = model.layout.num_blocks() as usize - model.free.len();
        let owners: Vec<usize> = (0..model.layout.num_blocks()).map(|block| model.owners(block)).collect();
        assert_eq!((stats.used_blocks as usize, stats.free_blocks as usize), (used, model.free.len()));
        assert_eq!(stats.shared_blocks as usize, owners.iter().filter(|&&owners| owners > 1).count());
        let cached = model.free.iter().filter(|&&block| model.is_registered(block)).count();
        assert_eq!(stats.cached_blocks as usize, cached);
        assert_eq!((stats.prefix_queries, stats.prefix_hits), (model.queries, model.hits));
        assert_eq!(
            (stats.evictions, stats.copies, stats.preemptions),
            (model.evictions, model.copies, model.preemptions)
        );
        assert!(stats.peak_used_blocks <= model.layout.max_num_blocks());
        if model.step.is_some() {
            return;
        }
        assert!(stats.peak_used_blocks as usize >= used);
        let size = model.block_size();
        let mut filled = vec![0; owners.len()];
        for seq in &model.seqs {
            for (column, block) in seq.blocks.iter().enumerate() {
                if let Some(block) = *block {
                    let tokens = seq.values.len().saturating_sub(column * size).min(size);
                    filled[block as usize] = tokens.max(filled[block as usize]);
                }
            }
        }
        let filled: usize = filled.iter().sum();
        assert_eq!((stats.reserved_tokens, stats.filled_tokens), ((used * size) as u64, filled as u64));
        assert_eq!(stats.wasted_tokens, (used * size - filled) as u64);
    }

    /// After all releases one allocation takes the whole pool.
    pub fn finish(mut self) {
        self.abandon();
        while let Some(seq) = self.model.seqs.pop() {
            self.cache.release(seq.id).unwrap();
        }
        let layout = self.model.layout.clone();
        assert_eq!(self.cache.num_free_blocks(), layout.num_blocks());
        let each = layout.max_seq_len().min(layout.num_slots() as u32);
        while let Ok(seq) = self.cache.create_sequence() {
            let room =
                layout.num_slots() as u32 - (layout.num_blocks() - self.cache.num_free_blocks()) * layout.block_size();
            let tokens = if layout.paged() { each.min(room) } else { each };
            self.cache.reserve(&[(seq, tokens)], &mut self.plan).unwrap();
            // Windows would give blocks back.
            self.cache.commit(&mut self.plan).unwrap();
        }
        if layout.window().is_none() {
            let capacity = layout.max_sequences().saturating_mul(layout.blocks_for(each));
            assert_eq!(self.cache.num_free_blocks(), layout.num_blocks().saturating_sub(capacity));
        }
    }
}
