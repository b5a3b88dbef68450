//! Contexts that a server sees at one moment, drawn from a log of whole requests.

use rand::RngExt;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;

use super::Request;
use crate::seed::rng_for;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    #[error("no request has output tokens, of {requests} in all, so none is ever in a decode batch")]
    NoOutput { requests: usize },
    #[error("max_len is 0; a sequence has at least 1 token")]
    ZeroMaxLen,
}

/// Draws the context lengths of `n` sequences in the middle of decoding.
/// A request stays in the batch for one step per output token, so it is met there in proportion to `output_tokens`; at
/// the moment it is met, any of those tokens is as likely the latest. Each length is therefore
/// `prompt + uniform(1..=output)`, that token included, of a request so chosen, and at most `max_len`.
/// The result depends on the arguments alone. Fewer sequences are the first ones of more.
pub fn sequence_lengths(requests: &[Request], n: usize, max_len: u32, seed: u64) -> Result<Vec<u32>, SampleError> {
    if max_len == 0 {
        return Err(SampleError::ZeroMaxLen);
    }
    let weights = requests.iter().map(|request| u64::from(request.output_tokens));
    // Refused when all weights are 0, or there are none; a sum over 64 bits would take four billion requests.
    let chosen = WeightedIndex::new(weights).map_err(|_| SampleError::NoOutput { requests: requests.len() })?;
    let mut rng = rng_for("sequence_lengths", seed);
    Ok((0..n)
        .map(|_| {
            let request = &requests[chosen.sample(&mut rng)];
            let generated = rng.random_range(1..=request.output_tokens);
            request.prompt_tokens.saturating_add(generated).min(max_len)
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(prompt_tokens: u32, output_tokens: u32) -> Request {
        Request { prompt_tokens, output_tokens, ..Request::default() }
    }

    #[test]
    fn lengths_lie_between_prompt_and_end_of_answer() {
        let lengths = sequence_lengths(&[request(100, 3)], 300, 4096, 1).unwrap();
        for length in 101..=103 {
            let count = lengths.iter().filter(|&&l| l == length).count();
            assert!((70..=130).contains(&count), "{count} of 300 are {length}");
        }
        assert!(lengths.iter().all(|length| (101..=103).contains(length)));
    }

    #[test]
    fn requests_are_met_in_proportion_to_their_answers() {
        // 10, 0 and 30 output tokens: a quarter, none and three quarters.
        let log = [request(1000, 10), request(2000, 0), request(3000, 30)];
        let lengths = sequence_lengths(&log, 4000, 1 << 20, 2).unwrap();
        let of = |prompt| lengths.iter().filter(|&&l| l > prompt && l <= prompt + 30).count();
        assert!((880..=1120).contains(&of(1000)), "{}", of(1000));
        assert_eq!(of(2000), 0);
        assert_eq!(of(1000) + of(3000), 4000);
    }

    #[test]
    fn the_same_seed_gives_the_same_lengths() {
        let log: Vec<_> = (1..50).map(|i| request(i * 10, i)).collect();
        let all = sequence_lengths(&log, 64, 4096, 7).unwrap();
        assert_eq!(sequence_lengths(&log, 64, 4096, 7).unwrap(), all);
        assert_eq!(sequence_lengths(&log, 8, 4096, 7).unwrap(), all[..8]);
        assert_ne!(sequence_lengths(&log, 64, 4096, 8).unwrap(), all);
    }

    #[test]
    fn lengths_are_clipped_and_never_zero() {
        let log = [request(u32::MAX, u32::MAX), request(0, 1)];
        for length in sequence_lengths(&log, 100, 5, 1).unwrap() {
            assert!((1..=5).contains(&length));
        }
        assert!(sequence_lengths(&log, 0, 5, 1).unwrap().is_empty());
    }

    #[test]
    fn logs_without_answers_are_refused() {
        assert_eq!(sequence_lengths(&[], 1, 5, 1), Err(SampleError::NoOutput { requests: 0 }));
        assert_eq!(sequence_lengths(&[request(9, 0)], 1, 5, 1), Err(SampleError::NoOutput { requests: 1 }));
        assert_eq!(sequence_lengths(&[request(9, 1)], 1, 0, 1), Err(SampleError::ZeroMaxLen));
    }
}
