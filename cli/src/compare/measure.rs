//! One number of a report, and how sure it is.

/// A value and the interval in which it is with a certainty of 95 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Band {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Band {
    pub(super) fn widened(self, share: f64) -> Self {
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
    /// Only numbers with the same are comparable: the clock.
    pub clock: &'static str,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Missing {
    Failed(String),
    FewSamples(f64, usize),
}

impl Measure {
    pub(super) fn value(&self) -> Option<f64> {
        match &self.outcome {
            Ok(band) => Some(band.value),
            Err(Missing::FewSamples(value, _)) => Some(*value),
            Err(Missing::Failed(_)) => None,
        }
    }
}
