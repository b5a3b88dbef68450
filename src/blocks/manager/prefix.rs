//! The prefix cache: sequences that begin like others, and blocks that become findable.

use std::sync::Arc;

use crate::blocks::manager::Sequence;
use crate::blocks::manager::reserve::Extension;
use crate::blocks::prefix::{KeyMaker, Parent, PrefixIndex};
use crate::blocks::{BlockId, CacheManager, Domain, RELEASED, SeqId};
use crate::config::MAX_GROUPS;
use crate::error::ManagerError;
use crate::layout::KvLayout;

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

/// The hits of a text in the first group, of which at least one token is left over: its result is what the engine needs.
fn hits<'a>(prefix: &'a PrefixIndex, tokens: &'a [u32], domain: &'a Arc<Domain>, layout: &KvLayout) -> Hits<'a> {
    let mut keys = prefix.key_maker();
    let parent = PrefixIndex::root(&mut keys, domain);
    let size = layout.block_size() as usize;
    let most = (layout.max_blocks_per_seq() as usize).saturating_mul(size);
    let blocks = tokens[..tokens.len().saturating_sub(1).min(most)].chunks_exact(size);
    Hits { prefix, keys, parent, blocks }
}

/// What the prefix cache has of a text, in all groups.
#[derive(Debug, Default)]
struct Found {
    /// Of the first group.
    blocks: Vec<BlockId>,
    tokens: u32,
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
        let found = self.find(tokens, &domain);
        if self.store.prefix().is_some() {
            self.tally.prefix_queries += tokens.len() as u64;
            self.domains[row as usize] = Some(domain);
        }
        let cached = found.tokens;
        self.tally.prefix_hits += u64::from(cached);
        if cached > 0 {
            let columns = found.blocks.len() as u32;
            let state = &mut self.sequences[row as usize];
            (state.len, state.known, state.registered, state.found) = (cached, cached, columns, columns);
            for idx in 0..self.groups.len() {
                self.take_found(idx, row, &found);
            }
        }
        self.note_peak();
        Ok((seq, cached))
    }

    /// The longest start of a text that every group can go on from: the blocks of its last window are there, or all where it
    /// has none. Of a window in the first group all are needed, for the others are found by them.
    fn find(&self, tokens: &[u32], domain: &Arc<Domain>) -> Found {
        let mut found = Found::default();
        let Some(prefix) = self.store.prefix() else {
            return found;
        };
        let size = self.layout.block_size();
        // Of every other group, the column from which on all are there.
        let mut since = [0; MAX_GROUPS];
        let mut usable = 0;
        for block in hits(prefix, tokens, domain, &self.layout) {
            let column = found.blocks.len() as u32;
            let len = (column + 1) * size;
            found.blocks.push(block);
            let mut all = true;
            for (idx, group) in self.groups.iter().enumerate().skip(1) {
                for column in group.columns_ending_in(column, size) {
                    if prefix.find_attached(block, group.seat(idx, column, size)).is_none() {
                        since[idx] = column + 1;
                    }
                }
                all &= len.is_multiple_of(group.layout.block_size()) && since[idx] <= group.given_back(len);
                if group.window.is_none() && since[idx] > 0 {
                    // It lacks a block of every longer start as well.
                    found.blocks.truncate(usable);
                    found.tokens = usable as u32 * size;
                    return found;
                }
            }
            if all {
                usable = found.blocks.len();
            }
        }
        found.blocks.truncate(usable);
        found.tokens = usable as u32 * size;
        found
    }

    /// The block of a column of a group in what was found.
    fn found_block(&self, found: &Found, idx: usize, column: u32) -> Option<BlockId> {
        let (group, size) = (&self.groups[idx], self.layout.block_size());
        if idx == 0 {
            return found.blocks.get(column as usize).copied();
        }
        let last_token = u64::from(column + 1) * u64::from(group.layout.block_size()) - 1;
        let reference = *found.blocks.get((last_token / u64::from(size)) as usize)?;
        self.store.prefix()?.find_attached(reference, group.seat(idx, column, size))
    }

    /// The columns of a group in what was found: how many there are, and the first that it takes.
    fn found_columns(&self, found: &Found, idx: usize) -> (u32, u32) {
        let group = &self.groups[idx];
        let columns = found.tokens / group.layout.block_size();
        (if idx == 0 { 0 } else { group.given_back(found.tokens) }, columns)
    }

    /// Gives a new sequence the blocks of a group that were found for it.
    fn take_found(&mut self, idx: usize, row: u32, found: &Found) {
        let (first, columns) = self.found_columns(found, idx);
        for column in 0..columns {
            let block = if column < first { Some(RELEASED) } else { self.found_block(found, idx, column) };
            self.groups[idx].tables.row_mut(row)[column as usize] = block.expect("it was found just now");
        }
        let group = &mut self.groups[idx];
        let state = group.state_mut(row);
        (state.num_blocks, state.released) = (columns, first);
        self.store.pin(group.owned(row));
    }

    /// Tokens of the start of `tokens` that [`create_sequence_with_tokens`](Self::create_sequence_with_tokens) would find.
    ///
    /// Nothing is held: the answer is good until something changes.
    pub fn cached_tokens(&self, tokens: &[u32], domain: &Domain) -> u32 {
        self.find(tokens, &Arc::new(domain.clone())).tokens
    }

    /// Whether a sequence with these tokens could be created and all of them reserved, with `headroom` blocks left free
    /// for the growth of those that run already; see [`victims`](Self::victims). Blocks that are found need not be free,
    /// and found ones that are free do not count as room for the others.
    pub fn can_admit(&self, tokens: &[u32], domain: &Domain, headroom: u32) -> bool {
        let len = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        if self.step.is_open() || self.free_rows.is_empty() || len > self.layout.max_seq_len() {
            return false;
        }
        let found = self.find(tokens, &Arc::new(domain.clone()));
        let (mut needed, mut free) = (u64::from(headroom), self.store.pool().num_free());
        for (idx, group) in self.groups.iter().enumerate() {
            let (first, columns) = self.found_columns(&found, idx);
            needed += u64::from(group.layout.blocks_for(len).max(group.first_blocks()) - columns);
            let blocks = (first..columns).filter_map(|column| self.found_block(&found, idx, column));
            free -= blocks.filter(|&block| self.store.is_free(block)).count() as u32;
        }
        needed <= free.into()
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
        let part = self
            .step
            .extensions(self.groups.len())
            .nth(state.part as usize)
            .filter(|(part, _)| open && part.row == row);
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
        let (first, others) = self.groups.split_first().expect("a cache has a group");
        let table = first.tables.row(row);
        while seq.registered < seq.known / block_size {
            let column = seq.registered as usize;
            let (block, before) = (table[column], column.checked_sub(1).map(|before| table[before]));
            // The block before may have left the windows, with its key, and so may this one before its ids came.
            if before == Some(RELEASED) || block == RELEASED {
                return;
            }
            self.store.register(block, before, domain);
            for (idx, group) in (1..).zip(others) {
                for column in group.columns_ending_in(seq.registered, block_size) {
                    let attached = group.tables.row(row)[column as usize];
                    if attached != RELEASED {
                        self.store.attach(attached, group.seat(idx, column, block_size), block, before);
                    }
                }
            }
            seq.registered += 1;
        }
    }
}
