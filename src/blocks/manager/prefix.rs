//! The prefix cache: sequences that begin like others, and blocks that become findable.

use std::sync::Arc;

use crate::blocks::events::BlockEvent;
use crate::blocks::manager::reserve::Growth;
use crate::blocks::prefix::{KeyMaker, Parent, PrefixIndex};
use crate::blocks::{CacheManager, Domain, RELEASED, SeqId};
use crate::error::ManagerError;

/// The cached blocks at the start of a text, one after the other.
struct Hits<'a> {
    prefix: &'a PrefixIndex,
    keys: KeyMaker,
    parent: Parent<'a>,
    blocks: std::slice::ChunksExact<'a, u32>,
}

impl Iterator for Hits<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let tokens = self.blocks.next()?;
        let block = self.prefix.find(&mut self.keys, &self.parent, tokens)?;
        self.parent = self.prefix.parent(block, self.parent.domain);
        Some(block)
    }
}

/// The hits of a text, of which at least one token is left over: its result is what the engine needs.
fn hits<'a>(prefix: &'a PrefixIndex, tokens: &'a [u32], domain: &'a Arc<Domain>, block_size: u32) -> Hits<'a> {
    let mut keys = prefix.key_maker();
    let parent = PrefixIndex::root(&mut keys, domain);
    let blocks = tokens[..tokens.len().saturating_sub(1)].chunks_exact(block_size as usize);
    Hits { prefix, keys, parent, blocks }
}

impl CacheManager {
    /// A new sequence that begins with the blocks in which the prefix cache holds the start of `tokens`, and how many
    /// tokens these are. The others are still to be reserved: `tokens[cached..]`, one at least.
    ///
    /// The blocks belong to the sequence from here on, before anything is counted or evicted. Only blocks of sequences
    /// with the same `domain` are found. Without a prefix cache nothing is.
    ///
    /// # Errors
    /// As [`create_sequence`](Self::create_sequence); the statistics do not count a sequence that was refused.
    pub fn create_sequence_with_tokens(
        &mut self,
        tokens: &[u32],
        domain: &Domain,
    ) -> Result<(SeqId, u32), ManagerError> {
        let _span = tracing::trace_span!("paged.create", tokens = tokens.len()).entered();
        let seq = self.create_sequence()?;
        let row = seq.index();
        let domain = Arc::new(domain.clone());
        let mut found = 0;
        if let Some(prefix) = &self.store.prefix {
            let found_blocks = hits(prefix, tokens, &domain, self.layout.block_size());
            for (entry, block) in self.tables.row_mut(row).iter_mut().zip(found_blocks) {
                *entry = block;
                found += 1;
            }
            self.tally.prefix_queries += tokens.len() as u64;
            self.domains[row as usize] = Some(domain);
        }
        self.store.pin(&self.tables.row(row)[..found as usize]);
        let cached = found * self.layout.block_size();
        self.tally.prefix_hits += u64::from(cached);
        let state = &mut self.sequences[row as usize];
        if found > 0 {
            (state.len, state.known) = (cached, cached);
            (state.num_blocks, state.registered) = (found, found);
        }
        self.note_peak();
        Ok((seq, cached))
    }

    /// Tokens of the start of `tokens` that [`create_sequence_with_tokens`](Self::create_sequence_with_tokens) would find.
    ///
    /// Nothing is held: the answer is good until something changes.
    pub fn cached_tokens(&self, tokens: &[u32], domain: &Domain) -> u32 {
        let Some(prefix) = &self.store.prefix else {
            return 0;
        };
        let columns = self.layout.max_blocks_per_seq() as usize;
        let found = hits(prefix, tokens, &Arc::new(domain.clone()), self.layout.block_size()).take(columns).count();
        found as u32 * self.layout.block_size()
    }

    /// Whether a sequence with these tokens could be created and all of them reserved: blocks that are found need not be
    /// free, and found ones that are free do not count as room for the others.
    pub fn can_admit(&self, tokens: &[u32], domain: &Domain) -> bool {
        let len = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if self.step.open || self.free_rows.is_empty() || len > self.layout.max_seq_len() {
            return false;
        }
        let (mut needed, mut free) = (self.layout.blocks_for(len).max(self.first_blocks()), self.store.pool.num_free());
        if let Some(prefix) = &self.store.prefix {
            for block in hits(prefix, tokens, &Arc::new(domain.clone()), self.layout.block_size()) {
                needed -= 1;
                free -= u32::from(self.store.is_free(block));
            }
        }
        needed <= free
    }

    /// Forgets all that is cached, because the model has changed for instance.
    ///
    /// # Errors
    /// [`ManagerError::StepOpen`], or [`ManagerError::PrefixCacheInUse`] while any block is in use.
    pub fn reset_prefix_cache(&mut self) -> Result<(), ManagerError> {
        if self.step.open {
            return Err(ManagerError::StepOpen);
        }
        let used = self.store.pool.num_blocks() - self.store.pool.num_free();
        if used > 0 {
            return Err(ManagerError::PrefixCacheInUse { used });
        }
        self.store.reset();
        self.store.events.push(|| BlockEvent::Cleared);
        Ok(())
    }

    /// Writes the tokens of a growth, at its commit; `first` is where they begin among those of the step.
    pub(super) fn note_tokens(&mut self, growth: &Growth, first: usize) {
        let (seq, block_size) = (&mut self.sequences[growth.row as usize], self.layout.block_size());
        let Some(prefix) = self.store.prefix.as_mut().filter(|_| seq.known == seq.len) else {
            return;
        };
        let row = self.tables.row(growth.row);
        let (mut tokens, mut within) =
            (self.step.new_tokens(first, growth.new_tokens), (seq.len % block_size) as usize);
        let mut column = (seq.len / block_size) as usize;
        while !tokens.is_empty() {
            let room = &mut prefix.tokens_mut(row[column])[within..];
            let (these, others) = tokens.split_at(room.len().min(tokens.len()));
            room[..these.len()].copy_from_slice(these);
            (tokens, column, within) = (others, column + 1, 0);
        }
        seq.known += growth.new_tokens;
    }

    /// Gives a growth's copy of `source` the tokens in front of the new ones, at its commit: those that were known stay so,
    /// whatever is known of the new ones.
    pub(super) fn copy_tokens(&mut self, growth: &Growth, source: u32) {
        let (len, block_size) = (self.sequences[growth.row as usize].len, self.layout.block_size());
        if let Some(prefix) = &mut self.store.prefix {
            let target = self.tables.row(growth.row)[(len / block_size) as usize];
            prefix.copy_tokens(source, target, (len % block_size) as usize);
        }
    }

    /// Makes the full blocks of a row findable, as far as their tokens are known.
    pub(super) fn register_full(&mut self, row: u32) {
        let (seq, block_size) = (&mut self.sequences[row as usize], self.layout.block_size());
        let (Some(prefix), Some(domain)) = (&mut self.store.prefix, &self.domains[row as usize]) else {
            return;
        };
        let table = self.tables.row(row);
        while seq.registered < seq.known / block_size {
            let column = seq.registered as usize;
            let (block, before) = (table[column], column.checked_sub(1).map(|before| table[before]));
            // The block before may have left the windows, with its key.
            if before == Some(RELEASED) {
                return;
            }
            if !prefix.is_registered(block) {
                prefix.register(block, before, domain);
                let parent = before.map(|before| prefix.key(before));
                self.store.events.push(|| BlockEvent::Stored { block, key: prefix.key(block), parent });
            }
            seq.registered += 1;
        }
    }
}
