//! The whole output of a replay.

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::config::CacheConfig;

use super::{ClockRecord, ExecuteRecord, ServeRecord};
use crate::report::Head;
use crate::trace::{Log, TimeUnit};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplayReport {
    #[serde(flatten)]
    pub head: Head,
    pub log: LogRecord,
    pub model: String,
    /// The paged cache; the contiguous one differs in `paged` alone.
    pub cache: CacheConfig,
    pub bytes_per_token: u64,
    pub step_tokens: u32,
    pub clock: ClockRecord,
    pub contiguous: Option<ServeRecord>,
    pub paged: Option<ServeRecord>,
    pub executed: Option<ExecuteRecord>,
    pub interrupted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogRecord {
    pub name: String,
    pub requests: usize,
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
    /// How much more the paged cache serves at a time, and how much faster: mean concurrency and generated tokens per
    /// second, paged over contiguous. `None` where a side is missing.
    pub fn gains(&self) -> Option<(f64, f64)> {
        let (paged, contiguous) = self.paged.as_ref().zip(self.contiguous.as_ref())?;
        let (more, fewer) = paged.concurrency.zip(contiguous.concurrency)?;
        (contiguous.output_tokens_per_s > 0.0)
            .then(|| (more.mean / fewer.mean, paged.output_tokens_per_s / contiguous.output_tokens_per_s))
    }
}
