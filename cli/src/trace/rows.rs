//! From the texts of a row to a request.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::{
    BAILIAN, BAILIAN_TOKENS_PER_ID, Form, MOONCAKE_TOKENS_PER_ID, PrefixIds, Problem, ReadOptions, Request, Times, ids,
};
use crate::common::clip;

/// A request, and its arrival in billionths of the log's unit since the first one.
pub(super) type Row = (i128, Request);

pub(super) struct Rows {
    form: &'static Form,
    pub(super) times: Times,
    /// Tokens of one id, if that is known in advance; it limits how many a prompt has.
    pub(super) tokens_per_id: Option<u32>,
}

impl Rows {
    pub(super) fn new(form: &'static Form, options: &ReadOptions) -> Result<Self, Problem> {
        let times = Times::new(form.time, form.clock, options)?;
        Ok(Self { form, times, tokens_per_id: options.tokens_per_id })
    }

    pub(super) fn table(&mut self, fields: [&str; 3], ids: &str) -> Result<Row, Problem> {
        let prefix = ids::parse(ids).map_err(|id| self.no_ids(id, "an id or a range like 14-27"))?;
        self.request(fields, prefix)
    }

    pub(super) fn json(&mut self, text: &[u8]) -> Result<Row, Problem> {
        // Each value as it is written: numbers meet the same checks as those of a table, and keep all their digits.
        let object: HashMap<Cow<str>, &RawValue> = serde_json::from_slice(text).map_err(Problem::Json)?;
        let field = |name| object.get(name).map(|value| value.get()).ok_or(Problem::MissingColumn(name));
        let fields = [field(self.form.time)?, field(self.form.prompt)?, field(self.form.output)?];
        let bailian = object.contains_key(BAILIAN);
        if bailian {
            self.times.in_seconds_by = Some(BAILIAN);
        }
        self.tokens_per_id.get_or_insert(if bailian { BAILIAN_TOKENS_PER_ID } else { MOONCAKE_TOKENS_PER_ID });
        let ids = self.form.ids.and_then(|name| object.get(name)).map(|ids| ids.get());
        let prefix = match ids.map(serde_json::from_str).transpose().map_err(Problem::Json)? {
            None => PrefixIds::default(),
            Some(Value::Array(ids)) => {
                let id = |id: &Value| id.as_u64().map(|id| id..=id).ok_or_else(|| id.to_string());
                let ids: Result<Vec<_>, _> = ids.iter().map(id).collect();
                PrefixIds::new(ids.map_err(|id| self.no_ids(&id, "a whole number from 0"))?)
            }
            Some(other) => return Err(self.no_ids(&other.to_string(), "a list of ids")),
        };
        self.request(fields, prefix)
    }

    fn request(&mut self, [time, prompt, output]: [&str; 3], prefix: PrefixIds) -> Result<Row, Problem> {
        let time = self.times.read(time)?;
        let prompt_tokens = tokens(self.form.prompt, prompt)?;
        let output_tokens = tokens(self.form.output, output)?;
        let (ids, tokens_per_id) = (prefix.len(), self.tokens_per_id.unwrap_or(1));
        let limit = prompt_tokens.div_ceil(tokens_per_id);
        if ids > limit.into() {
            let field = self.form.ids.unwrap_or_default();
            return Err(Problem::TooManyIds { field, ids, prompt_tokens, limit, tokens_per_id });
        }
        // Only now: a bad row that is left out is no beginning and holds up none.
        Ok((self.times.accept(time), Request { arrival_ns: 0, prompt_tokens, output_tokens, prefix }))
    }

    fn no_ids(&self, id: &str, expected: &'static str) -> Problem {
        Problem::Value { field: self.form.ids.unwrap_or_default(), value: clip(id), expected }
    }
}

fn tokens(field: &'static str, value: &str) -> Result<u32, Problem> {
    value.parse().map_err(|_| Problem::Value {
        field,
        value: clip(value),
        expected: "a whole number from 0 to 4294967295",
    })
}
