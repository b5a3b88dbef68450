//! The prefix cache: sequences that begin like others, and blocks that become findable.

use std::sync::Arc;

use crate::blocks::manager::Sequence;
use crate::blocks::manager::reserve::Extension;
use crate::blocks::prefix::{KeyMaker, Parent, PrefixIndex};
use crate::blocks::{BlockId, CacheManager, Domain, RELEASED, SeqId};
use crate::error::ManagerError;

/// The cached blocks at the start of a text, one after the other.
struct Hits<'a> {
    prefix: &'a PrefixIndex,
    keys: KeyMaker,
    parent: Parent<'a>,
    blocks: std::slice::ChunksExact<'a, u32>,
}

impl Iterator for Hits<'_> {
    type Item = BlockId;

    fn next(&mut self) -> Option<BlockId> {
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

/// Ids from position `first` on, block by block: the column, where they begin in it, and they.
fn pieces(first: u32, mut ids: &[u32], block_size: u32) -> impl Iterator<Item = (u32, usize, &[u32])> {
    let mut at = first;
    std::iter::from_fn(move || {
        let (column, within) = (at / block_size, at % block_size);
        let (these, others) = ids.split_at(ids.len().min((block_size - within) as usize));
        (at, ids) = (at + these.len() as u32, others);
        (!these.is_empty()).then_some((column, within as usize, these))
    })
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
        if let Some(prefix) = self.store.prefix() {
            let found_blocks = hits(prefix, tokens, &domain, self.layout.block_size());
            for (entry, block) in self.groups[0].tables.row_mut(row).iter_mut().zip(found_blocks) {
                *entry = block;
                found += 1;
            }
            self.tally.prefix_queries += tokens.len() as u64;
            self.domains[row as usize] = Some(domain);
        }
        self.store.pin(&self.groups[0].tables.row(row)[..found as usize]);
        let cached = found * self.layout.block_size();
        self.tally.prefix_hits += u64::from(cached);
        let state = &mut self.sequences[row as usize];
        if found > 0 {
            (state.len, state.known) = (cached, cached);
            (state.registered, state.found) = (found, found);
            self.groups[0].state_mut(row).num_blocks = found;
        }
        self.note_peak();
        Ok((seq, cached))
    }

    /// Tokens of the start of `tokens` that [`create_sequence_with_tokens`](Self::create_sequence_with_tokens) would find.
    ///
    /// Nothing is held: the answer is good until something changes.
    pub fn cached_tokens(&self, tokens: &[u32], domain: &Domain) -> u32 {
        let Some(prefix) = self.store.prefix() else {
            return 0;
        };
        let columns = self.layout.max_blocks_per_seq() as usize;
        let found = hits(prefix, tokens, &Arc::new(domain.clone()), self.layout.block_size()).take(columns).count();
        found as u32 * self.layout.block_size()
    }

    /// Whether a sequence with these tokens could be created and all of them reserved, with `headroom` blocks left free
    /// for the growth of those that run already; see [`victims`](Self::victims). Blocks that are found need not be free,
    /// and found ones that are free do not count as room for the others.
    pub fn can_admit(&self, tokens: &[u32], domain: &Domain, headroom: u32) -> bool {
        let len = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if self.step.is_open() || self.free_rows.is_empty() || len > self.layout.max_seq_len() {
            return false;
        }
        let (mut needed, mut free) =
            (self.layout.blocks_for(len).max(self.groups[0].first_blocks()), self.store.pool().num_free());
        if let Some(prefix) = self.store.prefix() {
            for block in hits(prefix, tokens, &Arc::new(domain.clone()), self.layout.block_size()) {
                needed -= 1;
                free -= u32::from(self.store.is_free(block));
            }
        }
        u64::from(needed) + u64::from(headroom) <= free.into()
    }

    /// Forgets all that is cached, because the model has changed for instance.
    ///
    /// # Errors
    /// [`ManagerError::StepOpen`], or [`ManagerError::PrefixCacheInUse`] while any block is in use.
    pub fn reset_prefix_cache(&mut self) -> Result<(), ManagerError> {
        if self.step.is_open() {
            return Err(ManagerError::StepOpen);
        }
        let used = self.store.pool().num_blocks() - self.store.pool().num_free();
        if used > 0 {
            return Err(ManagerError::PrefixCacheInUse { used });
        }
        self.store.reset();
        Ok(())
    }

    /// Notes the ids of the first unknown tokens, unless a shared block has others, and registers what they fill.
    pub(super) fn take_ids(&mut self, seq: SeqId, state: &Sequence, ids: &[u32]) -> Result<(), ManagerError> {
        let (row, block_size) = (seq.index(), self.layout.block_size());
        let Some(prefix) = self.store.prefix() else {
            return Ok(());
        };
        // In an open step the copy of a shared block has no ids yet, and may never get any.
        let open = self.step.is_open() && state.step == self.step.number;
        let part = self.step.extensions().nth(state.part as usize).filter(|(part, _)| open && part.row == row);
        let copied = part.and_then(|(_, parts)| parts[0].source).map(|source| (state.len / block_size, source));
        for (column, within, ids) in pieces(state.known, ids, block_size) {
            let block = self.block_of(row, column, copied);
            if block != RELEASED && prefix.is_registered(block) {
                let known = &prefix.tokens(block)[within..];
                if let Some(at) = known.iter().zip(ids).position(|(known, id)| known != id) {
                    let position = column * block_size + (within + at) as u32;
                    return Err(ManagerError::OtherTokenId { seq, position, given: ids[at], cached: known[at] });
                }
            }
        }
        self.note_tokens(row, ids, copied);
        if self.store.evicted().is_empty() {
            self.register_full(row);
        }
        Ok(())
    }

    /// The block of a column, or what `instead` has for that column.
    fn block_of(&self, row: u32, column: u32, instead: Option<(u32, BlockId)>) -> BlockId {
        let instead = instead.filter(|&(other, _)| other == column);
        instead.map_or(self.groups[0].tables.row(row)[column as usize], |(_, block)| block)
    }

    /// Notes the ids of the first unknown tokens of a row.
    fn note_tokens(&mut self, row: u32, ids: &[u32], instead: Option<(u32, BlockId)>) {
        let known = self.sequences[row as usize].known;
        for (column, within, ids) in pieces(known, ids, self.layout.block_size()) {
            let block = self.block_of(row, column, instead);
            if block != RELEASED {
                self.store.note_tokens(block, within, ids);
            }
        }
        self.sequences[row as usize].known += ids.len() as u32;
    }

    /// Takes the ids that a step brought, at its commit. Without those before them they are of no use.
    pub(super) fn note_step_tokens(&mut self, extension: &Extension, first: usize) {
        let state = &self.sequences[extension.row as usize];
        if state.known == state.len {
            let tokens = std::mem::take(&mut self.step.tokens);
            self.note_tokens(extension.row, &tokens[first..][..extension.new_tokens as usize], None);
            self.step.tokens = tokens;
        }
    }

    /// Gives an extension's copy of `source` the tokens before the new ones, at its commit: those that were known stay so,
    /// whatever is known of the new ones.
    pub(super) fn copy_tokens(&mut self, extension: &Extension, source: BlockId) {
        let (len, block_size) = (self.sequences[extension.row as usize].len, self.layout.block_size());
        let target = self.groups[0].tables.row(extension.row)[(len / block_size) as usize];
        self.store.copy_tokens(source, target, (len % block_size) as usize);
    }

    /// Makes the full blocks of a row findable, as far as their tokens are known.
    pub(super) fn register_full(&mut self, row: u32) {
        let (seq, block_size) = (&mut self.sequences[row as usize], self.layout.block_size());
        let Some(domain) = &self.domains[row as usize] else {
            return;
        };
        let table = self.groups[0].tables.row(row);
        while seq.registered < seq.known / block_size {
            let column = seq.registered as usize;
            let (block, before) = (table[column], column.checked_sub(1).map(|before| table[before]));
            // The block before may have left the windows, with its key, and so may this one before its ids came.
            if before == Some(RELEASED) || block == RELEASED {
                return;
            }
            self.store.register(block, before, domain);
            seq.registered += 1;
        }
    }
}
