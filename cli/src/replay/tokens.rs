//! Token ids for logs that have none.

use crate::trace::Request;

/// Makes up the tokens of requests: equal where the log says that prompts begin alike, different everywhere else.
/// Logs give an id per so many tokens of a prompt. Each id becomes as many token ids; what is behind the last id, and
/// the answer, belong to the request alone.
#[derive(Clone, Copy, Debug)]
pub struct Tokens {
    tokens_per_id: u32,
}

impl Tokens {
    pub fn new(tokens_per_id: Option<u32>) -> Self {
        Self { tokens_per_id: tokens_per_id.unwrap_or(1).max(1) }
    }

    /// The tokens of a request from position `first` on, `count` of them, added to `out`; `number` is that of the
    /// request.
    pub fn extend(&self, out: &mut Vec<u32>, number: u64, request: &Request, first: u32, count: u32) {
        let (mut position, end) = (first, first.saturating_add(count));
        // An answer has none; there may be many to skip on the way to it.
        let prompt_end = if request.prefix.is_empty() { 0 } else { end.min(request.prompt_tokens) };
        let skipped = if first < prompt_end { first / self.tokens_per_id } else { 0 };
        for id in request.prefix.iter().skip(skipped as usize) {
            let block_end = (position / self.tokens_per_id + 1).saturating_mul(self.tokens_per_id);
            let until = prompt_end.min(block_end);
            if position >= until {
                break;
            }
            out.extend((position..until).map(|position| token(id, SHARED, position)));
            position = until;
        }
        out.extend((position..end).map(|position| token(number, OWN, position)));
    }
}

const SHARED: u64 = 0x9e37_79b9_7f4a_7c15;
const OWN: u64 = 0xd1b5_4a32_d192_ed03;

/// Spreads an id over 32 bits (the finaliser of SplitMix64). Two tokens may be equal by chance; whole blocks are not.
fn token(id: u64, kind: u64, position: u32) -> u32 {
    let mut bits = id.wrapping_mul(kind).wrapping_add(kind ^ u64::from(position));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits ^ (bits >> 31)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::PrefixIds;

    fn tokens(request: &Request, number: u64, first: u32, count: u32) -> Vec<u32> {
        let mut out = Vec::new();
        Tokens::new(Some(4)).extend(&mut out, number, request, first, count);
        out
    }

    fn request(prompt_tokens: u32, ids: Vec<u64>) -> Request {
        let prefix = PrefixIds::new(ids.into_iter().map(|id| id..=id));
        Request { prompt_tokens, output_tokens: 5, prefix, ..Request::default() }
    }

    #[test]
    fn equal_ids_make_equal_tokens_and_nothing_else_does() {
        let (a, b) = (request(10, vec![7, 8]), request(12, vec![7, 9, 10]));
        let (of_a, of_b) = (tokens(&a, 0, 0, 15), tokens(&b, 1, 0, 15));
        assert_eq!(of_a[..4], of_b[..4]);
        for position in 4..15 {
            assert_ne!(of_a[position], of_b[position], "{position}");
        }
        // A partly filled last block is shared as far as it goes.
        let (c, d) = (request(6, vec![7, 8]), request(8, vec![7, 8]));
        assert_eq!(tokens(&c, 2, 0, 6), tokens(&d, 3, 0, 6));
        assert_ne!(tokens(&c, 2, 6, 1), tokens(&d, 3, 6, 1));
    }

    #[test]
    fn pieces_make_up_the_whole() {
        let request = request(11, vec![1, 2, 3]);
        let whole = tokens(&request, 5, 0, 16);
        for cut in 0..16 {
            assert_eq!([tokens(&request, 5, 0, cut), tokens(&request, 5, cut, 16 - cut)].concat(), whole);
        }
    }
}
