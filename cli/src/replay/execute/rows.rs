//! The query tokens of a step.

use crate::replay::ObservedStep;

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
