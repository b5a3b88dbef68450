//! Which case of one report is which of the other.

use std::collections::{HashMap, HashSet};

use super::{Measure, Missing};

type Pair<'a> = (Option<&'a Measure>, Option<&'a Measure>);

/// Every case of both, in the order of A, then what only B has.
/// A name identifies a case. A failure says only how the name of its case begins, so it is put beside a case of
/// the other report that begins so and has no partner.
pub(super) fn pairs<'a>(a: &'a [Measure], b: &'a [Measure]) -> Vec<Pair<'a>> {
    let (in_a, in_b) = (Side::new(a), Side::new(b));
    let mut used = HashSet::new();
    let mut pairs: Vec<Pair<'a>> = Vec::new();
    for measure in a {
        let other = in_b.partner(measure);
        if other.is_none() && is_failure(measure) && b.iter().any(|other| in_a.failure(other) == Some(measure)) {
            continue;
        }
        used.extend(other.map(|other| other.case.as_str()));
        pairs.push((Some(measure), other));
    }
    let rest = b.iter().filter(|measure| !used.contains(measure.case.as_str()));
    pairs.extend(rest.map(|measure| (in_a.failure(measure), Some(measure))));
    pairs
}

fn is_failure(measure: &Measure) -> bool {
    matches!(measure.outcome, Err(Missing::Failed(_)))
}

struct Side<'a> {
    by_name: HashMap<&'a str, &'a Measure>,
    failures: Vec<&'a Measure>,
}

impl<'a> Side<'a> {
    fn new(measures: &'a [Measure]) -> Self {
        Self {
            by_name: measures.iter().map(|measure| (measure.case.as_str(), measure)).collect(),
            failures: measures.iter().filter(|measure| is_failure(measure)).collect(),
        }
    }

    fn partner(&self, measure: &Measure) -> Option<&'a Measure> {
        self.by_name.get(measure.case.as_str()).copied().or_else(|| self.failure(measure))
    }

    /// A failure that may be of this case, if the case itself is not there.
    fn failure(&self, measure: &Measure) -> Option<&'a Measure> {
        if self.by_name.contains_key(measure.case.as_str()) {
            return None;
        }
        let begins = |failure: &&&Measure| {
            measure.case.strip_prefix(failure.case.as_str()).is_some_and(|rest| rest.starts_with(' '))
        };
        self.failures.iter().find(begins).copied()
    }
}
