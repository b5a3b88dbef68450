//! A request in service.

use wgpu_paged_attention::blocks::{Rank, SeqId};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InService {
    /// Its place in the log.
    pub(super) number: usize,
    /// Nanoseconds since the first arrival of the log, as all times here.
    pub(super) arrival_ns: u64,
    pub(super) admitted_ns: u64,
    pub(super) prompt_tokens: u32,
    /// Tokens to generate, cut so that the sequence fits.
    pub(super) output_tokens: u32,
    pub(super) generated: u32,
    pub(super) last_token_ns: u64,
    pub(super) first_token_ns: u64,
    pub(super) seq: Option<SeqId>,
    pub(super) len: u32,
    /// The rank of its first sequence, which it keeps.
    pub(super) rank: Option<Rank>,
    /// The most tokens of it that have been in the cache.
    pub(super) computed: u32,
}

impl InService {
    pub(super) fn wanted(&self) -> u32 {
        self.prompt_tokens + self.generated
    }

    pub(super) fn missing(&self) -> u32 {
        self.wanted() - self.len
    }

    /// Whether all but the token generated last is in the cache.
    pub(super) fn is_decoding(&self) -> bool {
        self.generated > 0 && self.missing() == 1
    }

    pub(super) fn is_finished(&self) -> bool {
        self.generated == self.output_tokens
    }
}
