//! Workloads without a file: lognormal fits to published request logs.
//!
//! Prompt and output lengths are drawn independently, which real requests are not, and arrivals are a Poisson stream at
//! the log's mean rate, which real ones rarely are. What the fits keep is the size and spread of the lengths; the
//! logs themselves ([`trace`](super::trace)) have the rest.

use rand::distr::Distribution;
use rand_distr::{Exp, LogNormal};

use crate::common::clip;
use crate::seed::rng_for;
use crate::trace::Request;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogNormalFit {
    pub ln_mean: f64,
    /// Standard deviation of the natural logarithm.
    pub ln_sd: f64,
}

impl LogNormalFit {
    fn draw(&self, rng: &mut impl rand::Rng) -> u32 {
        // Standard deviations of this module are positive and finite, so the distribution exists.
        let length = LogNormal::new(self.ln_mean, self.ln_sd).map_or(1.0, |lengths| lengths.sample(rng));
        // `as` keeps to the range of u32; no request is empty.
        (length.round() as u32).max(1)
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    pub name: &'static str,
    pub prompt: LogNormalFit,
    pub output: LogNormalFit,
    pub requests_per_s: f64,
    /// The log that was fitted, and whom to cite for it.
    pub source: &'static str,
}

pub const SHORT_CHAT: &str = "short-chat";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown workload {given:?}; known are {known}, or give the path of a request log")]
pub struct UnknownWorkload {
    pub given: String,
    pub known: String,
}

const fn fit(ln_mean: f64, ln_sd: f64) -> LogNormalFit {
    LogNormalFit { ln_mean, ln_sd }
}

impl Workload {
    pub const BUILT_IN: [Self; 6] = [
        Self {
            name: "azure-conv",
            prompt: fit(6.63, 0.99),
            output: fit(5.02, 0.86),
            requests_per_s: 5.53,
            source: "Azure LLM inference trace 2023, conversations (CC-BY 4.0; Patel et al., Splitwise, ISCA 2024)",
        },
        Self {
            name: "azure-code",
            prompt: fit(7.00, 1.36),
            output: fit(2.79, 0.85),
            requests_per_s: 2.57,
            source: "Azure LLM inference trace 2023, code completion (CC-BY 4.0; Patel et al., Splitwise, ISCA 2024)",
        },
        Self {
            name: "sharegpt",
            prompt: fit(4.69, 1.69),
            output: fit(4.61, 1.48),
            requests_per_s: 1.00,
            source: "ShareGPT, first turns, SmolLM2 tokenizer; the rate is chosen, not measured",
        },
        Self {
            name: "mooncake-conv",
            prompt: fit(8.74, 1.20),
            output: fit(5.34, 1.36),
            requests_per_s: 3.40,
            source: "Mooncake conversation trace (Qin et al., Mooncake, FAST 2025)",
        },
        Self {
            name: "deepseek-r1",
            prompt: fit(5.73, 1.53),
            output: fit(6.20, 0.72),
            requests_per_s: 2.01,
            source: "ServeGen, DeepSeek-R1 reasoning clients (Xiang et al., arXiv 2505.09999)",
        },
        // Prompts of 55 tokens on average and answers of 90. A spread of sqrt(ln 2) makes the mean over the steps of an
        // answer, E[n²] / 2 E[n], equal to its mean length, so sequences are 145 tokens long both when they are met and
        // when they end.
        Self {
            name: SHORT_CHAT,
            prompt: fit(3.687, 0.8),
            output: fit(4.153, 0.8326),
            requests_per_s: 5.0,
            source: "no log: short chats of 145 tokens, the length that published figures of block sizes imply",
        },
    ];

    pub fn by_name(name: &str) -> Result<Self, UnknownWorkload> {
        Self::BUILT_IN.into_iter().find(|workload| workload.name == name).ok_or_else(|| UnknownWorkload {
            given: clip(name),
            known: Self::BUILT_IN.map(|workload| workload.name).join(", "),
        })
    }

    /// Draws `n` requests, which depend on the workload's name and `seed` alone. Fewer requests are the first ones of
    /// more. For the contexts of a decode batch, hand them to [`sequence_lengths`](crate::trace::sequence_lengths).
    pub fn requests(&self, n: usize, seed: u64) -> Vec<Request> {
        let mut rng = rng_for(self.name, seed);
        let mut arrival_s = 0.0;
        (0..n)
            .map(|_| {
                arrival_s += Exp::new(self.requests_per_s).map_or(0.0, |gaps| gaps.sample(&mut rng));
                Request {
                    arrival_ns: (arrival_s * 1e9_f64).round() as u64,
                    prompt_tokens: self.prompt.draw(&mut rng),
                    output_tokens: self.output.draw(&mut rng),
                    ..Request::default()
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::sequence_lengths;

    #[test]
    fn draws_have_the_moments_of_their_fit() {
        const N: usize = 20_000;
        for workload in Workload::BUILT_IN {
            let requests = workload.requests(N, 1);
            for (fit, lengths) in [
                (workload.prompt, requests.iter().map(|r| r.prompt_tokens).collect::<Vec<_>>()),
                (workload.output, requests.iter().map(|r| r.output_tokens).collect()),
            ] {
                let logs: Vec<f64> = lengths.iter().map(|&length| f64::from(length).ln()).collect();
                let mean = logs.iter().sum::<f64>() / N as f64;
                let sd = (logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / N as f64).sqrt();
                // Four standard errors, and something for the rounding of short lengths to whole tokens.
                let slack = 4.0 * fit.ln_sd / (N as f64).sqrt() + 0.01;
                assert!((mean - fit.ln_mean).abs() < slack, "{}: mean {mean} of {fit:?}", workload.name);
                assert!((sd - fit.ln_sd).abs() < slack + 0.03, "{}: sd {sd} of {fit:?}", workload.name);
            }
            let rate = N as f64 / (requests[N - 1].arrival_ns as f64 / 1e9);
            assert!((rate / workload.requests_per_s - 1.0).abs() < 0.05, "{}: {rate}/s", workload.name);
            assert!(requests.is_sorted_by(|a, b| a.arrival_ns <= b.arrival_ns));
        }
    }

    #[test]
    fn draws_depend_on_name_and_seed_alone() {
        let conv = Workload::by_name("azure-conv").unwrap();
        let expected = conv.requests(100, 3);
        Workload::by_name("sharegpt").unwrap().requests(17, 3);
        assert_eq!(conv.requests(100, 3), expected);
        assert_eq!(conv.requests(10, 3), expected[..10]);
        assert_ne!(conv.requests(100, 4), expected);
        assert_ne!(Workload { name: "other", ..conv }.requests(100, 3), expected);
    }

    #[test]
    fn decode_contexts_come_from_drawn_requests_too() {
        let requests = Workload::by_name("deepseek-r1").unwrap().requests(1000, 1);
        let lengths = sequence_lengths(&requests, 256, 8192, 1).unwrap();
        assert_eq!(lengths.len(), 256);
        assert!(lengths.iter().all(|length| (1..=8192).contains(length)));
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        assert_eq!(
            Workload::by_name("chat").unwrap_err().to_string(),
            "unknown workload \"chat\"; known are azure-conv, azure-code, sharegpt, mooncake-conv, deepseek-r1, \
             short-chat, or give the path of a request log"
        );
    }
}
