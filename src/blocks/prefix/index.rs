//! The table from keys to blocks, in arrays that never grow.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use super::{Domain, KeyHash, KeyMaker, PrefixKey};
use crate::blocks::BlockId;
use crate::error::InvariantError;

/// No block: the end of a chain.
const NONE: u32 = u32::MAX;

/// What stands before a block in its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent<'a> {
    pub(crate) key: PrefixKey,
    /// The number of its content; 0 for the start of a text.
    pub(crate) content: u64,
    /// Compared where a text starts; all that follows is tied to it by the contents.
    pub(crate) domain: &'a Arc<Domain>,
}

/// One block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: PrefixKey,
    /// The content of the block before it, or the seat of a block that is attached.
    parent: u64,
    /// Numbers what a block holds together with all before it: duplicates have one number, and blocks of other groups that of
    /// the block to which they are attached. 0: not registered.
    content: u64,
    /// Its neighbours in the chain of its bucket. They stay when it is unlinked, so that the latest unlinking can be undone.
    before: u32,
    after: u32,
}

/// As the parent of an entry: the block is not registered, but has kept its place in the chain.
const WITHDRAWN: u64 = u64::MAX;

/// Bit of the parent of an entry that is attached: the other bits are its seat. No content has a number so high.
const ATTACHED: u64 = 1 << 63;

/// Which block of which group, beside the first, ends in a block of the first group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) group: u32,
    /// Of several that end in one block of the first group.
    pub(crate) place: u32,
}

impl Seat {
    /// As the parent of an entry.
    fn tag(self) -> u64 {
        ATTACHED | u64::from(self.group) << 32 | u64::from(self.place)
    }

    fn of(parent: u64) -> Option<Self> {
        let is_seat = parent & ATTACHED != 0 && parent != WITHDRAWN;
        is_seat.then_some(Self { group: (parent >> 32) as u32 & !(1 << 31), place: parent as u32 })
    }

    /// Turns the key of the block of the first group into that of the seat, in another bucket, and back.
    fn turn(self, key: PrefixKey) -> PrefixKey {
        let mask = self.tag().wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let mut turned = key;
        turned.0.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
        turned
    }
}

const UNREGISTERED: Entry = Entry { key: PrefixKey([0; 32]), parent: 0, content: 0, before: NONE, after: NONE };

/// Knows the tokens of all blocks and finds the full ones by their keys.
#[derive(Debug)]
pub(crate) struct PrefixIndex {
    /// The first block of each chain.
    buckets: Vec<u32>,
    /// Hides from those who choose tokens which keys share a bucket.
    seed: u64,
    entries: Vec<Entry>,
    /// `[num_blocks, block_size]` the token in every slot.
    tokens: Vec<u32>,
    block_size: usize,
    /// The domains of registered first blocks.
    roots: HashMap<BlockId, Arc<Domain>>,
    /// Blocks in chains.
    len: u32,
    last_content: u64,
    hash: KeyHash,
    keys: KeyMaker,
}

impl PrefixIndex {
    /// An empty index, with memory for as many blocks as there may ever be; or the bytes that there was no memory for.
    pub(crate) fn new(num_blocks: u32, max_num_blocks: u32, block_size: u32, hash: KeyHash) -> Result<Self, u64> {
        let (blocks, slots) = (max_num_blocks as usize, max_num_blocks as usize * block_size as usize);
        let num_buckets = blocks.next_power_of_two().max(2);
        let bytes = (4 * (num_buckets + slots) + size_of::<Entry>() * blocks) as u64;
        let (mut buckets, mut entries, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        buckets
            .try_reserve_exact(num_buckets)
            .and_then(|()| entries.try_reserve_exact(blocks))
            .and_then(|()| tokens.try_reserve_exact(slots))
            .map_err(|_| bytes)?;
        buckets.resize(num_buckets, NONE);
        entries.resize(num_blocks as usize, UNREGISTERED);
        tokens.resize(num_blocks as usize * block_size as usize, 0);
        Ok(Self {
            buckets,
            seed: RandomState::new().build_hasher().finish() | 1,
            entries,
            tokens,
            block_size: block_size as usize,
            roots: HashMap::new(),
            len: 0,
            last_content: 0,
            hash,
            keys: KeyMaker::new(hash, block_size),
        })
    }

    /// The pool has another size. Blocks that go are not registered, though they may still be in a chain.
    pub(crate) fn resize(&mut self, num_blocks: u32) {
        for block in (num_blocks..self.entries.len() as u32).map(BlockId::of_pool) {
            if self.entries[block.index()].parent == WITHDRAWN {
                self.unlink(block);
            }
        }
        self.entries.resize(num_blocks as usize, UNREGISTERED);
        self.tokens.resize(num_blocks as usize * self.block_size, 0);
    }

    /// A maker of keys for look-ups, which change nothing.
    pub(crate) fn key_maker(&self) -> KeyMaker {
        KeyMaker::new(self.hash, self.block_size as u32)
    }

    pub(crate) fn is_registered(&self, block: BlockId) -> bool {
        self.entries[block.index()].content != 0
    }

    /// The key of a block of the first group, or of the one to which the block was attached.
    pub(crate) fn key(&self, block: BlockId) -> PrefixKey {
        let entry = &self.entries[block.index()];
        Seat::of(entry.parent).map_or(entry.key, |seat| seat.turn(entry.key))
    }

    /// The seat of a block that is attached.
    pub(crate) fn seat(&self, block: BlockId) -> Option<Seat> {
        Seat::of(self.entries[block.index()].parent)
    }

    /// Numbers what stands before a registered block of the first group.
    pub(crate) fn before(&self, block: BlockId) -> u64 {
        self.entries[block.index()].parent
    }

    /// Numbers what a block holds; 0 if it is not registered.
    pub(crate) fn content(&self, block: BlockId) -> u64 {
        self.entries[block.index()].content
    }

    /// The block of another group that was attached to what the block `reference` of the first group holds.
    pub(crate) fn find_attached(&self, reference: BlockId, seat: Seat) -> Option<BlockId> {
        let found = self.search_attached(&self.entries[reference.index()], seat);
        (found != NONE).then(|| BlockId::of_pool(found))
    }

    fn search_attached(&self, reference: &Entry, seat: Seat) -> u32 {
        let mut at = self.buckets[self.bucket(&seat.turn(reference.key))];
        while at != NONE {
            let entry = &self.entries[at as usize];
            // Equal contents are equal tokens behind equal tokens.
            if entry.content == reference.content && entry.parent == seat.tag() {
                break;
            }
            at = entry.after;
        }
        at
    }

    /// Registers a block of another group under what the registered block `reference` holds. Duplicates are kept.
    pub(crate) fn attach(&mut self, block: BlockId, reference: BlockId, seat: Seat) {
        if self.entries[block.index()].parent == WITHDRAWN {
            self.unlink(block);
        }
        let reference = self.entries[reference.index()];
        let twin = self.search_attached(&reference, seat);
        self.insert(block, seat.turn(reference.key), seat.tag(), reference.content, twin);
    }

    pub(crate) fn tokens(&self, block: BlockId) -> &[u32] {
        &self.tokens[block.index() * self.block_size..][..self.block_size]
    }

    pub(crate) fn tokens_mut(&mut self, block: BlockId) -> &mut [u32] {
        &mut self.tokens[block.index() * self.block_size..][..self.block_size]
    }

    /// Gives a copy of a block the first tokens of its source.
    pub(crate) fn copy_tokens(&mut self, source: BlockId, target: BlockId, count: usize) {
        let (source, target) = (source.index() * self.block_size, target.index() * self.block_size);
        self.tokens.copy_within(source..source + count, target);
    }

    /// The parent of a first block.
    pub(crate) fn root<'a>(keys: &mut KeyMaker, domain: &'a Arc<Domain>) -> Parent<'a> {
        Parent { key: keys.root(domain), content: 0, domain }
    }

    /// A registered block as the parent of the one behind it.
    pub(crate) fn parent<'a>(&self, block: BlockId, domain: &'a Arc<Domain>) -> Parent<'a> {
        let entry = &self.entries[block.index()];
        Parent { key: entry.key, content: entry.content, domain }
    }

    /// The block that holds `tokens` behind `parent`; of several, the one registered first.
    pub(crate) fn find(&self, keys: &mut KeyMaker, parent: &Parent<'_>, tokens: &[u32]) -> Option<BlockId> {
        let key = keys.child(&parent.key, tokens);
        let found = self.search(&key, parent, tokens);
        (found != NONE).then(|| BlockId::of_pool(found))
    }

    /// Registers a block, whose tokens are known, behind `parent`.
    ///
    /// Duplicates are kept: each serves its own sequence, and the first one the look-ups, until it is reused.
    pub(crate) fn register(&mut self, block: BlockId, parent: Option<BlockId>, domain: &Arc<Domain>) {
        if self.entries[block.index()].parent == WITHDRAWN {
            self.unlink(block);
        }
        let parent = match parent {
            Some(before) => self.parent(before, domain),
            None => Self::root(&mut self.keys, domain),
        };
        let start = block.index() * self.block_size;
        let tokens = &self.tokens[start..start + self.block_size];
        let key = self.keys.child(&parent.key, tokens);
        let twin = self.search(&key, &parent, tokens);
        let content = if twin == NONE {
            self.last_content += 1;
            self.last_content
        } else {
            self.entries[twin as usize].content
        };
        let number = parent.content;
        self.insert(block, key, number, content, twin);
        if number == 0 {
            self.roots.insert(block, Arc::clone(domain));
        }
    }

    /// Puts a block into the chain of its key, behind its twin if it has one.
    fn insert(&mut self, block: BlockId, key: PrefixKey, parent: u64, content: u64, twin: u32) {
        let (before, after) = match self.entries.get(twin as usize) {
            Some(entry) => (twin, entry.after),
            None => (NONE, self.buckets[self.bucket(&key)]),
        };
        self.entries[block.index()] = Entry { key, parent, content, before, after };
        self.relink(block);
    }

    /// Takes a registered block out of its chain. [`relink`](Self::relink) undoes it, the latest one first.
    pub(crate) fn unlink(&mut self, block: BlockId) {
        let Entry { key, before, after, .. } = self.entries[block.index()];
        self.set_after(before, &key, after);
        if after != NONE {
            self.entries[after as usize].before = before;
        }
        self.len -= 1;
    }

    pub(crate) fn relink(&mut self, block: BlockId) {
        let Entry { key, before, after, .. } = self.entries[block.index()];
        self.set_after(before, &key, block.get());
        if after != NONE {
            self.entries[after as usize].before = block.get();
        }
        self.len += 1;
    }

    /// Ends the registration of a block that is not in its chain any more.
    pub(crate) fn forget(&mut self, block: BlockId) {
        if self.entries[block.index()].parent == 0 {
            self.roots.remove(&block);
        }
        self.entries[block.index()] = UNREGISTERED;
    }

    /// Ends the registration of a block without touching its chain, to which unlinked blocks may return; it leaves the
    /// chain when it is registered again.
    pub(crate) fn withdraw(&mut self, block: BlockId) {
        if self.entries[block.index()].parent == 0 {
            self.roots.remove(&block);
        }
        let entry = &mut self.entries[block.index()];
        (entry.parent, entry.content) = (WITHDRAWN, 0);
    }

    fn bucket(&self, key: &PrefixKey) -> usize {
        let word = u64::from_le_bytes(*key.0.first_chunk().expect("a key has 32 bytes"));
        let mixed = u128::from(word ^ self.seed) * u128::from(self.seed);
        (mixed as u64 ^ (mixed >> 64) as u64) as usize & (self.buckets.len() - 1)
    }

    fn set_after(&mut self, before: u32, key: &PrefixKey, block: u32) {
        if before == NONE {
            let bucket = self.bucket(key);
            self.buckets[bucket] = block;
        } else {
            self.entries[before as usize].after = block;
        }
    }

    fn search(&self, key: &PrefixKey, parent: &Parent<'_>, tokens: &[u32]) -> u32 {
        let mut at = self.buckets[self.bucket(key)];
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.key == *key
                && entry.parent == parent.content
                && self.tokens(BlockId::of_pool(at)) == tokens
                && (entry.parent != 0 || self.roots.get(&BlockId::of_pool(at)) == Some(parent.domain))
            {
                break;
            }
            at = entry.after;
        }
        at
    }

    /// Whether every registered block, those in `unlinked` apart, is in the chain of its key's bucket.
    pub(crate) fn check_invariants(&self, unlinked: &[BlockId]) -> Result<(), InvariantError> {
        let (mut linked, mut withdrawn) = (0, 0);
        for (bucket, &first) in self.buckets.iter().enumerate() {
            let (mut before, mut at) = (NONE, first);
            while at != NONE {
                let broken = |what| Err(InvariantError::Prefix { block: BlockId::of_pool(at), what });
                let in_chain = |entry: &&Entry| entry.content != 0 || entry.parent == WITHDRAWN;
                let Some(entry) = self.entries.get(at as usize).filter(in_chain) else {
                    return broken("it is in a chain, but not registered");
                };
                linked += 1;
                withdrawn += usize::from(entry.parent == WITHDRAWN);
                if entry.before != before || linked > self.entries.len() {
                    return broken("its neighbours do not agree");
                }
                if self.bucket(&entry.key) != bucket {
                    return broken("it is in the chain of another key");
                }
                if (entry.parent == 0) != self.roots.contains_key(&BlockId::of_pool(at)) {
                    return broken("first blocks, and only they, have a domain");
                }
                (before, at) = (at, entry.after);
            }
        }
        let registered = self.entries.iter().filter(|entry| entry.content != 0).count();
        let counter = |name, stored, counted| match stored == counted as u64 {
            true => Ok(()),
            false => Err(InvariantError::Counter { name, stored, counted: counted as u64 }),
        };
        counter("blocks in the prefix index", self.len.into(), linked)?;
        counter("registered blocks", (linked - withdrawn + unlinked.len()) as u64, registered)
    }

    /// Whether the key of a registered block is that of its tokens behind its parent.
    pub(crate) fn check_key(&self, block: BlockId, parent: &Parent<'_>) -> Result<(), InvariantError> {
        let entry = &self.entries[block.index()];
        let key = self.key_maker().child(&parent.key, self.tokens(block));
        if entry.key == key && entry.parent == parent.content {
            return Ok(());
        }
        Err(InvariantError::Prefix { block, what: "its key is not that of its tokens" })
    }

    /// Plants an error, for the tests of the checks.
    #[cfg(test)]
    pub(crate) fn corrupt_key(&mut self, block: BlockId) {
        self.entries[block.index()].key.0[31] ^= 1;
    }
}
