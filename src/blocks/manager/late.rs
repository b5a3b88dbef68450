//! Tokens whose ids come after their commit, because they were sampled while later steps were planned or ran.

use std::ops::Range;

use crate::blocks::manager::Sequence;
use crate::blocks::{CacheManager, SeqId};
use crate::error::ManagerError;

/// Committed tokens of a sequence whose ids are told later, by [`CacheManager::add_token_ids`]; taken by
/// [`CacheManager::take_late_tokens`].
///
/// Keep it beside the read-back that brings the ids. It stands for these very tokens: once they are cut off, their ids are
/// refused, also if others came in their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateTokens {
    seq: SeqId,
    first: u32,
    count: u32,
    /// The steps that had been reserved when it was taken.
    step: u64,
}

impl LateTokens {
    /// The sequence.
    pub fn seq(&self) -> SeqId {
        self.seq
    }

    /// Their positions in the sequence.
    pub fn positions(&self) -> Range<u32> {
        self.first..self.first + self.count
    }
}

/// The tokens of one step, from `start` to the start of the next run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    start: u32,
    step: u64,
}

/// The steps whose tokens still lack ids, of every sequence; those that are forgotten are late for good.
#[derive(Debug)]
pub(super) struct LateRuns {
    /// `[rows, steps]`; those of a row form a ring.
    runs: Vec<Run>,
    /// (first, number) of every row's runs, oldest first.
    rings: Vec<(u32, u32)>,
    steps: u32,
}

impl LateRuns {
    /// Room for `steps` steps of every row, or the bytes that there was no memory for.
    pub(super) fn new(rows: u32, steps: u32) -> Result<Self, u64> {
        let len = rows as usize * steps as usize;
        let (mut runs, mut rings) = (Vec::new(), Vec::new());
        runs.try_reserve_exact(len)
            .and_then(|()| rings.try_reserve_exact(rows as usize))
            .map_err(|_| (len * size_of::<Run>() + rows as usize * size_of::<(u32, u32)>()) as u64)?;
        runs.resize(len, Run::default());
        rings.resize(rows as usize, (0, 0));
        Ok(Self { runs, rings, steps })
    }

    fn place(&self, row: u32, at: u32) -> usize {
        let first = self.rings[row as usize].0;
        row as usize * self.steps as usize + ((first + at) % self.steps) as usize
    }

    fn of(&self, row: u32) -> impl Iterator<Item = Run> + '_ {
        (0..self.rings[row as usize].1).map(move |at| self.runs[self.place(row, at)])
    }

    pub(super) fn clear(&mut self, row: u32) {
        self.rings[row as usize] = (0, 0);
    }

    pub(super) fn copy(&mut self, from: u32, to: u32) {
        let (from, to, steps) = (from as usize, to as usize, self.steps as usize);
        self.runs.copy_within(from * steps..(from + 1) * steps, to * steps);
        self.rings[to] = self.rings[from];
    }

    /// The tokens from `start` on were committed by `step`, without ids. Where there is no room the oldest step is forgotten.
    pub(super) fn push(&mut self, row: u32, start: u32, step: u64) {
        if self.steps == 0 {
            return;
        }
        if self.rings[row as usize].1 == self.steps {
            self.drop_first(row);
        }
        let place = self.place(row, self.rings[row as usize].1);
        self.runs[place] = Run { start, step };
        self.rings[row as usize].1 += 1;
    }

    /// Whether the runs of a row follow each other below `len`.
    pub(super) fn in_order(&self, row: u32, len: u32) -> bool {
        let ends = self.of(row).skip(1).chain([Run { start: len, step: u64::MAX }]);
        self.of(row).zip(ends).all(|(run, next)| run.start < next.start && run.step < next.step)
    }

    fn drop_first(&mut self, row: u32) {
        let ring = &mut self.rings[row as usize];
        *ring = ((ring.0 + 1) % self.steps, ring.1 - 1);
    }

    /// Only `len` tokens are left.
    pub(super) fn cut(&mut self, row: u32, len: u32) {
        while let Some(last) = self.rings[row as usize].1.checked_sub(1)
            && self.runs[self.place(row, last)].start >= len
        {
            self.rings[row as usize].1 = last;
        }
    }

    /// The first `known` of `len` tokens have their ids.
    fn settle(&mut self, row: u32, known: u32, len: u32) {
        while let Some(next) =
            (self.rings[row as usize].1 > 0).then(|| self.of(row).nth(1).map_or(len, |run| run.start))
            && next <= known
        {
            self.drop_first(row);
        }
    }
}

impl CacheManager {
    /// Takes the tokens of a sequence that were committed without ids and that no earlier call took; none if there are none.
    /// [`add_token_ids`](Self::add_token_ids) tells their ids.
    ///
    /// Take them as soon as the steps are committed whose ids one read-back brings, before the next step is committed or the
    /// sequence is cut: then each read-back has its own tokens. Tokens are taken once. Those whose handle is lost stay without
    /// ids, and so do all behind them, until they are [cut off](Self::truncate); a [fork](Self::fork) takes its own.
    pub fn take_late_tokens(&mut self, seq: SeqId) -> Result<LateTokens, ManagerError> {
        let &Sequence { known, taken, len, .. } = self.live(seq)?;
        let first = known.max(taken);
        self.sequences[seq.index() as usize].taken = len;
        Ok(LateTokens { seq, first, count: len - first, step: self.step.number })
    }

    /// Gives the ids of `tokens`, after their steps were committed: one for each, in the order in which the tokens of the
    /// sequence were taken. K and V need none, and drafts are best given theirs once they are verified.
    ///
    /// Of tokens that were [cut off](Self::truncate) since, rejected drafts or what came behind the end of a text, no ids are
    /// given: one for each that is left.
    ///
    /// Blocks that are full and known can be found from now on; while a step is open, from their sequence's next commit.
    /// Sequences that share tokens must give them the same ids. Without a prefix cache ids are of no use and not looked at.
    ///
    /// # Steps in flight
    ///
    /// Each read-back has its tokens, taken when its steps are committed, whether it brings the ids of one step or of several.
    /// The host may be any number of read-backs behind, as far as [`late_steps`](crate::blocks::ManagerOptions::late_steps)
    /// reaches:
    ///
    /// ```
    /// # use std::collections::VecDeque;
    /// # use wgpu_paged_attention::{blocks::{CacheManager, Domain, ManagerOptions}, config::CacheConfig};
    /// # use wgpu_paged_attention::{error::ManagerError, plan::{Schedule, StepPlan}};
    /// # let layout = CacheConfig::new(1, 2, 64).with_num_blocks(8).with_block_size(2).layout()?;
    /// # let options = ManagerOptions::default().with_prefix_cache(true);
    /// # let (mut manager, mut plan) = (CacheManager::with_options(&layout, &options)?, StepPlan::new(Schedule::default()));
    /// # let (seq, _) = manager.create_sequence_with_tokens(&[7], &Domain::default())?;
    /// # let words = [7, 8, 9, 1, 5, 5, 5, 5];
    /// // A step in each submit; its id comes while the next step runs.
    /// let mut in_flight = VecDeque::new();
    /// for _ in 0..2 {
    ///     manager.reserve(&[(seq, 1)], &mut plan)?; // the token is sampled by the step before it
    ///     manager.commit(&mut plan)?;
    ///     in_flight.push_back(manager.take_late_tokens(seq)?);
    ///     if in_flight.len() == 2 {
    ///         let tokens = in_flight.pop_front().unwrap();
    ///         manager.add_token_ids(tokens, &words[..1])?; // what its read-back says
    ///     }
    /// }
    /// let second = in_flight.pop_front().unwrap();
    /// assert_eq!(second.positions(), 1..2);
    ///
    /// // Four steps in one submit, and one read-back for them.
    /// for _ in 0..4 {
    ///     manager.reserve(&[(seq, 1)], &mut plan)?;
    ///     manager.commit(&mut plan)?;
    /// }
    /// let four = manager.take_late_tokens(seq)?;
    /// assert_eq!(four.positions(), 2..6);
    /// let error = manager.add_token_ids(four, &words[2..6]);
    /// assert_eq!(error, Err(ManagerError::TokenIdsSkip { seq, position: 2, known: 1 }));
    /// manager.add_token_ids(second, &words[1..2])?;
    /// // The ids arrive, and the second of the four tokens ended the text.
    /// manager.truncate(seq, 4)?;
    /// manager.add_token_ids(four, &words[2..4])?;
    /// assert_eq!(manager.cached_tokens(&words, &Domain::default()), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ManagerError::TokenIdCount`] for fewer or more ids than tokens, [`ManagerError::TruncatedTokenIds`] for ids of tokens
    /// that were cut off, [`ManagerError::TokenIdsSkip`] where tokens taken before them have no ids yet,
    /// [`ManagerError::TokenIdsTwice`], [`ManagerError::LateTokenIds`] for a step further back than
    /// [`late_steps`](crate::blocks::ManagerOptions::late_steps), or [`ManagerError::OtherTokenId`] where a shared cached block
    /// has other ids. The same tokens may then be told again.
    pub fn add_token_ids(&mut self, tokens: LateTokens, ids: &[u32]) -> Result<(), ManagerError> {
        let state = *self.live(tokens.seq)?;
        self.check_late(&state, &tokens, ids.len() as u64)?;
        self.take_ids(tokens.seq, &state, ids)?;
        let row = tokens.seq.index();
        let Sequence { known, len, .. } = self.sequences[row as usize];
        if let Some(late) = &mut self.late {
            late.settle(row, known, len);
        }
        Ok(())
    }

    /// Whether `given` ids are those of the next tokens that wait, which are not too old, and one for each that is still there.
    fn check_late(&self, state: &Sequence, tokens: &LateTokens, given: u64) -> Result<(), ManagerError> {
        let &LateTokens { seq, first, count, step } = tokens;
        if given > count.into() {
            return Err(ManagerError::TokenIdCount { seq, given, expected: count });
        }
        let Some(late) = self.late.as_ref().filter(|_| count > 0) else { return Ok(()) };
        if first < state.known {
            return Err(ManagerError::TokenIdsTwice { seq, position: first, known: state.known });
        }
        let forgotten = late.of(seq.index()).next().is_none_or(|run| run.start > state.known);
        if state.known < state.len && forgotten {
            return Err(ManagerError::LateTokenIds { seq, position: state.known, limit: late.steps });
        }
        let end = first + count;
        let replaced = late.of(seq.index()).find(|run| run.step > step).map(|run| run.start);
        let kept = replaced.unwrap_or(state.len).clamp(first, end);
        let expected = kept - first;
        if given > expected.into() {
            return Err(ManagerError::TruncatedTokenIds { seq, position: kept });
        }
        if given < expected.into() {
            return Err(ManagerError::TokenIdCount { seq, given, expected });
        }
        if expected > 0 && first > state.known {
            return Err(ManagerError::TokenIdsSkip { seq, position: first, known: state.known });
        }
        Ok(())
    }
}
