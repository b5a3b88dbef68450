//! What a search found, as a table and as JSON.

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::gpu::{Measured, TunedProfile};
use wgpu_paged_attention::testkit::Gpu;

use super::found::{Found, Outcome, Tried};
use super::{OPS, TuneOptions};
use crate::bench::Op;
use crate::common::Report;
use crate::html::{Page, Section};
use crate::report::fmt::{duration, ratio};
use crate::report::{Adapter, Head, Table, select_csv};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuneReport {
    #[serde(flatten)]
    pub head: Head,
    pub adapter: Adapter,
    pub seconds: f64,
    /// Whether the search went to its end; else it was interrupted, or the device was lost.
    pub complete: bool,
    pub tried: Vec<TriedReport>,
    /// The settings that were found, as far as they differ from the device's own.
    pub differences: String,
    /// What `--save` writes.
    pub profile: TunedProfile,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TriedReport {
    pub setting: String,
    pub differences: String,
    /// Medians of the quotients with the times of the device's own profile; `None` where it was not timed.
    pub decode_over_default: Option<f64>,
    pub prefill_over_default: Option<f64>,
    pub outcome: String,
}

impl TriedReport {
    fn of(tried: &Tried) -> Self {
        let over_default = |op: Op| {
            let ratio = tried.times.iter().find(|(of, _)| *of == op).map(|(_, times)| times.over_default);
            ratio.filter(|ratio| ratio.is_finite())
        };
        Self {
            setting: tried.axis.to_owned(),
            differences: tried.differences.clone(),
            decode_over_default: over_default(Op::Decode),
            prefill_over_default: over_default(Op::Prefill),
            outcome: match &tried.outcome {
                Outcome::Led => "takes the lead".to_owned(),
                Outcome::Slower => "slower".to_owned(),
                Outcome::NoFaster => "no faster beyond the noise".to_owned(),
                Outcome::Refused(why) => format!("refused: {why}"),
                Outcome::Wrong(why) => format!("WRONG: {why}"),
                Outcome::NoTime => "no time left".to_owned(),
            },
        }
    }
}

/// What a file holds of a search.
pub(super) fn tuned_profile(gpu: &Gpu, options: &TuneOptions, found: &Found) -> TunedProfile {
    let time = |op| {
        let (_, times) = found.times.iter().find(|(of, _)| *of == op)?;
        let operation = options.label(op);
        Some(Measured { operation, default_us: times.default_us, tuned_us: times.own_us })
    };
    TunedProfile::new(&gpu.info, &found.profile, options.subject(), OPS.into_iter().filter_map(time).collect())
}

impl TuneReport {
    pub(super) fn new(gpu: &Gpu, options: &TuneOptions, command: String, found: &Found) -> Self {
        Self {
            head: Head::new(Self::KIND, Some(command), Some(options.seed)),
            adapter: Adapter::of(gpu),
            seconds: 0.0,
            complete: found.ended.is_none(),
            tried: found.tried.iter().map(TriedReport::of).collect(),
            differences: found.differences.clone(),
            profile: tuned_profile(gpu, options, found),
        }
    }

    /// The result in a line.
    pub fn summary(&self) -> String {
        let found = match (&*self.differences, self.complete) {
            ("", true) => "nothing is faster than the device's own profile beyond the noise".to_owned(),
            ("", false) => "nothing faster than the device's own profile was found so far".to_owned(),
            (differences, _) => format!("faster than the device's own profile: {differences}"),
        };
        format!("{found} ({:.0} s)", self.seconds)
    }
}

impl Report for TuneReport {
    const KIND: &'static str = "tune";

    fn to_csv(&self) -> Result<String, csv::Error> {
        select_csv("setting,differences,decode_over_default,prefill_over_default,outcome", &self.tried)
    }

    fn page(&self) -> Page {
        let tried = Table::of(
            "tried",
            "Profiles that were tried, and their times as shares of the device's own",
            3,
            &self.tried,
            &[
                ("setting", &|tried| Some(tried.setting.clone())),
                ("profile", &|tried| Some(tried.differences.clone())),
                ("outcome", &|tried| Some(tried.outcome.clone())),
                ("decode", &|tried| tried.decode_over_default.map(ratio)),
                ("prefill", &|tried| tried.prefill_over_default.map(ratio)),
            ],
        );
        let measured = Table::of(
            "measured",
            "What was found, measured beside the device's own",
            1,
            &self.profile.measured,
            &[
                ("operation", &|measured| Some(measured.operation.clone())),
                ("own profile", &|measured| Some(duration(measured.default_us))),
                ("found", &|measured| Some(duration(measured.tuned_us))),
                ("found ÷ own", &|measured| Some(ratio(measured.tuned_us / measured.default_us))),
            ],
        );
        Page {
            head: self.head.clone(),
            title: format!("Paged attention tuned for {}", self.adapter.name),
            facts: vec![self.adapter.fact(), ("tuned for", self.profile.tuned_for.clone())],
            notices: self.adapter.notice().into_iter().collect(),
            sections: [("Profiles", tried), ("Times", measured)]
                .map(|(heading, table)| Section::table(heading, table))
                .into(),
            summary: vec![self.summary()],
        }
    }
}
