//! Which splits of a tile its queries see: a plan serves layers with a window and without, so this is asked per layer.

use std::ops::Range;

/// Queries of a step that share a run of splits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reach {
    /// Positions of the first query and of the last.
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// Keys of the run.
    pub(crate) key_begin: u32,
    pub(crate) key_end: u32,
    pub(crate) split_tokens: u32,
}

impl Reach {
    /// The keys between the first that a query sees and the last, as `visible_keys` in `common/visible.wgsl`.
    pub(crate) fn seen(&self, causal: bool, window: Option<u32>) -> Range<u32> {
        let within = |key: i64| key.clamp(self.key_begin.into(), self.key_end.into()) as u32;
        let begin = window.map_or(self.key_begin, |window| within(self.first + 1 - i64::from(window)));
        let end = if causal { within(self.last + 1) } else { self.key_end };
        begin.min(end)..end
    }

    /// The splits between the first of which a query sees a key and the last.
    pub(crate) fn splits(&self, causal: bool, window: Option<u32>) -> u32 {
        let seen = self.seen(causal, window);
        if seen.is_empty() { 0 } else { (seen.end - 1) / self.split_tokens - seen.start / self.split_tokens + 1 }
    }

    /// Whether every query sees one split alone, whose result is then its own; as `sees_one_split` in
    /// `common/visible.wgsl`.
    pub(crate) fn is_one_split(&self, causal: bool, window: Option<u32>) -> bool {
        causal && self.first >= 0 && self.splits(causal, window) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(first: i64, last: i64, keys: Range<u32>, split_tokens: u32) -> Reach {
        Reach { first, last, key_begin: keys.start, key_end: keys.end, split_tokens }
    }

    #[test]
    fn x07_a_window_inside_one_split_is_one_split_however_long_the_sequence() {
        for len in [1024, 2048, 32_768] {
            let last = i64::from(len) - 1;
            let row = reach(last, last, 0..len, 1024);
            assert_eq!((row.splits(true, Some(512)), row.is_one_split(true, Some(512))), (1, true), "{len}");
            assert_eq!(row.seen(true, Some(512)), len - 512..len);
        }
        // 100 keys of the next split, 412 of the one before.
        let row = reach(32_867, 32_867, 0..32_868, 1024);
        assert_eq!((row.splits(true, Some(512)), row.is_one_split(true, Some(512))), (2, false));
        assert_eq!((row.splits(true, Some(100)), row.is_one_split(true, Some(100))), (1, true));
        // Without a window the first rows of a prompt see one split.
        assert!(reach(0, 15, 0..2000, 1024).is_one_split(true, None));
        assert!(!reach(1020, 1035, 0..2000, 1024).is_one_split(true, None));
    }

    #[test]
    fn splits_are_those_between_the_first_and_the_last_key_that_a_query_sees() {
        for (begin, end) in [(0, 40), (16, 40), (0, 16), (0, 0)] {
            for (first, last) in [(-3, 2), (0, 0), (5, 8), (12, 39), (39, 39)] {
                for (causal, window) in
                    [(true, None), (true, Some(1)), (true, Some(9)), (false, None), (false, Some(9))]
                {
                    let row = reach(first, last, begin..end, 8);
                    let sees = |query: i64, key: i64| {
                        (!causal || key <= query) && window.is_none_or(|window| query - key < i64::from(window))
                    };
                    let seen = (begin..end).filter(|&key| (first..=last).any(|query| sees(query, key.into())));
                    let splits: Vec<u32> = seen.map(|key| key / 8).collect();
                    let want = splits.first().map_or(0, |split| splits[splits.len() - 1] - split + 1);
                    assert_eq!(row.splits(causal, window), want, "{row:?} {causal} {window:?}");
                    let one = |query: i64| {
                        let splits = (0..end.into()).filter(|&key| sees(query, key)).map(|key| key / 8);
                        query >= 0 && causal && splits.collect::<std::collections::BTreeSet<_>>().len() == 1
                    };
                    if begin == 0 && last < end.into() && row.is_one_split(causal, window) {
                        assert!((first..=last).all(one), "{row:?} {causal} {window:?}");
                    }
                }
            }
        }
    }
}
