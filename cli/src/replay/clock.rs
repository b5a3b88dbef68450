//! How long a step takes.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepWork {
    pub decoding: u32,
    pub decode_keys: u64,
    pub decode_window_keys: u64,
    pub chunks: u32,
    pub prompt_tokens: u32,
    /// Pairs of a query and a key that it sees, in these chunks.
    pub prompt_pairs: u64,
    pub prompt_window_pairs: u64,
}

impl StepWork {
    /// Adds one sequence that grows from `len` tokens by `new_tokens`; `window` is that of windowed layers.
    pub fn add(&mut self, len: u32, new_tokens: u32, is_decode: bool, window: Option<u32>) {
        let (len, new) = (u64::from(len), u64::from(new_tokens));
        // Query i of n sees len + i + 1 keys.
        let pairs = new * len + new * (new + 1) / 2;
        let window = window.map_or(u64::MAX, u64::from);
        // Queries whose keys do not fill the window yet; all others see a whole one.
        let growing = window.saturating_sub(len).min(new);
        let window_pairs = growing * len + growing * (growing + 1) / 2 + (new - growing).saturating_mul(window);
        if is_decode {
            self.decoding += 1;
            self.decode_keys += pairs;
            self.decode_window_keys += window_pairs;
        } else {
            self.chunks += 1;
            self.prompt_tokens += new_tokens;
            self.prompt_pairs += pairs;
            self.prompt_window_pairs += window_pairs;
        }
    }

    pub fn tokens(&self) -> u32 {
        self.decoding + self.prompt_tokens
    }
}

pub trait Clock {
    /// Seconds of one step, from 1e-9 to 1e9.
    fn step_s(&self, step: &StepWork) -> f64;

    fn describe(&self) -> ClockRecord;
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClockRecord {
    pub kind: String,
    pub description: String,
    pub adapter: Option<String>,
    /// Mean of the relative errors at points that were kept out of the fit: 0.1 is 10 %.
    pub fit_error_mean: Option<f64>,
    pub fit_error_max: Option<f64>,
    pub fit_points: usize,
}

/// Every step takes the same time, as where reading the weights takes most of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepClock {
    pub step_s: f64,
}

impl Clock for StepClock {
    fn step_s(&self, _: &StepWork) -> f64 {
        self.step_s
    }

    fn describe(&self) -> ClockRecord {
        ClockRecord {
            kind: "step".to_owned(),
            description: format!("every step takes {} ms, whatever is in it", self.step_s * 1e3),
            adapter: None,
            fit_error_mean: None,
            fit_error_max: None,
            fit_points: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_query_by_query() {
        for window in [None, Some(1), Some(5), Some(100)] {
            for (len, new) in [(0, 1), (0, 7), (3, 4), (9, 1), (50, 60)] {
                let (mut pairs, mut window_pairs) = (0, 0);
                for query in 0..new {
                    let keys = u64::from(len + query + 1);
                    pairs += keys;
                    window_pairs += keys.min(window.map_or(u64::MAX, u64::from));
                }
                let mut chunk = StepWork::default();
                chunk.add(len, new, false, window);
                assert_eq!((chunk.chunks, chunk.prompt_tokens, chunk.tokens()), (1, new, new));
                assert_eq!((chunk.prompt_pairs, chunk.prompt_window_pairs), (pairs, window_pairs), "{len} {new}");
                assert_eq!(chunk.decoding, 0);
                let mut decode = StepWork::default();
                decode.add(len, new, true, window);
                assert_eq!((decode.decode_keys, decode.decode_window_keys), (pairs, window_pairs));
                assert_eq!(decode.prompt_pairs, 0);
            }
        }
    }
}
