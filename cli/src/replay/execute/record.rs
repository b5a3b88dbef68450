//! What came of executing a schedule, and the query tokens of a step.

use serde::{Deserialize, Serialize};

use crate::replay::ObservedStep;
use crate::report::Adapter;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecuteRecord {
    pub adapter: Adapter,
    pub layers: u32,
    pub steps: u64,
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
    pub step: u64,
    /// The request, counted from 0 in the log.
    pub request: usize,
    pub position: u32,
    pub layer: u32,
    pub kv_head: u32,
    pub error: String,
}

#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) request: usize,
    pub(super) position: u32,
    pub(super) token: u32,
}

/// The rows of a step, in the order of its plan.
pub(super) fn rows_of(step: &ObservedStep<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut tokens = Vec::new();
    for growth in step.growth {
        let (request, first) = (growth.request, growth.len);
        tokens.clear();
        step.tokens.extend(&mut tokens, request as u64, &step.log.requests[request], first, growth.new_tokens);
        rows.extend((first..).zip(&tokens).map(|(position, &token)| Row { request, position, token }));
    }
    rows
}
