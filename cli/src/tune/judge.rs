//! Which of two profiles is the faster one, and whether that is more than noise.

use crate::bench::measure::median_band;
use crate::bench::median;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Faster,
    Even,
    Slower,
}

/// The quotients of times that were taken in the same rounds.
pub fn quotients(times_us: &[f64], others_us: &[f64]) -> Vec<f64> {
    times_us.iter().zip(others_us).map(|(us, other)| us / other).collect()
}

/// The median of the quotients; of no numbers, or of some that are none, the worst.
pub fn ratio(times_us: &[f64], others_us: &[f64]) -> f64 {
    median(&quotients(times_us, others_us)).unwrap_or(f64::INFINITY)
}

/// Faster is only what is faster with a certainty of 95 %, and by more than `noise`, which is what a time changes from one run
/// of the program to the next; slower is already what is slower by half of that.
pub fn standing(times_us: &[f64], others_us: &[f64], noise: f64) -> Standing {
    match median_band(&quotients(times_us, others_us)) {
        Ok(band) if band.value > 1.0 + noise / 2.0 => Standing::Slower,
        Ok(band) if band.high < 1.0 - noise => Standing::Faster,
        _ => Standing::Even,
    }
}

/// Whether more rounds are of no use: slower with a certainty of 95 %, and by more than the noise.
pub fn is_out(times_us: &[f64], others_us: &[f64], noise: f64) -> bool {
    median_band(&quotients(times_us, others_us)).is_ok_and(|band| band.low > 1.0 && band.value > 1.0 + noise)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faster_takes_certainty_and_more_than_the_noise() {
        let others: Vec<f64> = (1..=9).map(|round| f64::from(round) * 100.0).collect();
        let of = |quotients: &[f64]| {
            let times: Vec<f64> = quotients.iter().zip(&others).map(|(quotient, other)| quotient * other).collect();
            standing(&times, &others, 0.05)
        };
        assert_eq!(of(&[0.9; 9]), Standing::Faster);
        assert_eq!(of(&[0.96; 9]), Standing::Even);
        assert_eq!(of(&[1.02; 9]), Standing::Even);
        assert_eq!(of(&[1.03; 9]), Standing::Slower);
        // The median is below, but three of nine are not.
        assert_eq!(of(&[0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 1.0, 1.0, 1.0]), Standing::Even);
    }

    #[test]
    fn only_what_is_surely_slower_is_out() {
        let out = |times: &[f64]| is_out(times, &vec![1.0; times.len()], 0.05);
        assert!(out(&[1.06, 1.2, 1.1, 1.01, 1.3]));
        // One round of five is faster, or all are slower by less than the noise.
        assert!(!out(&[1.06, 1.2, 1.1, 0.99, 1.3]) && !out(&[1.04; 5]) && !out(&[2.0; 4]));
    }

    #[test]
    fn times_that_say_nothing_make_nobody_faster() {
        assert_eq!(standing(&[1.0; 4], &[2.0; 4], 0.05), Standing::Even, "four rounds are too few");
        assert_eq!(standing(&[], &[], 0.05), Standing::Even);
        assert_eq!(standing(&[0.0; 9], &[0.0; 9], 0.05), Standing::Even);
        assert_eq!(ratio(&[0.0], &[0.0]), f64::INFINITY);
        assert_eq!(ratio(&[2.0, 30.0, 400.0], &[1.0, 10.0, 100.0]), 3.0);
    }
}
