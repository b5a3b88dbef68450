//! Who has to give way when blocks run out.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::blocks::{BlockId, CacheManager, SeqId};
use crate::error::{ManagerError, PreemptError};

/// How important a sequence is: first its priority counts, then who came first. The greatest is served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Set by the engine; 0 at first.
    pub priority: i32,
    /// Counts the sequences of a manager.
    pub arrival: u64,
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.priority, other.arrival).cmp(&(other.priority, self.arrival))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// What becomes of a preempted sequence's K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptMethod {
    /// They are dropped; when it is its turn again its tokens are computed anew, as far as they are not cached.
    Recompute,
    /// They are copied to the host first, and back later.
    Swap,
}

/// A sequence to preempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The sequence.
    pub seq: SeqId,
    /// Blocks that become free, given that the victims before it are preempted as well.
    pub blocks: u32,
    /// What to do with what it holds.
    pub method: PreemptMethod,
}

/// Owners among the chosen sequences, for every block of theirs.
type Owners = HashMap<BlockId, u32>;

impl CacheManager {
    /// The rank of a sequence.
    pub fn rank(&self, seq: SeqId) -> Result<Rank, ManagerError> {
        Ok(self.live(seq)?.rank)
    }

    /// Sets the rank of a sequence: its priority, or the one it had before it was preempted.
    pub fn set_rank(&mut self, seq: SeqId, rank: Rank) -> Result<(), ManagerError> {
        self.live(seq)?;
        self.sequences[seq.index() as usize].rank = rank;
        Ok(())
    }

    /// The sequences to preempt so that `missing` more blocks are free, as
    /// [`ReserveError::missing_blocks`](crate::error::ReserveError::missing_blocks) counts them.
    ///
    /// The lowest rank goes first: the lowest priority, and of equal ones the last to come. Only sequences that rank below
    /// `beneficiary`, which is to have the blocks, are taken; without one, any is. Sequences of an open step are not
    /// touched. A sequence whose blocks all have other owners frees none by itself; it is a victim only together with
    /// these, and none is returned without which there would be enough.
    ///
    /// Nothing is done yet: [`preempt`](Self::preempt) the victims in this order. Three rules keep an engine going:
    ///
    /// * The step of the running sequences comes first, and is tried again at once after a preemption. An engine that
    ///   admits before each try takes the victim back in, and preempts it again, for ever.
    /// * A sequence that comes back gets its old rank. So the highest of all is never pushed out: it finishes, and then
    ///   the next is the highest.
    /// * Newcomers leave some [headroom](Self::can_admit), about a block for each running sequence and none if none runs;
    ///   without it the next step preempts them.
    ///
    /// ```
    /// # use std::{cmp::Reverse, collections::VecDeque};
    /// # use wgpu_paged_attention::blocks::{CacheManager, Domain};
    /// # use wgpu_paged_attention::{config::CacheConfig, plan::{Schedule, StepPlan}};
    /// # let layout = CacheConfig::new(1, 1, 8).with_num_blocks(9).with_max_seq_len(128).layout()?;
    /// # let (mut manager, mut plan) = (CacheManager::new(&layout)?, StepPlan::new(Schedule::default()));
    /// // Texts that wait, with their ranks if they ran before, and those that run, the highest rank first.
    /// let mut waiting: VecDeque<_> = (0..6).map(|word| (vec![word; 20], None)).collect();
    /// let mut running: Vec<(_, Vec<u32>)> = Vec::new();
    /// while !(waiting.is_empty() && running.is_empty()) {
    ///     loop {
    ///         let new: Vec<_> = running
    ///             .iter()
    ///             .map(|(seq, text)| Ok((*seq, &text[manager.seq_len(*seq)? as usize..])))
    ///             .collect::<Result<_, wgpu_paged_attention::error::ManagerError>>()?;
    ///         let Err(error) = manager.reserve_tokens(&new, &mut plan) else { break };
    ///         let missing = error.missing_blocks().ok_or(error)?;
    ///         for victim in manager.victims(missing, Some(running[0].0))? {
    ///             let rank = manager.preempt(victim.seq)?;
    ///             let place = running.iter().position(|(seq, _)| *seq == victim.seq).unwrap();
    ///             waiting.push_front((running.remove(place).1, Some(rank)));
    ///         }
    ///     }
    ///     // Record and submit the plan here.
    ///     manager.commit(&mut plan)?;
    ///     running.iter_mut().for_each(|(_, text)| text.push(0));
    ///     for (seq, _) in running.extract_if(.., |(_, text)| text.len() == 60) {
    ///         manager.release(seq)?;
    ///     }
    ///     // One at a time, since its blocks are taken by the next step only.
    ///     let headroom = running.len() as u32;
    ///     if let Some((text, rank)) = waiting.pop_front_if(|(text, _)| manager.can_admit(text, &Domain::default(), headroom)) {
    ///         let (seq, _) = manager.create_sequence_with_tokens(&text, &Domain::default())?;
    ///         rank.map_or(Ok(()), |rank| manager.set_rank(seq, rank))?;
    ///         running.push((seq, text));
    ///         running.sort_by_key(|(seq, _)| Reverse(manager.rank(*seq).unwrap()));
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`PreemptError::StaleSequence`], or [`PreemptError::NotEnough`] if all of lower rank together would not do.
    pub fn victims(&self, missing: u64, beneficiary: Option<SeqId>) -> Result<Vec<Victim>, PreemptError> {
        let limit = match beneficiary {
            Some(seq) => Some(self.sequence(seq).ok_or(PreemptError::StaleSequence { seq })?.rank),
            None => None,
        };
        let mut candidates: Vec<(Rank, u32)> = (0..)
            .zip(&self.sequences)
            .filter(|(_, state)| state.live && !(self.step.is_open() && state.step == self.step.number))
            .filter(|(_, state)| limit.is_none_or(|limit| state.rank < limit))
            .map(|(row, state)| (state.rank, row))
            .collect();
        candidates.sort_unstable();

        let (mut owners, mut freed, mut chosen) = (Owners::new(), 0, Vec::new());
        for &(_, row) in &candidates {
            if freed >= missing {
                break;
            }
            freed += u64::from(self.count_victim(&mut owners, row, true));
            chosen.push(row);
        }
        if freed < missing {
            return Err(PreemptError::NotEnough { missing, reclaimable: freed });
        }
        // The highest ranks are spared first.
        for at in (0..chosen.len()).rev() {
            let lost = u64::from(self.count_victim(&mut owners, chosen[at], false));
            if freed - lost >= missing {
                freed -= lost;
                chosen.remove(at);
            } else {
                self.count_victim(&mut owners, chosen[at], true);
            }
        }
        owners.clear();
        Ok(chosen.iter().map(|&row| self.victim(row, self.count_victim(&mut owners, row, true))).collect())
    }

    /// Releases a sequence that gives way, and counts it as such. Returns the rank it should have when it comes back.
    pub fn preempt(&mut self, seq: SeqId) -> Result<Rank, ManagerError> {
        let rank = self.live(seq)?.rank;
        self.release(seq)?;
        tracing::debug!(%seq, "preempted");
        self.tally.preemptions += 1;
        Ok(rank)
    }

    fn victim(&self, row: u32, blocks: u32) -> Victim {
        let state = &self.sequences[row as usize];
        let method = match self.swap_from_tokens {
            Some(least) if state.len >= least => PreemptMethod::Swap,
            _ => PreemptMethod::Recompute,
        };
        Victim { seq: self.handle(row), blocks, method }
    }

    fn owned(&self, row: u32) -> impl Iterator<Item = BlockId> + '_ {
        self.groups.iter().flat_map(move |group| group.owned(row).iter().copied())
    }

    /// Counts a sequence among those that give way, or no longer. Returns how many blocks more, or fewer, become free.
    fn count_victim(&self, owners: &mut Owners, row: u32, gives_way: bool) -> u32 {
        let mut changed = 0;
        for block in self.owned(row) {
            let count = owners.entry(block).or_default();
            *count += u32::from(gives_way);
            changed += u32::from(self.store.owners(block) == *count);
            *count -= u32::from(!gives_way);
        }
        changed
    }
}
