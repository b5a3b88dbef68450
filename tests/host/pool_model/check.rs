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
            for (group, blocks) in seq.blocks.iter().enumerate() {
                let table: Vec<u32> = blocks.iter().map(|block| block.unwrap_or(RELEASED.get())).collect();
                assert_eq!(self.cache.group_block_table(seq.id, group).unwrap(), table);
            }
            assert_eq!(self.cache.seq_len(seq.id), Ok(seq.len()));
            let places =
                (0..model.num_groups()).flat_map(|group| seq.values.iter().enumerate().map(move |it| (group, it)));
            for (group, (position, &value)) in places {
                let (column, within) = (position / model.size(group), position % model.size(group));
                if model.step.as_ref().is_some_and(|step| step.grown.iter().any(|grown| grown.id == seq.id)) {
                    // The copy that its table names is not made yet.
                    continue;
                }
                if let Some(block) = seq.blocks[group][column] {
                    assert_eq!(self.device.block(block)[within], value, "wrong data");
                }
            }
        }
        for entry in &model.registry {
            assert_eq!(
                self.device.block(entry.block)[..entry.values.len()],
                entry.values,
                "wrong data in a cached block"
            );
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
        // Bytes of a token in every group, and the tokens of every used block with its group.
        let groups = model.layout.groups();
        let bytes = |group: usize| groups[group].block_bytes() / u64::from(groups[group].block_size());
        let mut filled = vec![(0, 0); owners.len()];
        for seq in &model.seqs {
            for (group, blocks) in seq.blocks.iter().enumerate() {
                for (column, block) in blocks.iter().enumerate() {
                    if let Some(block) = *block {
                        let size = model.size(group);
                        let tokens = seq.values.len().saturating_sub(column * size).min(size);
                        filled[block as usize] = (group, tokens.max(filled[block as usize].1));
                    }
                }
            }
        }
        let owned = filled.iter().zip(&owners).filter(|&(_, &owners)| owners > 0);
        let wasted: u64 = owned.map(|(&(group, filled), _)| (model.size(group) - filled) as u64 * bytes(group)).sum();
        let reserved = (used * model.block_size()) as u64;
        assert_eq!((stats.wasted_bytes, stats.wasted_tokens), (wasted, wasted / bytes(0)));
        assert_eq!((stats.reserved_tokens, stats.filled_tokens), (reserved, reserved - wasted / bytes(0)));
    }

    /// After all releases one allocation takes the whole pool.
    pub fn finish(mut self) {
        self.abandon();
        while let Some(seq) = self.model.seqs.pop() {
            self.cache.release(seq.id).unwrap();
        }
        let layout = self.model.layout.clone();
        assert_eq!(self.cache.num_free_blocks(), layout.num_blocks());
        if layout.num_groups() > 1 {
            return;
        }
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
