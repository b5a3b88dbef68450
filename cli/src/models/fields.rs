//! The fields of a `config.json`, each checked as it is read.

use serde_json::{Map, Value};

use super::ModelError;

/// The fields of one model.
pub(super) struct Fields<'a> {
    pub(super) file: &'a str,
    /// Where they are nested: `text_config.`, or nothing.
    pub(super) path: &'static str,
    pub(super) object: &'a Map<String, Value>,
    /// What the kind of model takes for a field that is not there. A `null` is there.
    pub(super) defaults: &'static [(&'static str, u32)],
}

impl Fields<'_> {
    /// A whole number from 1 to `max`; `None` if it is `null`, or not there and without a default.
    pub(super) fn count(&self, field: &str, max: u32) -> Result<Option<u32>, ModelError> {
        let default = || self.defaults.iter().find(|(name, _)| *name == field).map(|(_, value)| *value);
        match self.object.get(field) {
            None => Ok(default()),
            Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64().map(u32::try_from) {
                Some(Ok(count)) if (1..=max).contains(&count) => Ok(Some(count)),
                _ => Err(self.wrong(field, value, format!("a whole number from 1 to {max}"))),
            },
        }
    }

    /// The same, where the model is none without it.
    pub(super) fn required(&self, field: &str, max: u32) -> Result<u32, ModelError> {
        self.count(field, max)?.ok_or_else(|| self.missing(field))
    }

    /// `true` or `false`, or `default` if it is `null` or not there.
    pub(super) fn flag(&self, field: &str, default: bool) -> Result<bool, ModelError> {
        match self.object.get(field) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(self.wrong(field, value, "true or false".into())),
        }
    }

    /// A list, or nothing if it is `null` or not there.
    pub(super) fn list(&self, field: &str) -> Result<Option<&[Value]>, ModelError> {
        match self.object.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(values)) => Ok(Some(values)),
            Some(value) => Err(self.wrong(field, value, "a list".into())),
        }
    }

    pub(super) fn missing(&self, field: &str) -> ModelError {
        ModelError::Missing { file: self.file.to_owned(), field: format!("{}{field}", self.path) }
    }

    pub(super) fn wrong(&self, field: &str, value: &Value, expected: String) -> ModelError {
        let field = format!("{}{field}", self.path);
        ModelError::Field { file: self.file.to_owned(), field, value: shown(value), expected }
    }
}

/// A value as it is written, shortened.
pub(super) fn shown(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}
