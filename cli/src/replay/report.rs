//! The whole output of a replay.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::clock::ClockRecord;
use super::execute::ExecuteRecord;
use super::record::ServeRecord;
use crate::report;
use crate::trace::{Log, TimeUnit};
use wgpu_paged_attention::config::CacheConfig;

/// Version of the format of [`ReplayReport`].
const SCHEMA: u32 = 1;

/// A log served by a contiguous and by a paged cache of the same size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayReport {
    /// Always `replay`.
    pub kind: String,
    /// Version of this format.
    pub schema: u32,
    pub command: String,
    pub version: String,
    pub seed: u64,
    pub log: LogRecord,
    pub model: String,
    /// The paged cache; the contiguous one differs in `paged` alone.
    pub cache: CacheConfig,
    pub bytes_per_token: u64,
    pub step_tokens: u32,
    pub clock: ClockRecord,
    /// The contiguous cache, unless it was left out.
    pub contiguous: Option<ServeRecord>,
    /// The paged cache, unless it was left out.
    pub paged: Option<ServeRecord>,
    /// The steps that ran through the kernels, if any were to.
    pub executed: Option<ExecuteRecord>,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
}

/// A number of both sides.
#[derive(Serialize)]
struct CsvRow {
    metric: String,
    contiguous: Option<String>,
    paged: Option<String>,
}

/// The numbers of a record under their paths: `utilisation.p95`.
fn flatten(numbers: &mut BTreeMap<String, String>, path: &str, value: &Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(numbers, &path, value);
            }
        }
        Value::Number(number) => {
            numbers.insert(path.to_owned(), number.to_string());
        }
        _ => {}
    }
}

/// Where requests come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    pub name: String,
    pub requests: usize,
    /// Bad rows that were left out.
    pub skipped: u64,
    /// Tokens that an id of a prefix stands for, where the log has ids.
    pub tokens_per_id: Option<u32>,
    /// The unit of the log's times; `None` for drawn requests, and in reports of older versions.
    #[serde(default)]
    pub time_unit: Option<TimeUnit>,
    #[serde(default)]
    pub time_unit_by: Option<String>,
}

impl LogRecord {
    pub fn of(log: &Log) -> Self {
        let (time_unit, time_unit_by) = log.time.clone().unzip();
        Self {
            time_unit,
            time_unit_by,
            name: log.name.clone(),
            requests: log.requests.len(),
            skipped: log.skipped,
            tokens_per_id: log.tokens_per_id,
        }
    }
}

impl ReplayReport {
    /// Version of the format that this program writes.
    pub const SCHEMA: u32 = SCHEMA;
    /// What [`kind`](Self::kind) says.
    pub const KIND: &'static str = "replay";

    /// The report as indented JSON.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        report::to_json(self)
    }

    /// Every number of both sides as CSV: metric, contiguous, paged. The course is in the JSON alone.
    pub fn to_csv(&self) -> Result<String, csv::Error> {
        let flat = |side: &Option<ServeRecord>| -> Result<BTreeMap<String, String>, csv::Error> {
            let mut numbers = BTreeMap::new();
            if let Some(side) = side {
                let value = serde_json::to_value(side).map_err(io::Error::from)?;
                flatten(&mut numbers, "", &value);
            }
            Ok(numbers)
        };
        let (mut contiguous, mut paged) = (flat(&self.contiguous)?, flat(&self.paged)?);
        let metrics: BTreeSet<_> = contiguous.keys().chain(paged.keys()).cloned().collect();
        report::to_csv(metrics.into_iter().map(|metric| CsvRow {
            contiguous: contiguous.remove(&metric),
            paged: paged.remove(&metric),
            metric,
        }))
    }

    /// How much more the paged cache serves at a time, and how much faster: mean concurrency and generated tokens per
    /// second, paged over contiguous. `None` where a side is missing.
    pub fn gains(&self) -> Option<(f64, f64)> {
        let (paged, contiguous) = self.paged.as_ref().zip(self.contiguous.as_ref())?;
        let (more, fewer) = paged.concurrency.zip(contiguous.concurrency)?;
        (contiguous.output_tokens_per_s > 0.0)
            .then(|| (more.mean / fewer.mean, paged.output_tokens_per_s / contiguous.output_tokens_per_s))
    }
}
