//! What a check found.

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::reference::Mismatch;
use wgpu_paged_attention::testkit::Verdict;

use super::{Answer, CheckOptions, Variant};
use crate::common::Report;
use crate::html::{Page, Section};
use crate::report::fmt::{count, error};
use crate::report::{Adapter, SCHEMA, Table, select_csv};

const SHOWN: usize = 5;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    pub schema: u32,
    pub adapter: Adapter,
    pub seed: u64,
    pub quick: bool,
    /// Whether forms were run that the device would not choose.
    #[serde(default)]
    pub every_form: bool,
    pub seconds: f64,
    pub groups: Vec<GroupReport>,
    pub self_test: Vec<PlantedFault>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    pub kv_dtype: String,
    pub mode: String,
    /// The form of the kernel: how lanes hand values to each other, and how many they are, first.
    pub exchange: String,
    pub scenes: usize,
    pub worst_error: f64,
    pub failures: Vec<SceneFailure>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SceneFailure {
    pub kernel: String,
    pub scene: String,
    pub seq_lens: Vec<u32>,
    pub error: String,
    /// Element of the output or the log-sum-exp; absent if nothing was computed.
    pub index: Option<usize>,
    /// What the device computed; absent if that is no finite number.
    pub got: Option<f64>,
    pub want: Option<f64>,
    pub tolerance: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlantedFault {
    pub fault: String,
    pub kernel: String,
    pub noticed: bool,
    pub answer: String,
}

impl CheckReport {
    pub(super) fn new(adapter: Adapter, options: &CheckOptions) -> Self {
        let CheckOptions { quick, every_form, seed } = *options;
        let (groups, self_test) = (Vec::new(), Vec::new());
        Self { schema: SCHEMA, adapter, seed, quick, every_form, seconds: 0.0, groups, self_test }
    }

    pub fn passed(&self) -> bool {
        !self.groups.is_empty() && self.failures().next().is_none() && !self.is_blind()
    }

    /// Whether the check cannot tell right from wrong here: a planted fault passed, or none was tried.
    pub fn is_blind(&self) -> bool {
        self.self_test.is_empty() || self.self_test.iter().any(|planted| !planted.noticed)
    }

    fn summary(&self) -> Vec<String> {
        let noticed = self.self_test.iter().filter(|planted| planted.noticed).count();
        let mut lines =
            vec![format!("planted faults noticed: {noticed} of {} ({:.1} s)", self.self_test.len(), self.seconds)];
        let failed = self.failures().count();
        if failed > SHOWN {
            lines.push(format!("{} more; --json has all of them", failed - SHOWN));
        }
        lines.push(match (self.passed(), failed) {
            (true, _) => "passed: every form of the kernels agrees with the reference".to_owned(),
            (false, 0) => "FAILED: the check cannot tell right from wrong on this adapter".to_owned(),
            (false, failed) => format!(
                "FAILED: {failed} scenarios disagree with the reference; --seed {} shows them again, and a newer driver \
                 may be the remedy",
                self.seed
            ),
        });
        lines
    }

    pub fn failures(&self) -> impl Iterator<Item = &SceneFailure> + Clone {
        self.groups.iter().flat_map(|group| &group.failures)
    }
}

impl Report for CheckReport {
    const KIND: &'static str = "check";

    fn to_csv(&self) -> Result<String, csv::Error> {
        #[derive(Serialize)]
        struct Row<'a> {
            wrong: usize,
            #[serde(flatten)]
            group: &'a GroupReport,
        }
        let columns = "kv_dtype,mode,exchange,scenes,wrong,worst_error";
        select_csv(columns, self.groups.iter().map(|group| Row { wrong: group.failures.len(), group }))
    }

    fn page(&self) -> Page {
        let faults = Table::of(
            "faults",
            "Planted faults, which the check must notice",
            3,
            &self.self_test,
            &[
                ("planted fault", &|planted| Some(planted.fault.clone())),
                ("kernel", &|planted| Some(planted.kernel.clone())),
                ("noticed", &|planted| {
                    Some(if planted.noticed { "yes".into() } else { format!("NO: {}", planted.answer) })
                }),
            ],
        );
        let groups = Table::of(
            "groups",
            "Every form of the kernels against the reference",
            2,
            &self.groups,
            &[
                ("kernel", &|group| Some(format!("{} {} {}", group.kv_dtype, group.mode, group.exchange))),
                ("verdict", &|group| {
                    let wrong = group.failures.len();
                    Some(if wrong == 0 { "ok".to_owned() } else { format!("{wrong} WRONG") })
                }),
                ("scenarios", &|group| Some(count(group.scenes))),
                ("worst error", &|group| Some(error(group.worst_error))),
            ],
        );
        let failures = Table::of(
            "failures",
            "Scenarios that are wrong",
            4,
            self.failures().take(SHOWN),
            &[
                ("kernel", &|failure| Some(failure.kernel.clone())),
                ("WRONG scenario", &|failure| Some(failure.scene.clone())),
                ("lengths", &|failure| Some(format!("{:?}", failure.seq_lens))),
                ("what differs", &|failure| Some(failure.error.clone())),
            ],
        );
        Page {
            title: format!("Kernels checked on {}", self.adapter.name),
            facts: vec![self.adapter.fact()],
            notices: self.adapter.notice().into_iter().collect(),
            sections: [("Planted faults", faults), ("Kernels", groups), ("Wrong scenarios", failures)]
                .map(|(heading, table)| Section::table(heading, table))
                .into(),
            summary: self.summary(),
            ..Page::default()
        }
    }
}

impl GroupReport {
    pub(super) fn new(variant: &Variant) -> Self {
        Self {
            kv_dtype: variant.format.to_string(),
            mode: variant.mode().to_owned(),
            exchange: variant.profile.form_name(),
            scenes: 0,
            worst_error: 0.0,
            failures: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, scene: String, seq_lens: &[u32], variant: &Variant, answer: &Answer) {
        self.scenes += 1;
        match answer {
            Ok(error) => self.worst_error = self.worst_error.max(*error),
            Err(verdict) => self.failures.push(SceneFailure::new(scene, seq_lens, variant.label(), verdict)),
        }
    }
}

impl PlantedFault {
    /// Only a wrong output is a fault noticed: a refusal never saw it.
    pub(super) fn new(fault: &str, variant: &Variant, answer: &Answer) -> Self {
        let (noticed, answer) = match answer {
            Ok(error) => (false, format!("taken for right, largest error {error:e}")),
            Err(verdict) => {
                let noticed = matches!(verdict, Verdict::Output(_) | Verdict::Lse(_) | Verdict::Rows(_));
                (noticed, verdict.to_string())
            }
        };
        Self { fault: fault.to_owned(), kernel: variant.label(), noticed, answer }
    }
}

impl SceneFailure {
    fn new(scene: String, seq_lens: &[u32], kernel: String, verdict: &Verdict) -> Self {
        let finite = |value: f64| value.is_finite().then_some(value);
        let (index, got, want, tolerance) = match verdict {
            Verdict::Output(Mismatch::Value { index, got, want, tolerance })
            | Verdict::Lse(Mismatch::Value { index, got, want, tolerance }) => {
                (Some(*index), finite((*got).into()), finite(*want), finite(*tolerance))
            }
            _ => (None, None, None, None),
        };
        let seq_lens = seq_lens.to_vec();
        Self { kernel, scene, seq_lens, error: verdict.to_string(), index, got, want, tolerance }
    }
}
