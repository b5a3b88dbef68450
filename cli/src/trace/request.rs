//! One request of a log.

use std::ops::RangeInclusive;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Request {
    /// Nanoseconds since the first request of the log; never decreasing within one.
    pub arrival_ns: u64,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    pub prefix: PrefixIds,
}

impl Request {
    pub fn tokens(&self) -> u64 {
        u64::from(self.prompt_tokens) + u64::from(self.output_tokens)
    }
}

/// The ids of a prompt's blocks: equal ids at the start of two prompts are equal tokens.
/// Kept as ranges, since prompts of 100,000 tokens are common and their ids mostly consecutive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrefixIds(
    /// First and last, never descending, and joined where one range goes on where the last one ended.
    Box<[(u64, u64)]>,
);

impl PrefixIds {
    pub fn new(ranges: impl IntoIterator<Item = RangeInclusive<u64>>) -> Self {
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            let (first, last) = range.into_inner();
            match joined.last_mut() {
                Some((_, end)) if end.checked_add(1) == Some(first) => *end = last,
                _ => joined.push((first, last)),
            }
        }
        Self(joined.into())
    }

    pub fn len(&self) -> u64 {
        self.0.iter().fold(0, |len: u64, (first, last)| len.saturating_add((last - first).saturating_add(1)))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|&(first, last)| first..=last)
    }

    pub(super) fn ranges(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }
}
