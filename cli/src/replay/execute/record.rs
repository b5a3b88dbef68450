//! What came of executing a schedule.

use serde::{Deserialize, Serialize};

use crate::report::Adapter;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecuteRecord {
    pub adapter: Adapter,
    pub layers: u32,
    pub steps: u64,
    /// Tokens appended, each a query as well.
    pub tokens: u64,
    pub copied_blocks: u64,
    pub checked_rows: u64,
    pub wrong_rows: u64,
    pub wrong: Vec<WrongRow>,
    /// Largest difference from the oracle of the rows that are right.
    pub max_abs_error: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrongRow {
    /// The step, counted from 1.
    pub step: u64,
    /// The request, counted from 0 in the log.
    pub request: usize,
    pub position: u32,
    pub layer: u32,
    pub kv_head: u32,
    pub error: String,
}
