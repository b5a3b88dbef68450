//! What a prefix cache could find at best.

use crate::trace::{Request, found_tokens};

/// Prompt tokens that a cache would find that forgets nothing and computes every prompt the moment it arrives, and all
/// prompt tokens. At least one token of a prompt is always left to compute.
pub fn infinite_hits<'a>(requests: impl IntoIterator<Item = &'a Request>, tokens_per_id: u32) -> (u64, u64) {
    found_tokens(requests, tokens_per_id).fold((0, 0), |(hits, all), (request, found)| {
        // A model starts from one token at least.
        (hits + found, all + u64::from(request.prompt_tokens.max(1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::PrefixIds;

    #[test]
    fn only_leading_ids_are_found() {
        let request = |prompt_tokens, ids: &[u64]| {
            let prefix = PrefixIds::new(ids.iter().map(|&id| id..=id));
            Request { prompt_tokens, prefix, ..Request::default() }
        };
        let log = [
            request(10, &[1, 2]),
            request(12, &[1, 2, 3]), // 8 found
            request(12, &[9, 2, 3]), // none
            request(12, &[2, 1, 3]), // none: known, but no prompt began with 2
            request(12, &[1, 2, 3]), // all but one token
            request(5, &[]),
        ];
        assert_eq!(infinite_hits(&log, 4), (8 + 11, 63));
        assert_eq!(infinite_hits(&[], 4), (0, 0));
    }
}
