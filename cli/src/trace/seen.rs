//! What the prompts of a log began with so far.

use std::collections::HashMap;

use super::{PrefixIds, Request};

/// The prompts that were seen, to tell how far another one begins like any of them.
/// A tree whose edges are ranges of ids: its memory follows the ranges that a log has, for a few bytes of it may name
/// billions of ids.
#[derive(Debug, Default)]
struct SeenPrefixes {
    /// By the node it leaves and its first id: its last id, and the node it leads to. The root is node 0.
    edges: HashMap<(u32, u64), (u64, u32)>,
    nodes: u32,
}

impl SeenPrefixes {
    /// Adds a prompt. Returns how many of its first ids are those with which an earlier one began; saturates.
    fn add(&mut self, prefix: &PrefixIds) -> u64 {
        let (mut node, mut found) = (0, 0_u64);
        for (first, last) in prefix.ranges() {
            let mut rest = Some(first);
            while let Some(first) = rest {
                // Behind a new node there is nothing: from there on nothing is found.
                let Some(&(end, child)) = self.edges.get(&(node, first)) else {
                    node = self.grow((node, first), last);
                    break;
                };
                let common = end.min(last);
                found = found.saturating_add(common - first).saturating_add(1);
                node = if common < end { self.split((node, first), common) } else { child };
                rest = (common < last).then(|| common + 1);
            }
        }
        found
    }

    fn grow(&mut self, from: (u32, u64), last: u64) -> u32 {
        // Each range of a log makes two nodes at most, and logs of 2^25 ranges are the largest.
        self.nodes += 1;
        self.edges.insert(from, (last, self.nodes));
        self.nodes
    }

    /// Cuts an edge behind the id `last`, and returns the node in between.
    fn split(&mut self, from: (u32, u64), last: u64) -> u32 {
        let rest = self.edges.get(&from).copied();
        let node = self.grow(from, last);
        if let Some(rest) = rest {
            self.edges.insert((node, last + 1), rest);
        }
        node
    }
}

/// Each request with the tokens of its prompt that a cache finds which forgets nothing and computes every prompt the moment
/// it arrives. At least one token is always left to compute.
pub(crate) fn found_tokens<'a>(
    requests: impl IntoIterator<Item = &'a Request>,
    tokens_per_id: u32,
) -> impl Iterator<Item = (&'a Request, u64)> {
    let mut seen = SeenPrefixes::default();
    requests.into_iter().map(move |request| {
        let most = u64::from(request.prompt_tokens.saturating_sub(1));
        (request, seen.add(&request.prefix).saturating_mul(tokens_per_id.into()).min(most))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_beginning_is_found() {
        let mut seen = SeenPrefixes::default();
        let mut found = |ids: &[u64]| seen.add(&PrefixIds::new(ids.iter().map(|&id| id..=id)));
        assert_eq!(found(&[1, 2, 3, 9]), 0);
        assert_eq!(found(&[2, 3]), 0, "known, but not as a beginning");
        assert_eq!(found(&[1, 3, 2]), 1);
        assert_eq!(found(&[1, 2, 9]), 2);
        assert_eq!(found(&[1, 2, 3, 4, 5]), 3);
        assert_eq!(found(&[1, 2, 3, 4, 9]), 4);
        assert_eq!(found(&[1, 2, 3, 9, 9]), 4);
        assert_eq!(found(&[1, 2, 3, 9, 9]), 5);
        assert_eq!(found(&[]), 0);
    }

    #[test]
    fn ranges_are_as_their_ids_one_by_one() {
        // Every prompt of up to two ranges over few ids, against a list of all beginnings.
        let ranges = || (0..4_u64).flat_map(|first| (first..4).map(move |last| first..=last));
        let prompts = ranges().flat_map(|a| ranges().map(move |b| PrefixIds::new([a.clone(), b])));
        let (mut seen, mut beginnings) = (SeenPrefixes::default(), std::collections::HashSet::new());
        for prompt in prompts {
            let ids: Vec<u64> = prompt.iter().collect();
            let expected = (1..=ids.len()).take_while(|&len| beginnings.contains(&ids[..len])).count();
            assert_eq!(seen.add(&prompt), expected as u64, "{ids:?}");
            beginnings.extend((1..=ids.len()).map(|len| ids[..len].to_vec()));
        }
    }

    #[test]
    fn billions_of_ids_take_no_memory() {
        let mut seen = SeenPrefixes::default();
        assert_eq!(seen.add(&PrefixIds::new([0..=u64::MAX])), 0);
        assert_eq!(seen.add(&PrefixIds::new([0..=1 << 40, 7..=7])), (1 << 40) + 1);
        assert_eq!(seen.add(&PrefixIds::new([0..=u64::MAX])), u64::MAX);
        assert!(seen.edges.len() <= 4, "{seen:?}");
    }
}
