//! How much of the prompts a prefix cache finds, by block size.

use crate::trace::{Request, found_tokens};

/// Of each block size, the share of prompt tokens that a cache finds which forgets nothing; `None` without prompts.
/// Found are the leading ids that an earlier prompt had, in whole blocks, and never a whole prompt: at least one token is
/// left to compute.
pub(super) fn hit_shares<'a>(
    requests: impl IntoIterator<Item = &'a Request>,
    tokens_per_id: u32,
    block_sizes: &[u32],
) -> Option<Vec<f64>> {
    let mut hits = vec![0_u64; block_sizes.len()];
    let mut all = 0_u64;
    for (request, found) in found_tokens(requests, tokens_per_id) {
        for (hits, &block_size) in hits.iter_mut().zip(block_sizes) {
            *hits += found / u64::from(block_size) * u64::from(block_size);
        }
        all += u64::from(request.prompt_tokens);
    }
    (all > 0).then(|| hits.into_iter().map(|hits| hits as f64 / all as f64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::PrefixIds;

    #[test]
    fn prefixes_are_found_in_whole_blocks() {
        let request = |prompt_tokens, ids: &[u64]| Request {
            prompt_tokens,
            prefix: PrefixIds::new(ids.iter().map(|&id| id..=id)),
            ..Request::default()
        };
        // Ids of 8 tokens. The second prompt begins with 24 known ones, the third, equal to it, leaves one of 32 to compute,
        // the fourth begins with none.
        let log =
            [request(24, &[1, 2, 3]), request(32, &[1, 2, 3, 4]), request(32, &[1, 2, 3, 4]), request(12, &[9, 2])];
        let shares = hit_shares(&log, 8, &[1, 8, 16, 32]).unwrap();
        assert_eq!(shares, [24 + 31, 24 + 24, 16 + 16, 0].map(|hits| f64::from(hits) / 100.0));
        assert_eq!(hit_shares(&[], 8, &[16]), None);
    }
}
