//! Sums over the steps that sequences live through.

use crate::trace::Request;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    first: u32,
    pub(super) steps: u32,
}

impl Life {
    /// `None` for a request without an answer, or with a prompt longer than any sequence.
    pub(super) fn of(request: &Request, max_seq_len: u32) -> Option<Self> {
        let first = request.prompt_tokens.max(1);
        let room = max_seq_len.checked_sub(first)?.saturating_add(1);
        let steps = request.output_tokens.min(room);
        (steps > 0).then_some(Self { first, steps })
    }

    pub(super) fn is_cut(&self, request: &Request) -> bool {
        self.steps < request.output_tokens
    }

    pub(super) fn tokens(&self) -> u128 {
        let (first, steps) = (u128::from(self.first), u128::from(self.steps));
        steps * first + steps * (steps - 1) / 2
    }

    pub(super) fn blocks(&self, block_size: u32) -> u128 {
        let before = self.first - 1;
        blocks_up_to(before + self.steps, block_size) - blocks_up_to(before, block_size)
    }
}

/// `Σ ceil(l / block_size)` for `l` from 1 to `len`: whole groups of `block_size` lengths, and the rest.
fn blocks_up_to(len: u32, block_size: u32) -> u128 {
    let (len, size) = (u128::from(len), u128::from(block_size));
    let (groups, rest) = (len / size, len % size);
    size * groups * (groups + 1) / 2 + rest * (groups + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_a_loop() {
        for (prompt_tokens, output_tokens) in [(0, 1), (1, 1), (5, 3), (16, 16), (17, 1), (100, 57)] {
            let request = Request { prompt_tokens, output_tokens, ..Request::default() };
            let life = Life::of(&request, 4096).unwrap();
            let lens: Vec<u32> = (0..output_tokens).map(|step| prompt_tokens.max(1) + step).collect();
            assert_eq!((life.steps, life.tokens()), (output_tokens, lens.iter().map(|&len| u128::from(len)).sum()));
            for block_size in [1, 2, 3, 16, 256] {
                let blocks = lens.iter().map(|&len| u128::from(len.div_ceil(block_size))).sum::<u128>();
                assert_eq!(life.blocks(block_size), blocks, "{prompt_tokens}+{output_tokens} in {block_size}");
            }
        }
    }

    #[test]
    fn sequences_end_at_the_longest_length() {
        let life = |prompt_tokens, output_tokens| {
            let request = Request { prompt_tokens, output_tokens, ..Request::default() };
            Life::of(&request, 10).map(|life| (life.first, life.steps, life.is_cut(&request)))
        };
        assert_eq!(life(4, 3), Some((4, 3, false)));
        assert_eq!(life(4, 7), Some((4, 7, false))); // ends with 10 tokens in the cache
        assert_eq!(life(4, 8), Some((4, 7, true)));
        assert_eq!(life(10, 9), Some((10, 1, true)));
        assert_eq!(life(11, 1), None);
        assert_eq!(life(4, 0), None);
    }
}
