//! What came of executing a schedule.

use serde::{Deserialize, Serialize};

use crate::bench::report::Adapter;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecuteRecord {
    /// The device.
    pub adapter: Adapter,
    /// Layers that were executed, of those of the model.
    pub layers: u32,
    /// Steps.
    pub steps: u64,
    /// Tokens appended, each a query as well.
    pub tokens: u64,
    /// Blocks copied because their writers shared them.
    pub copied_blocks: u64,
    /// Rows compared with the oracle.
    pub checked_rows: u64,
    /// Of these, rows that are wrong.
    pub wrong_rows: u64,
    /// The first of them.
    pub wrong: Vec<WrongRow>,
    /// Largest difference from the oracle of the rows that are right.
    pub max_abs_error: f64,
}

/// A row that the device computed wrongly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrongRow {
    /// The step, counted from 1.
    pub step: u64,
    /// The request, counted from 0 in the log.
    pub request: usize,
    /// The token.
    pub position: u32,
    /// The layer.
    pub layer: u32,
    /// The KV head.
    pub kv_head: u32,
    /// What differs.
    pub error: String,
}
