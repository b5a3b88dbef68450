//! What the host's own cores do at best: native code, one thread a core, beside a software adapter.

use std::array;
use std::hint::black_box;
use std::thread;
use std::time::Instant;

/// Elements of a vector of 256 bits, and vectors that a core works on at a time.
const LANES: usize = 8;
const CHAINS: usize = 8;
const ROUNDS: u32 = 4_000_000;

/// What memory gives.
pub(super) fn read_gb_s(words: &[u32]) -> f64 {
    let parts = words.chunks(words.len().div_ceil(threads()));
    let read = |part: &[u32]| part.iter().fold(0, |sum, word| sum ^ word);
    size_of_val(words) as f64 / seconds(parts.map(|part| move || read(part))) / 1e9
}

/// Multiply-adds, as two operations each.
pub(super) fn fma_gflop_s() -> f64 {
    let work = || multiply_adds(ROUNDS, black_box(0.5));
    let flop = 2.0 * (LANES * CHAINS) as f64 * f64::from(ROUNDS) * threads() as f64;
    flop / seconds((0..threads()).map(|_| work)) / 1e9
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// How long threads with this work take, side by side.
fn seconds<T: Send>(work: impl Iterator<Item = impl FnOnce() -> T + Send>) -> f64 {
    let start = Instant::now();
    thread::scope(|scope| {
        for work in work {
            scope.spawn(|| black_box(work()));
        }
    });
    start.elapsed().as_secs_f64()
}

fn multiply_adds(rounds: u32, x: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: this processor has both.
        return unsafe { fused(rounds, x) };
    }
    // Others have it in every processor, or do without.
    if cfg!(target_arch = "aarch64") { chains(rounds, x, f32::mul_add) } else { chains(rounds, x, |a, b, c| a * b + c) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fused(rounds: u32, x: f32) -> f32 {
    chains(rounds, x, f32::mul_add)
}

/// Independent chains, as the kernel that measures an adapter has them; compilers make vectors of the lanes. All begin apart, or
/// compilers would make one of them.
#[inline(always)]
fn chains(rounds: u32, x: f32, multiply_add: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let factors = [x; LANES];
    let start = |chain: usize, lane: usize| x + (chain * LANES + lane) as f32 * 0.01;
    let mut sums: [[f32; LANES]; CHAINS] = array::from_fn(|chain| array::from_fn(|lane| start(chain, lane)));
    for _ in 0..rounds {
        for sum in &mut sums {
            for (lane, factor) in sum.iter_mut().zip(&factors) {
                *lane = multiply_add(*lane, *factor, *factor);
            }
        }
    }
    sums.iter().flatten().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chain_is_computed() {
        // x·x + x, over and over, comes to x ÷ (1 − x): 1 of one half, in every lane.
        let is_near = |sum: f32, expected: f32| assert!((sum - expected).abs() < 1e-3, "{sum} instead of {expected}");
        is_near(multiply_adds(100, 0.5), (LANES * CHAINS) as f32);
        is_near(multiply_adds(0, 0.0), 20.16);
    }

    #[test]
    fn rates_are_possible() {
        let rates = [fma_gflop_s(), read_gb_s(&vec![1; 1 << 20])];
        assert!(rates.iter().all(|rate| rate.is_finite() && *rate > 0.0), "{rates:?}");
    }
}
