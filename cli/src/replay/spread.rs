//! Distributions in a few numbers, without keeping the values.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Three significant digits: what is read off a plot is no better.
const DIGITS: u8 = 3;
/// Histograms hold whole numbers; values are kept in millionths, so seconds in microseconds.
const SCALE: f64 = 1e6;
/// The largest value and count kept apart: 35 years in microseconds.
const MOST: u64 = 1 << 50;

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

/// Sums of many small steps end in digits that say nothing. Large numbers have none behind the point.
pub(super) fn to_millionth(value: f64) -> f64 {
    let millionths = (value * SCALE).round();
    if millionths.abs() < MOST as f64 { millionths / SCALE } else { value }
}

#[derive(Clone, Debug)]
pub(super) struct Values {
    histogram: Histogram<u64>,
    weight: f64,
    weighted_sum: f64,
    max: f64,
}

impl Default for Values {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, MOST, DIGITS).expect("bounds and digits are constants");
        Self { histogram, weight: 0.0, weighted_sum: 0.0, max: 0.0 }
    }
}

impl Values {
    pub(super) fn add(&mut self, value: f64) {
        self.add_for(value, 1.0 / SCALE);
    }

    /// Adds a value that held for so many seconds, or that `weight` millions of others share.
    pub(super) fn add_for(&mut self, value: f64, weight: f64) {
        let count = (weight * SCALE).round().clamp(1.0, MOST as f64) as u64;
        self.histogram.saturating_record_n((value * SCALE).round() as u64, count);
        self.weight += weight;
        self.weighted_sum += value * weight;
        self.max = self.max.max(value);
    }

    pub(super) fn spread(&self) -> Option<Spread> {
        let max = to_millionth(self.max);
        let at = |quantile| (self.histogram.value_at_quantile(quantile) as f64 / SCALE).min(max);
        (self.weight > 0.0).then(|| Spread {
            mean: to_millionth(self.weighted_sum / self.weight),
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(measured: f64, expected: f64) {
        assert!((measured / expected - 1.0).abs() < 2e-3, "{measured} of {expected}");
    }

    #[test]
    fn percentiles_are_those_of_the_values() {
        let mut values = Values::default();
        (1..=1000).for_each(|n| values.add(f64::from(n) * 0.01));
        let spread = values.spread().unwrap();
        close(spread.mean, 5.005);
        close(spread.p50, 5.0);
        close(spread.p95, 9.5);
        close(spread.p99, 9.9);
        assert_eq!(spread.max, 10.0);
        assert_eq!(Values::default().spread(), None);
    }

    #[test]
    fn what_held_longer_weighs_more() {
        let mut values = Values::default();
        values.add_for(0.2, 99.5);
        values.add_for(1.0, 0.5);
        let spread = values.spread().unwrap();
        close(spread.mean, 0.204);
        close(spread.p99, 0.2);
        assert_eq!(spread.max, 1.0);
    }
}
