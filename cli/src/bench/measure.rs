//! One number of a report, and how sure it is.

use crate::bench::stats::median;

/// A value and the interval in which it is with a certainty of 95 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Band {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Band {
    pub(crate) fn widened(self, share: f64) -> Self {
        Self { low: self.low - share * self.value, high: self.high + share * self.value, ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// A time: the smaller.
    Faster,
    /// Something per time: the larger.
    Rate,
    /// A cost: the smaller.
    Less,
    /// A yield: the larger.
    More,
    Neither,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Measure {
    pub case: String,
    pub unit: &'static str,
    pub better: Better,
    pub outcome: Result<Band, Missing>,
    pub clock: &'static str,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Missing {
    Failed(String),
    FewSamples(f64, usize),
}

impl Measure {
    pub(crate) fn value(&self) -> Option<f64> {
        match &self.outcome {
            Ok(band) => Some(band.value),
            Err(Missing::FewSamples(value, _)) => Some(*value),
            Err(Missing::Failed(_)) => None,
        }
    }
}

/// Fewer samples say nothing about their median: of five, all lie on one side of it once in 16 times.
pub(crate) const MIN_SAMPLES: usize = 5;
const CERTAINTY: f64 = 0.95;
/// Up to here the binomial distribution is summed up; 0.5 to this power is still a number.
const MAX_SUMMED: usize = 1000;
const NORMAL: f64 = 1.96;

/// The median and the interval between two samples that holds it with a certainty of 95 %, whatever the distribution:
/// the number of samples below the true median is binomial. With five samples the interval is all of them, and the
/// certainty 94 %.
pub(crate) fn median_band(samples: &[f64]) -> Result<Band, Missing> {
    let Some(value) = median(samples) else {
        return Err(Missing::Failed("no samples, or some that are no numbers".to_owned()));
    };
    if samples.len() < MIN_SAMPLES {
        return Err(Missing::FewSamples(value, samples.len()));
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let left_out = left_out(sorted.len());
    Ok(Band { value, low: sorted[left_out], high: sorted[sorted.len() - 1 - left_out] })
}

fn left_out(count: usize) -> usize {
    let n = count as f64;
    if count > MAX_SUMMED {
        return ((n - NORMAL * n.sqrt()) / 2.0) as usize - 1;
    }
    // P(X = i) and P(X <= i) of X binomial with n and one half.
    let mut exactly = 0.5f64.powi(count as i32);
    let mut at_most = exactly;
    let mut i = 0usize;
    while at_most <= (1.0 - CERTAINTY) / 2.0 {
        exactly *= (n - i as f64) / (i as f64 + 1.0);
        at_most += exactly;
        i += 1;
    }
    // The i-th sample from the end, counted from 1, is still inside: i - 1 are left out.
    i.saturating_sub(1)
}

/// By how much, as a share, the median of a case moves from one run of the program to the next. On a CPU, where every run
/// finds other pages and other neighbours, six runs of six cases lay within 5 % of their middle 31 times of 36.
pub(crate) fn between_runs(software: bool) -> f64 {
    if software { 0.05 } else { 0.01 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_published_tables() {
        // Ranks of the lower bound at 95 %, as in tables of the sign test: n 6: 1, 10: 2, 20: 6, 30: 10, 50: 18, 100: 40.
        for (count, rank) in [(5, 1), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6), (30, 10), (50, 18), (100, 40)] {
            assert_eq!(left_out(count) + 1, rank, "{count} samples");
        }
        // Both ways agree where they meet.
        assert!(left_out(1000).abs_diff(left_out(1001)) <= 1, "{} {}", left_out(1000), left_out(1001));
    }

    #[test]
    fn few_samples_have_a_median_but_no_band() {
        assert_eq!(median_band(&[1.0, 3.0]), Err(Missing::FewSamples(2.0, 2)));
        assert!(matches!(median_band(&[]), Err(Missing::Failed(_))));
        assert!(matches!(median_band(&[f64::NAN; 9]), Err(Missing::Failed(_))));
        assert_eq!(median_band(&[5.0, 1.0, 3.0, 2.0, 4.0]), Ok(Band { value: 3.0, low: 1.0, high: 5.0 }));
    }
}
