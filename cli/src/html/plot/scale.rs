//! Where values lie on an axis, and which of them are written beside it.

use crate::report::fmt::number;

const MAX_TICKS: usize = 8;

#[derive(Debug, Clone, PartialEq)]
pub enum Scale {
    /// Evenly, from 0.
    Linear,
    Log2,
    Log10,
    /// Names in their order: the value is the number of the name.
    Names(Vec<String>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fitted {
    pub from: f64,
    pub to: f64,
    pub ticks: Vec<(f64, String)>,
}

impl Scale {
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        match self {
            Self::Linear => (value >= 0.0).then_some(value),
            Self::Names(names) => (value >= 0.0 && value < names.len() as f64).then_some(value),
            Self::Log2 => (value > 0.0).then(|| value.log2()),
            Self::Log10 => (value > 0.0).then(|| value.log10()),
        }
        .filter(|place| place.is_finite())
    }

    pub fn name(&self, value: f64) -> String {
        match self {
            Self::Names(names) => names.get(value as usize).cloned().unwrap_or_default(),
            _ => number(value),
        }
    }

    pub(super) fn fit(&self, least: f64, most: f64) -> Fitted {
        let base: f64 = match self {
            Self::Names(names) => {
                let ticks = names.iter().enumerate().map(|(place, name)| (place as f64, name.clone())).collect();
                return Fitted { from: -0.4, to: names.len() as f64 - 0.6, ticks };
            }
            Self::Linear => {
                let step = step(most / 5.0);
                let steps = (most / step - 1e-9).ceil().max(1.0);
                let ticks = (0..=steps as u32).map(|i| f64::from(i) * step).map(|at| (at, number(at))).collect();
                return Fitted { from: 0.0, to: steps * step, ticks };
            }
            Self::Log2 => 2.0,
            Self::Log10 => 10.0,
        };
        // Whole powers around the values; a single one gets room on both sides.
        let (mut from, mut to) = ((least + 1e-9).floor(), (most - 1e-9).ceil());
        if from >= to {
            (from, to) = (from - 1.0, from + 1.0);
        }
        let powers = (to - from) as usize + 1;
        let ticks = (0..powers).step_by(powers.div_ceil(MAX_TICKS)).map(|i| from + i as f64);
        Fitted { from, to, ticks: ticks.map(|at| (at, number(base.powf(at)))).collect() }
    }
}

impl Fitted {
    pub(super) fn thinned(mut self, most: u32) -> Self {
        let every = self.ticks.len().div_ceil(most.max(1) as usize);
        self.ticks = self.ticks.into_iter().step_by(every).collect();
        self
    }

    /// Without the empty end that a linear axis has behind the last value: time ends where the data does.
    pub(super) fn until(mut self, scale: &Scale, most: f64) -> Self {
        if *scale == Scale::Linear && most > 0.0 {
            self.to = most;
            self.ticks.retain(|tick| tick.0 <= most);
        }
        self
    }
}

/// 1, 2 or 5 times a power of ten, and at least `least`.
fn step(least: f64) -> f64 {
    // Also for 0 and for numbers that have no logarithm.
    if !(least > f64::MIN_POSITIVE && least.is_finite()) {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().map(|digit| digit * power).find(|&step| step >= least * (1.0 - 1e-9));
    step.unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale, values: (f64, f64)) -> String {
        let place = |value| scale.place(value).unwrap();
        let fitted = scale.fit(place(values.0), place(values.1));
        assert!(fitted.from <= place(values.0) && fitted.to >= place(values.1), "{fitted:?}");
        fitted.ticks.iter().map(|tick| tick.1.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn ticks_are_round_and_span_the_values() {
        assert_eq!(labels(&Scale::Linear, (3.0, 97.0)), "0 20 40 60 80 100");
        assert_eq!(labels(&Scale::Linear, (0.0, 100.0)), "0 20 40 60 80 100");
        assert_eq!(labels(&Scale::Linear, (0.0, 0.0)), "0 1");
        assert_eq!(labels(&Scale::Linear, (0.1, 0.31)), "0 0.1 0.2 0.3 0.4");
        assert_eq!(labels(&Scale::Log2, (256.0, 4096.0)), "256 512 1,024 2,048 4,096");
        assert_eq!(labels(&Scale::Log2, (1024.0, 1024.0)), "512 1,024 2,048");
        assert_eq!(labels(&Scale::Log2, (1.0, 65_536.0)), "1 8 64 512 4,096 32,768");
        assert_eq!(labels(&Scale::Log10, (0.02, 30.0)), "0.01 0.1 1 10 100");
    }

    #[test]
    fn time_ends_where_the_data_does() {
        let fitted = Scale::Linear.fit(0.0, 83.0).until(&Scale::Linear, 83.0);
        assert_eq!((fitted.to, fitted.ticks.last().map(|tick| tick.0)), (83.0, Some(80.0)));
        let powers = Scale::Log2.fit(0.0, 3.5);
        assert_eq!(powers.clone().until(&Scale::Log2, 3.5), powers);
    }

    #[test]
    fn what_has_no_place_is_none() {
        assert_eq!(Scale::Log10.place(0.0), None);
        assert_eq!(Scale::Linear.place(-1.0), None);
        assert_eq!(Scale::Linear.place(f64::NAN), None);
        assert_eq!(Scale::Linear.place(f64::INFINITY), None);
        assert_eq!(Scale::Names(vec!["p50".into()]).place(1.0), None);
    }
}
