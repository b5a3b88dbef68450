//! What a manager should hold, in vectors that are searched from end to end.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use wgpu_paged_attention::blocks::{Domain, LateTokens, ManagerOptions, SeqId};
use wgpu_paged_attention::error::ManagerError;
use wgpu_paged_attention::layout::KvLayout;

/// What K and V of a token look like: they depend on the token, on all before it, and on the domain.
pub fn value(before: u64, token: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    (before, token).hash(&mut hasher);
    hasher.finish() | 1
}

pub fn domain(number: u8) -> Domain {
    match number {
        0 => Domain::default(),
        _ => Domain::default().with_salt(&[number]),
    }
}

#[derive(Clone, Debug)]
pub struct Seq {
    pub id: SeqId,
    /// Of every group; `None` where a block left its window.
    pub blocks: Vec<Vec<Option<u32>>>,
    /// The value of every token in the cache.
    pub values: Vec<u64>,
    /// The tokens that it will have, as far as that was said; 1 follows.
    pub text: Vec<u32>,
    pub domain: u8,
    /// Leading tokens that the manager knows.
    pub known: usize,
    /// Leading tokens that were noted, to be told later.
    pub taken: usize,
    /// Leading blocks of the first group that were entered into the registry.
    pub registered: usize,
    /// Leading blocks that came from there.
    pub found: usize,
    /// Of every token: a number that no other has, and the commit or import that brought it.
    pub born: Vec<(u64, u64)>,
    /// Tokens before here that have no id yet will never get one.
    pub forgotten: usize,
}

impl Seq {
    pub fn has(&self, block: u32) -> bool {
        self.blocks.iter().any(|table| table.contains(&Some(block)))
    }

    pub fn len(&self) -> u32 {
        self.values.len() as u32
    }

    pub fn token(&self, position: usize) -> u32 {
        self.text.get(position).copied().unwrap_or(1)
    }

    pub fn next_value(&self) -> u64 {
        value(self.values.last().copied().unwrap_or(u64::from(self.domain) << 32), self.token(self.values.len()))
    }
}

/// Tokens that lacked ids at some time.
#[derive(Clone, Debug)]
pub struct Noted {
    pub handle: LateTokens,
    pub first: usize,
    pub ids: Vec<u32>,
    pub born: Vec<u64>,
}

/// A block that can be found.
#[derive(Clone, Debug)]
pub struct Entry {
    pub block: u32,
    pub values: Vec<u64>,
    /// Equal for duplicates that were there at the same time, and for blocks of other groups that end in one of them.
    pub content: u64,
    pub parent: u64,
    /// Its group, and which of several that end in one block of the first group.
    pub seat: (usize, usize),
}

#[derive(Clone, Debug)]
pub struct Grown {
    pub id: SeqId,
    pub tokens: u32,
    /// Of every group.
    pub sources: Vec<Option<u32>>,
    pub blocks_before: Vec<Vec<Option<u32>>>,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub grown: Vec<Grown>,
    pub named: Vec<SeqId>,
    pub known: bool,
    /// From the front of the queue, in this order.
    pub taken: Vec<u32>,
    pub copies: Vec<(u32, u32)>,
    pub registry_before: Vec<Entry>,
}

pub struct Model {
    pub layout: KvLayout,
    pub options: ManagerOptions,
    pub free: VecDeque<u32>,
    pub seqs: Vec<Seq>,
    /// In the order of the look-up.
    pub registry: Vec<Entry>,
    pub contents: u64,
    pub step: Option<Step>,
    pub queries: u64,
    pub hits: u64,
    pub evictions: u64,
    pub copies: u64,
    pub preemptions: u64,
    /// Tokens, and commits or imports, so far.
    pub births: u64,
}

impl Model {
    pub fn new(layout: KvLayout, options: ManagerOptions) -> Self {
        Self {
            free: (0..layout.num_blocks()).collect(),
            layout,
            options,
            seqs: Vec::new(),
            registry: Vec::new(),
            contents: 0,
            step: None,
            queries: 0,
            hits: 0,
            evictions: 0,
            copies: 0,
            preemptions: 0,
            births: 0,
        }
    }

    /// Tokens per block of the first group.
    pub fn block_size(&self) -> usize {
        self.size(0)
    }

    pub fn size(&self, group: usize) -> usize {
        self.layout.groups()[group].block_size() as usize
    }

    pub fn num_groups(&self) -> usize {
        self.layout.num_groups()
    }

    /// Columns of another group that end in a column of the first, each with its place among them.
    pub fn ending_in(&self, column: usize, group: usize) -> Vec<(usize, usize)> {
        let (size, own) = (self.block_size(), self.size(group));
        let ends = (column * size + 1..=(column + 1) * size).filter(|end| end.is_multiple_of(own));
        ends.enumerate().map(|(place, end)| (end / own - 1, place)).collect()
    }

    pub fn seq(&self, id: SeqId) -> Option<&Seq> {
        self.seqs.iter().find(|seq| seq.id == id)
    }

    pub fn seq_mut(&mut self, id: SeqId) -> &mut Seq {
        self.seqs.iter_mut().find(|seq| seq.id == id).expect("a living sequence")
    }

    pub fn in_step(&self, id: SeqId) -> bool {
        self.step.as_ref().is_some_and(|step| step.named.contains(&id))
    }

    /// Sequences and copies of the open step that hold on to a block.
    pub fn owners(&self, block: u32) -> usize {
        let tables = self.seqs.iter().filter(|seq| seq.has(block)).count();
        let sources =
            self.step.iter().flat_map(|step| &step.grown).filter(|grown| grown.sources.contains(&Some(block)));
        let sources = sources.count();
        tables + sources
    }

    pub fn is_registered(&self, block: u32) -> bool {
        self.registry.iter().any(|entry| entry.block == block)
    }

    pub fn evict(&mut self, block: u32) {
        self.registry.retain(|entry| entry.block != block);
    }

    /// Ends the registration of a block for good, whatever becomes of the open step.
    pub fn withdraw(&mut self, block: u32) {
        self.evict(block);
        if let Some(step) = &mut self.step {
            step.registry_before.retain(|entry| entry.block != block);
        }
    }

    pub fn free_unowned(&mut self, block: u32) {
        if self.owners(block) == 0 {
            self.free.push_back(block);
        }
    }

    /// Takes the blocks of a sequence away that its first `len` tokens do not need, those that end last first and those of the
    /// first group last; a contiguous one keeps `least`.
    pub fn cut_blocks(&mut self, id: SeqId, len: u32, least: usize) {
        let mut cut = Vec::new();
        for group in 0..self.num_groups() {
            let keep = (self.layout.groups()[group].blocks_for(len) as usize).max(least);
            let size = self.size(group);
            let blocks = &mut self.seq_mut(id).blocks[group];
            let gone = blocks.split_off(keep.min(blocks.len()));
            cut.extend((keep + 1..).zip(gone).map(|(columns, block)| (columns * size, group, block)));
        }
        cut.sort_unstable_by_key(|&(end, group, _)| std::cmp::Reverse((end, group)));
        cut.into_iter().filter_map(|(.., block)| block).for_each(|block| self.free_unowned(block));
    }

    /// Tells the newest `count` tokens of a sequence from all others. Where more commits than agreed wait for ids, the oldest
    /// is given up.
    pub fn bear(&mut self, id: SeqId, count: usize) {
        let (limit, commit) = (self.options.late_steps() as usize, self.births + 1);
        self.births += 1 + count as u64;
        let seq = self.seq_mut(id);
        let old = seq.born.len();
        seq.born.extend((1..=count as u64).map(|at| (commit + at, commit)));
        if seq.known > old {
            return;
        }
        let first = seq.known.max(seq.forgotten);
        let begins = |&at: &usize| at == first || seq.born[at].1 != seq.born[at - 1].1;
        let starts: Vec<usize> = (first..seq.born.len()).filter(begins).collect();
        if starts.len() > limit {
            seq.forgotten = if limit == 0 { seq.born.len() } else { starts[starts.len() - limit] };
        }
    }

    /// How many of these tokens are still there.
    pub fn left(&self, noted: &Noted) -> usize {
        let born = self.seq(noted.handle.seq()).map_or(&[][..], |seq| seq.born.get(noted.first..).unwrap_or(&[]));
        born.iter().zip(&noted.born).take_while(|(is, was)| is.0 == **was).count()
    }

    /// What telling `count` ids of these tokens should say.
    pub fn may_tell(&self, noted: &Noted, count: usize) -> Result<(), ManagerError> {
        let (seq, limit, given) = (noted.handle.seq(), self.options.late_steps(), count as u64);
        let state = self.seq(seq).ok_or(ManagerError::StaleSequence { seq })?;
        if count > noted.ids.len() {
            return Err(ManagerError::TokenIdCount { seq, given, expected: noted.ids.len() as u32 });
        }
        if noted.ids.is_empty() || !self.options.prefix_cache() {
            return Ok(());
        }
        let (position, known, left) = (noted.first as u32, state.known as u32, self.left(noted));
        if noted.first < state.known {
            return Err(ManagerError::TokenIdsTwice { seq, position, known });
        }
        if state.known < state.forgotten {
            return Err(ManagerError::LateTokenIds { seq, position: known, limit });
        }
        if count > left {
            return Err(ManagerError::TruncatedTokenIds { seq, position: position + left as u32 });
        }
        if count < left {
            return Err(ManagerError::TokenIdCount { seq, given, expected: left as u32 });
        }
        if count > 0 && noted.first > state.known {
            return Err(ManagerError::TokenIdsSkip { seq, position, known });
        }
        Ok(())
    }

    /// The blocks of every group that hold the start of a text, as far as all groups can go on from there: the leading ones of
    /// a window are not needed.
    pub fn find(&self, text: &[u32], domain: u8) -> Vec<Vec<Option<Entry>>> {
        let size = self.block_size();
        let (mut chain, mut before, mut parent) = (Vec::new(), u64::from(domain) << 32, 0);
        for tokens in
            text[..text.len().saturating_sub(1)].chunks_exact(size).take(self.layout.max_blocks_per_seq() as usize)
        {
            let mut values = Vec::new();
            for &token in tokens {
                before = value(before, token);
                values.push(before);
            }
            let Some(entry) = self.registry.iter().find(|entry| entry.values == values && entry.parent == parent)
            else {
                break;
            };
            parent = entry.content;
            chain.push(entry.clone());
        }
        let longest = (0..=chain.len()).rev().find_map(|columns| self.found_in_all(&chain[..columns]));
        longest.expect("nothing is found everywhere")
    }

    fn found_in_all(&self, chain: &[Entry]) -> Option<Vec<Vec<Option<Entry>>>> {
        let len = chain.len() * self.block_size();
        let mut found = vec![chain.iter().cloned().map(Some).collect()];
        for group in 1..self.num_groups() {
            if !len.is_multiple_of(self.size(group)) {
                return None;
            }
            let position = (len as u64).saturating_sub(self.options.window_slack().into());
            let mut blocks = Vec::new();
            for (at, reference) in chain.iter().enumerate() {
                for (column, place) in self.ending_in(at, group) {
                    let outside = self.is_outside(group, position, column);
                    let seat = |entry: &&Entry| entry.content == reference.content && entry.seat == (group, place);
                    let entry = self.registry.iter().find(seat).cloned().filter(|_| !outside);
                    if entry.is_none() && !outside {
                        return None;
                    }
                    blocks.push(entry);
                }
            }
            found.push(blocks);
        }
        Some(found)
    }

    /// Enters the full blocks of a sequence, as far as its tokens are known.
    pub fn register(&mut self, id: SeqId) {
        let size = self.block_size();
        if !self.options.prefix_cache() {
            return;
        }
        loop {
            let seq = self.seq(id).unwrap().clone();
            let column = seq.registered;
            if (column + 1) * size > seq.known {
                return;
            }
            let content_of = |block| self.registry.iter().find(|entry| entry.block == block).unwrap().content;
            let parent = match column {
                0 => 0,
                _ => match seq.blocks[0][column - 1] {
                    Some(before) => content_of(before),
                    None => return,
                },
            };
            // Released before its ids came.
            let Some(block) = seq.blocks[0][column] else {
                return;
            };
            let values = |at: usize, size: usize| seq.values[at * size..(at + 1) * size].to_vec();
            if !self.is_registered(block) {
                let values = values(column, size);
                let twin = self.registry.iter().find(|entry| entry.values == values && entry.parent == parent);
                let content = twin.map_or(self.contents + 1, |twin| twin.content);
                self.contents = self.contents.max(content);
                self.enter(Entry { block, values, content, parent, seat: (0, 0) });
            }
            let content = self.registry.iter().find(|entry| entry.block == block).unwrap().content;
            for group in 1..self.num_groups() {
                for (column, place) in self.ending_in(column, group) {
                    let Some(block) = seq.blocks[group][column].filter(|&block| !self.is_registered(block)) else {
                        continue;
                    };
                    let values = values(column, self.size(group));
                    self.enter(Entry { block, values, content, parent: u64::MAX, seat: (group, place) });
                }
            }
            self.seq_mut(id).registered += 1;
        }
    }

    /// Puts an entry behind the first of its twins.
    fn enter(&mut self, entry: Entry) {
        let twin = self.registry.iter().position(|known| (known.content, known.seat) == (entry.content, entry.seat));
        self.registry.insert(twin.map_or(0, |twin| twin + 1), entry);
    }

    /// Whether the query at `position`, and so all later ones, cannot see the block in `column`.
    pub fn is_outside(&self, group: usize, position: u64, column: usize) -> bool {
        let last_key = ((column + 1) * self.size(group) - 1) as u64;
        let window = self.layout.groups()[group].window().filter(|_| self.layout.paged());
        window.is_some_and(|window| position >= last_key && position - last_key >= window.into())
    }

    /// Takes the blocks away that the queries behind a sequence cannot see, even if it is cut by the slack.
    pub fn release_outside(&mut self, id: SeqId) {
        let position = u64::from(self.seq(id).unwrap().len().saturating_sub(self.options.window_slack()));
        for group in 0..self.num_groups() {
            for column in (0..self.seq(id).unwrap().blocks[group].len()).rev() {
                let outside = self.is_outside(group, position, column);
                if let Some(block) = self.seq_mut(id).blocks[group][column].take_if(|_| outside) {
                    self.free_unowned(block);
                }
            }
        }
    }
}
