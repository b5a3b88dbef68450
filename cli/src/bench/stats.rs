//! What a set of timings says, and whether to believe it.

use std::mem::discriminant;

/// A sample further from the median than this many robust standard deviations is an outlier. 10 rather than the usual
/// 3.5: timings have a long right tail even on an idle machine.
const OUTLIER_SCORE: f64 = 10.0;
/// A robust standard deviation is this many times the median absolute deviation of a normal distribution:
/// 1 / Φ⁻¹(3/4).
const MAD_TO_SIGMA: f64 = 1.4826;
const MAX_SPREAD: f64 = 0.2;
/// A median of fewer timer ticks than this is mostly rounding.
const MIN_TICKS: f64 = 20.0;
const MIN_SAMPLES: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    pub count: usize,
    pub min: f64,
    pub p25: f64,
    pub median: f64,
    pub p75: f64,
    pub max: f64,
}

impl Summary {
    /// Summarises samples in any order; `None` if there are none, or one is NaN or infinite.
    /// A mean is left out on purpose: one interruption by the operating system moves it at will.
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || !samples.iter().all(|sample| sample.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            count: sorted.len(),
            min: sorted[0],
            p25: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            p75: quantile(&sorted, 0.75),
            max: sorted[sorted.len() - 1],
        })
    }

    pub fn spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.p75 - self.p25) / self.median }
    }
}

pub fn median(samples: &[f64]) -> Option<f64> {
    Summary::of(samples).map(|summary| summary.median)
}

/// Quantile `q` of ascending samples: the value at position `q · (n − 1)`, interpolated linearly between its two
/// neighbours (type 7 of Hyndman and Fan, the default of NumPy and R). The median of an even number of samples is the
/// mean of the middle two.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let position = q * (sorted.len() - 1) as f64;
    let below = position.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    let fraction = position - below as f64;
    sorted[below] * (1.0 - fraction) + sorted[above] * fraction
}

#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Warning {
    #[error("only {}: quartiles say little; raise the number of runs to {MIN_SAMPLES} or more", crate::trace::count(*count as u64, "sample"))]
    FewSamples { count: usize },
    #[error(
        "the first counted run took {first_us:.0} µs against a median of {median_us:.0} µs: caches or clocks were still \
         cold; raise the number of warm-up runs"
    )]
    SlowFirstRun { first_us: f64, median_us: f64 },
    #[error(
        "{outliers} of {count} runs lie far from the rest: something else used the machine; close other programs and run \
         again"
    )]
    Outliers { outliers: usize, count: usize },
    #[error(
        "the quartiles lie {:.0} % of the median apart: small differences mean nothing here; raise the number of runs, or \
         fix the device's clocks",
        spread * 100.0
    )]
    WideSpread { spread: f64 },
    #[error(
        "the median of {median_us:.2} µs is only {:.0} steps of the timer ({resolution_us:.3} µs): measure a larger batch \
         or context",
        median_us / resolution_us
    )]
    BelowResolution { median_us: f64, resolution_us: f64 },
}

pub fn fold(warnings: &[(String, Warning)]) -> Vec<String> {
    let mut kinds: Vec<(&str, Warning, usize)> = Vec::new();
    for (label, warning) in warnings {
        match kinds.iter_mut().find(|(_, kind, _)| discriminant(kind) == discriminant(warning)) {
            Some((_, _, more)) => *more += 1,
            None => kinds.push((label, *warning, 0)),
        }
    }
    let line = |(label, warning, more): (&str, Warning, usize)| match more {
        0 => format!("{label}: {warning}"),
        more => format!("{label}, and the like of {more} more: {warning}"),
    };
    kinds.into_iter().map(line).collect()
}

/// What is doubtful about `samples`, in the order in which they were taken, warm-up left out.
pub fn warnings(samples: &[f64], resolution_us: f64) -> Vec<Warning> {
    let Some(summary) = Summary::of(samples) else {
        return Vec::new();
    };
    let Summary { count, median, .. } = summary;
    let mut found = Vec::new();
    if count < MIN_SAMPLES {
        found.push(Warning::FewSamples { count });
    } else {
        let outliers = outliers(samples, median);
        // A slow first run has its own cause, so it is not blamed on other programs as well.
        if outliers.first() == Some(&0) && samples[0] > median {
            found.push(Warning::SlowFirstRun { first_us: samples[0], median_us: median });
        }
        let others = outliers.len() - usize::from(!found.is_empty());
        if others > 0 {
            found.push(Warning::Outliers { outliers: others, count });
        }
        if summary.spread() > MAX_SPREAD {
            found.push(Warning::WideSpread { spread: summary.spread() });
        }
    }
    if median < resolution_us * MIN_TICKS {
        found.push(Warning::BelowResolution { median_us: median, resolution_us });
    }
    found
}

/// Positions of the samples whose modified z-score, the distance from the median in robust standard deviations,
/// exceeds [`OUTLIER_SCORE`].
fn outliers(samples: &[f64], center: f64) -> Vec<usize> {
    let deviations: Vec<f64> = samples.iter().map(|sample| (sample - center).abs()).collect();
    // More than half of the samples equal, as with a coarse timer: a deviation of 1 % stands in for 0, or every other
    // step of the timer would be an outlier.
    let typical = median(&deviations).unwrap_or(0.0).max(0.01 * center);
    let limit = OUTLIER_SCORE * MAD_TO_SIGMA * typical;
    (0..samples.len()).filter(|&i| deviations[i] > limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_interpolated() {
        // Sorted 1 2 3 4: positions 0.75, 1.5 and 2.25.
        let four = Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!(four, Summary { count: 4, min: 1.0, p25: 1.75, median: 2.5, p75: 3.25, max: 4.0 });
        // Sorted 1 2 3 4 5: positions 1, 2 and 3.
        let five = Summary::of(&[5.0, 4.0, 3.0, 2.0, 1.0]).unwrap();
        assert_eq!((five.p25, five.median, five.p75), (2.0, 3.0, 4.0));
        assert_eq!(five.spread(), 2.0 / 3.0);
        let one = Summary::of(&[7.0]).unwrap();
        assert_eq!((one.min, one.p25, one.median, one.p75, one.max), (7.0, 7.0, 7.0, 7.0, 7.0));
    }

    #[test]
    fn nothing_is_made_of_no_samples_or_of_nan() {
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
        assert_eq!(Summary::of(&[f64::INFINITY]), None);
        assert_eq!(median(&[]), None);
        assert_eq!(warnings(&[], 1.0), []);
        assert_eq!(Summary::of(&[0.0]).unwrap().spread(), 0.0);
    }

    /// 100 to 104 µs, over and over.
    fn steady() -> Vec<f64> {
        (0..50).map(|i| 100.0 + f64::from(i % 5)).collect()
    }

    #[test]
    fn steady_samples_are_believed() {
        assert_eq!(warnings(&steady(), 0.1), []);
    }

    #[test]
    fn a_cold_first_run_is_told_from_a_disturbance() {
        let mut samples = steady();
        samples[0] = 400.0;
        assert_eq!(warnings(&samples, 0.1), [Warning::SlowFirstRun { first_us: 400.0, median_us: 102.0 }]);
        samples.swap(0, 20);
        assert_eq!(warnings(&samples, 0.1), [Warning::Outliers { outliers: 1, count: 50 }]);
        samples[0] = 300.0;
        assert_eq!(
            warnings(&samples, 0.1),
            [Warning::SlowFirstRun { first_us: 300.0, median_us: 102.0 }, Warning::Outliers { outliers: 1, count: 50 }]
        );
        // A first run that is too fast is suspicious, but not cold.
        samples = steady();
        samples[0] = 1.0;
        assert_eq!(warnings(&samples, 0.1), [Warning::Outliers { outliers: 1, count: 50 }]);
    }

    #[test]
    fn quartiles_far_apart_are_reported() {
        let samples: Vec<f64> = (0..40).map(|i| if i % 2 == 0 { 100.0 } else { 200.0 }).collect();
        // Median 150, quartiles 100 and 200.
        assert_eq!(warnings(&samples, 0.1), [Warning::WideSpread { spread: 100.0 / 150.0 }]);
    }

    #[test]
    fn a_coarse_timer_is_named_as_such() {
        // All equal but one step: no outlier, but too few steps of the timer.
        let mut samples = vec![10.0; 20];
        samples[7] = 11.0;
        assert_eq!(warnings(&samples, 1.0), [Warning::BelowResolution { median_us: 10.0, resolution_us: 1.0 }]);
        assert_eq!(warnings(&samples, 0.0), []);
    }

    #[test]
    fn few_samples_are_not_judged_further() {
        assert_eq!(warnings(&[1.0, 900.0], 0.0), [Warning::FewSamples { count: 2 }]);
    }

    #[test]
    fn warnings_of_one_kind_are_one_line() {
        let (outliers, few) = (Warning::Outliers { outliers: 2, count: 30 }, Warning::FewSamples { count: 2 });
        let other = Warning::Outliers { outliers: 9, count: 30 };
        let folded = fold(&[("a".into(), outliers), ("b".into(), few), ("c".into(), other), ("d".into(), outliers)]);
        assert_eq!(folded, [format!("a, and the like of 2 more: {outliers}"), format!("b: {few}")]);
        assert!(fold(&[]).is_empty());
    }

    #[test]
    fn a_warning_names_cause_and_remedy() {
        let text = Warning::Outliers { outliers: 2, count: 30 }.to_string();
        assert_eq!(
            text,
            "2 of 30 runs lie far from the rest: something else used the machine; close other programs and run again"
        );
    }
}
