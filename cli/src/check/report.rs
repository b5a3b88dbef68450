//! What a check found.

use serde::{Deserialize, Serialize};

use super::{Answer, CheckOptions, CheckScene, Variant};
use crate::bench::report::Adapter;
use crate::report;
use wgpu_paged_attention::reference::Mismatch;
use wgpu_paged_attention::testkit::{Fault, Verdict};

/// Version of the JSON's form. Within one version fields are added, never renamed or dropped.
pub const SCHEMA: u32 = 1;

/// A whole check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    /// [`SCHEMA`].
    pub schema: u32,
    /// What was checked on.
    pub adapter: Adapter,
    /// Seed of every random input.
    pub seed: u64,
    /// Whether only a few scenes were run.
    pub quick: bool,
    /// Time it took, compilation and oracle included.
    pub seconds: f64,
    /// One per form of the kernel.
    pub groups: Vec<GroupReport>,
    /// Planted faults: all of them must have been noticed.
    pub self_test: Vec<PlantedFault>,
}

/// All scenes of one form of the kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Storage format of K and V.
    pub kv_dtype: String,
    /// `paged` or `contiguous`.
    pub mode: String,
    /// How lanes hand values to each other, and how many they are.
    pub exchange: String,
    /// Scenarios run.
    pub scenes: usize,
    /// Largest absolute error of the scenes that passed.
    pub worst_error: f64,
    /// Scenarios that did not pass.
    pub failures: Vec<SceneFailure>,
}

/// A scene that did not pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SceneFailure {
    /// The form of the kernel.
    pub kernel: String,
    /// Heads, block size and what else the scene is made of.
    pub scene: String,
    /// Tokens of every sequence.
    pub seq_lens: Vec<u32>,
    /// What went wrong, in words.
    pub error: String,
    /// Element of the output or the log-sum-exp; absent if nothing was computed.
    pub index: Option<usize>,
    /// What the device computed; absent if that is no finite number.
    pub got: Option<f64>,
    /// What the oracle computed; absent if that is no finite number.
    pub want: Option<f64>,
    /// Difference allowed.
    pub tolerance: Option<f64>,
}

/// A deliberate error, and whether it was noticed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlantedFault {
    /// The fault.
    pub fault: String,
    /// The form of the kernel.
    pub kernel: String,
    /// Whether the output was called wrong.
    pub noticed: bool,
    /// What was said of it.
    pub answer: String,
}

impl CheckReport {
    pub(super) fn new(adapter: Adapter, options: &CheckOptions) -> Self {
        let CheckOptions { quick, seed } = *options;
        Self { schema: SCHEMA, adapter, seed, quick, seconds: 0.0, groups: Vec::new(), self_test: Vec::new() }
    }

    /// Whether every scene passed and every planted fault was noticed.
    pub fn passed(&self) -> bool {
        !self.groups.is_empty() && self.failures().next().is_none() && !self.is_blind()
    }

    /// Whether the check cannot tell right from wrong here: a planted fault passed, or none was tried.
    pub fn is_blind(&self) -> bool {
        self.self_test.is_empty() || self.self_test.iter().any(|planted| !planted.noticed)
    }

    /// The scenes that did not pass.
    pub fn failures(&self) -> impl Iterator<Item = &SceneFailure> {
        self.groups.iter().flat_map(|group| &group.failures)
    }

    /// The report as indented JSON.
    ///
    /// # Errors
    /// What serde says; numbers that are not finite are left out beforehand.
    pub fn to_json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// A row for every form of the kernels as CSV with a header.
    ///
    /// # Errors
    /// None that is known of: every row is flat.
    pub fn to_csv(&self) -> Result<String, csv::Error> {
        report::to_csv(self.groups.iter().map(|group| CsvRow {
            kv_dtype: &group.kv_dtype,
            mode: &group.mode,
            exchange: &group.exchange,
            scenes: group.scenes,
            wrong: group.failures.len(),
            worst_error: group.worst_error,
        }))
    }
}

/// A form of the kernel in a table.
#[derive(Serialize)]
struct CsvRow<'a> {
    kv_dtype: &'a str,
    mode: &'a str,
    exchange: &'a str,
    scenes: usize,
    wrong: usize,
    worst_error: f64,
}

impl GroupReport {
    pub(super) fn new(variant: &Variant) -> Self {
        Self {
            kv_dtype: variant.format.to_string(),
            mode: variant.mode().to_owned(),
            exchange: variant.lane_comm.to_string(),
            scenes: 0,
            worst_error: 0.0,
            failures: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, scene: &CheckScene, variant: &Variant, answer: &Answer) {
        self.scenes += 1;
        match answer {
            Ok(error) => self.worst_error = self.worst_error.max(*error),
            Err(verdict) => self.failures.push(SceneFailure::new(scene, variant.label(), verdict)),
        }
    }
}

impl PlantedFault {
    /// Only a wrong output is a fault noticed: a refusal never saw it.
    pub(super) fn new(fault: Fault, variant: &Variant, answer: &Answer) -> Self {
        let (noticed, answer) = match answer {
            Ok(error) => (false, format!("taken for right, largest error {error:e}")),
            Err(verdict) => (matches!(verdict, Verdict::Output(_) | Verdict::Lse(_)), verdict.to_string()),
        };
        Self { fault: fault.name().to_owned(), kernel: variant.label(), noticed, answer }
    }
}

impl SceneFailure {
    fn new(scene: &CheckScene, kernel: String, verdict: &Verdict) -> Self {
        let finite = |value: f64| value.is_finite().then_some(value);
        let (index, got, want, tolerance) = match verdict {
            Verdict::Output(Mismatch::Value { index, got, want, tolerance })
            | Verdict::Lse(Mismatch::Value { index, got, want, tolerance }) => {
                (Some(*index), finite((*got).into()), finite(*want), finite(*tolerance))
            }
            _ => (None, None, None, None),
        };
        let (scene, seq_lens) = (scene.label(), scene.spec.seq_lens.clone());
        Self { kernel, scene, seq_lens, error: verdict.to_string(), index, got, want, tolerance }
    }
}
