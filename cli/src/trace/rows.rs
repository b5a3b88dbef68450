//! From the texts of a row to a request.

use jiff::civil::DateTime;
use serde_json::{Map, Value};

use super::forms::{Clock, Form};
use super::{PrefixIds, Request, TraceError, ids};

/// Turns rows into requests, and keeps the time going forward.
pub(super) struct Rows {
    pub(super) file: String,
    pub(super) form: &'static Form,
    /// Tokens of one id, if that is known in advance; it limits how many a prompt has.
    pub(super) tokens_per_id: Option<u32>,
    start: Option<DateTime>,
    previous_s: f64,
}

impl Rows {
    pub(super) fn new(file: String, form: &'static Form, tokens_per_id: Option<u32>) -> Self {
        Self { file, form, tokens_per_id, start: None, previous_s: 0.0 }
    }

    /// A row of a table.
    pub(super) fn table(&mut self, line: u64, fields: [&str; 3], ids: &str) -> Result<Request, TraceError> {
        let prefix = ids::parse(ids).map_err(|id| self.no_ids(line, id, "an id or a range like 14-27"))?;
        self.request(line, fields, prefix)
    }

    /// A line of JSON.
    pub(super) fn json(&mut self, line: u64, text: &[u8]) -> Result<Request, TraceError> {
        let object: Map<String, Value> = serde_json::from_slice(text).map_err(|source| TraceError::Json {
            file: self.file.clone(),
            line,
            source,
        })?;
        let field = |column| match object.get(column) {
            // A number's text, so that it meets the same checks as a field of a table.
            Some(value) => Ok(value.to_string()),
            None => Err(TraceError::MissingColumn { file: self.file.clone(), line, column }),
        };
        let fields = [field(self.form.time)?, field(self.form.prompt)?, field(self.form.output)?];
        let prefix = match self.form.ids.and_then(|name| object.get(name)) {
            None => PrefixIds::default(),
            Some(Value::Array(ids)) => {
                let id = |id: &Value| id.as_u64().map(|id| id..=id).ok_or_else(|| id.to_string());
                let ids: Result<Vec<_>, _> = ids.iter().map(id).collect();
                PrefixIds::new(ids.map_err(|id| self.no_ids(line, &id, "a whole number from 0"))?)
            }
            Some(other) => return Err(self.no_ids(line, &other.to_string(), "a list of ids")),
        };
        self.request(line, fields.each_ref().map(String::as_str), prefix)
    }

    fn request(
        &mut self,
        line: u64,
        [time, prompt, output]: [&str; 3],
        prefix: PrefixIds,
    ) -> Result<Request, TraceError> {
        let mut start = self.start;
        let request = Request {
            arrival_s: self.arrival(line, time, &mut start)?,
            prompt_tokens: self.tokens(line, self.form.prompt, prompt)?,
            output_tokens: self.tokens(line, self.form.output, output)?,
            prefix,
        };
        self.check_ids(line, &request)?;
        // Only now: a bad row that is left out is no beginning and holds up none.
        self.start = start;
        self.previous_s = request.arrival_s;
        Ok(request)
    }

    fn arrival(&self, line: u64, value: &str, start: &mut Option<DateTime>) -> Result<f64, TraceError> {
        let field = self.form.time;
        let wrong = |expected| TraceError::Time { file: self.file.clone(), line, field, value: clip(value), expected };
        let arrival_s = match self.form.clock {
            Clock::Seconds => number(value).ok_or_else(|| wrong("a finite number of seconds, 0 or later"))?,
            Clock::Milliseconds => {
                number(value).ok_or_else(|| wrong("a finite number of milliseconds, 0 or later"))? / 1e3
            }
            Clock::Calendar => {
                let time: DateTime =
                    value.parse().map_err(|_| wrong("a date and time like 2023-11-16 18:17:03.97996"))?;
                time.duration_since(*start.get_or_insert(time)).as_secs_f64()
            }
        };
        if arrival_s < self.previous_s {
            return Err(TraceError::Unsorted { file: self.file.clone(), line, field, value: clip(value) });
        }
        Ok(arrival_s)
    }

    fn tokens(&self, line: u64, field: &'static str, value: &str) -> Result<u32, TraceError> {
        value.parse().map_err(|_| TraceError::Tokens { file: self.file.clone(), line, field, value: clip(value) })
    }

    fn check_ids(&self, line: u64, request: &Request) -> Result<(), TraceError> {
        let (ids, prompt_tokens) = (request.prefix.len(), request.prompt_tokens);
        let limit = prompt_tokens.div_ceil(self.tokens_per_id.unwrap_or(1));
        if ids > limit.into() {
            let (file, field) = (self.file.clone(), self.ids_field());
            return Err(TraceError::TooManyIds { file, line, field, ids, prompt_tokens, limit });
        }
        Ok(())
    }

    fn no_ids(&self, line: u64, id: &str, expected: &'static str) -> TraceError {
        TraceError::Ids { file: self.file.clone(), line, field: self.ids_field(), value: clip(id), expected }
    }

    fn ids_field(&self) -> &'static str {
        self.form.ids.unwrap_or_default()
    }
}

/// A finite number from 0 on. Minus zero becomes zero.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0).map(|value| value + 0.0)
}

/// Enough of a text to recognise it in a message.
pub(super) fn clip(text: &str) -> String {
    text.chars().take(80).collect()
}
