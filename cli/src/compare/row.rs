//! One case of both reports, and what is said of it.

use serde::{Deserialize, Serialize};

use super::{Better, Measure, Missing};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Faster,
    Slower,
    /// B is better in something other than time.
    Better,
    Worse,
    Same,
    Differs,
    /// Nothing can be said: other clocks, or too few samples.
    Unclear,
    OnlyInA,
    OnlyInB,
    FailedInA,
    FailedInB,
    FailedInBoth,
}

impl Verdict {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "SLOWER",
            Self::Better => "better",
            Self::Worse => "WORSE",
            Self::Same => "same",
            Self::Differs => "differs",
            Self::Unclear => "unclear",
            Self::OnlyInA => "only in A",
            Self::OnlyInB => "only in B",
            Self::FailedInA => "failed in A",
            Self::FailedInB => "FAILED in B",
            Self::FailedInBoth => "FAILED in both",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub case: String,
    pub unit: String,
    pub a: Option<f64>,
    pub b: Option<f64>,
    /// b ÷ a; `None` where one is missing or A is 0.
    pub ratio: Option<f64>,
    /// The least that the ratio may be, by the noise of both.
    pub ratio_low: Option<f64>,
    pub ratio_high: Option<f64>,
    pub verdict: Verdict,
    /// How much worse B is, as a share: 0.1 is 10 % more time, or a tenth less of a rate's inverse. Below 0 where it is
    /// better, `None` where neither is.
    pub loss: Option<f64>,
    pub note: String,
}

pub(super) fn row(a: Option<&Measure>, b: Option<&Measure>) -> Option<Row> {
    // Of the two, the one that says more.
    let Measure { case, unit, .. } = a.into_iter().chain(b).max_by_key(|measure| measure.case.len())?;
    let mut row = Row {
        case: case.clone(),
        unit: (*unit).to_owned(),
        a: a.and_then(Measure::value),
        b: b.and_then(Measure::value),
        ratio: None,
        ratio_low: None,
        ratio_high: None,
        verdict: Verdict::Unclear,
        loss: None,
        note: String::new(),
    };
    let failed = |measure: Option<&Measure>| match measure.map(|measure| &measure.outcome) {
        Some(Err(Missing::Failed(why))) => Some(why.clone()),
        _ => None,
    };
    row.verdict = match (a, b, failed(a), failed(b)) {
        (_, _, Some(in_a), Some(in_b)) => {
            row.note = if in_a == in_b { in_a } else { format!("A: {in_a}; B: {in_b}") };
            Verdict::FailedInBoth
        }
        (_, _, Some(why), None) => {
            row.note = why;
            Verdict::FailedInA
        }
        (_, _, None, Some(why)) => {
            row.note = why;
            Verdict::FailedInB
        }
        (Some(_), None, ..) => Verdict::OnlyInA,
        (None, Some(_), ..) => Verdict::OnlyInB,
        (Some(a), Some(b), ..) => {
            compare(&mut row, a, b);
            return Some(row);
        }
        (None, None, ..) => return None,
    };
    Some(row)
}

fn compare(row: &mut Row, a: &Measure, b: &Measure) {
    if a.clock != b.clock {
        row.note = format!("other clocks: {} in A, {} in B", a.clock, b.clock);
        return;
    }
    let (a_band, b_band) = match (&a.outcome, &b.outcome) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(Missing::FewSamples(_, count)), _) | (_, Err(Missing::FewSamples(_, count))) => {
            row.note = format!("only {}", crate::trace::count(*count as u64, "sample"));
            return;
        }
        // The caller handles failures.
        _ => return,
    };
    if a_band.low > 0.0 {
        row.ratio = Some(b_band.value / a_band.value);
        row.ratio_low = Some(b_band.low / a_band.high);
        row.ratio_high = Some(b_band.high / a_band.low);
    }
    row.loss = match a.better {
        Better::Faster | Better::Less => row.ratio.map(|ratio| ratio - 1.0),
        Better::Rate | Better::More => row.ratio.filter(|ratio| *ratio > 0.0).map(|ratio| 1.0 / ratio - 1.0),
        Better::Neither => None,
    };
    let (less, more) = (b_band.high < a_band.low, b_band.low > a_band.high);
    row.verdict = match (a.better, less, more) {
        (_, false, false) => Verdict::Same,
        (Better::Faster, true, _) | (Better::Rate, _, true) => Verdict::Faster,
        (Better::Faster, ..) | (Better::Rate, ..) => Verdict::Slower,
        (Better::Less, true, _) | (Better::More, _, true) => Verdict::Better,
        (Better::Less, ..) | (Better::More, ..) => Verdict::Worse,
        (Better::Neither, ..) => Verdict::Differs,
    };
}
