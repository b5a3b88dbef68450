//! The fields of a `config.json`, each checked as it is read. Many have several names, of which the first is the usual one.

use serde_json::{Map, Value};

use super::ModelError;
use crate::common::clip;

pub(super) const LAYERS: &[&str] =
    &["num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"];
pub(super) const Q_HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads", "num_heads", "num_query_heads"];
#[rustfmt::skip]
pub(super) const KV_HEADS: &[&str] = &["num_key_value_heads", "n_kv_heads", "num_kv_heads", "n_head_kv", "n_kv_head",
    "kv_n_heads", "num_query_groups", "num_attention_groups"];
#[rustfmt::skip]
pub(super) const HEAD_DIM: &[&str] = &["head_dim", "d_kv", "attention_head_dim", "kv_channels", "attention_head_size",
    "head_size", "d_head", "hidden_size_per_head"];
pub(super) const HIDDEN: &[&str] = &["hidden_size", "n_embd", "d_model", "n_embed", "model_dim", "dim"];
#[rustfmt::skip]
pub(super) const MAX_LEN: &[&str] = &["max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length",
    "max_sequence_length", "max_context_length", "max_seq_length"];
pub(super) const WINDOW: &[&str] = &["sliding_window", "sliding_window_size", "attention_window_size", "window_size"];

const NESTED: [&str; 5] = ["text_config", "llm_config", "language_config", "thinker_config", "decoder_config"];
const ATTENTION: &str = "attn_config";

#[derive(Clone)]
pub(super) struct Fields<'a> {
    pub(super) file: &'a str,
    pub(super) path: String,
    pub(super) object: &'a Map<String, Value>,
    /// What the kind of model takes for a field that is not there. A `null` is there.
    pub(super) defaults: &'static [(&'static str, u32)],
}

impl<'a> Fields<'a> {
    pub(super) fn of(file: &'a str, object: &'a Map<String, Value>) -> Self {
        Self { file, path: String::new(), object, defaults: &[] }
    }

    pub(super) fn levels(self) -> Vec<Self> {
        let mut levels = vec![self];
        while let Some(fields) = levels.last()
            && let Some((name, object)) =
                NESTED.iter().find_map(|name| Some((name, fields.object.get(*name)?.as_object()?)))
        {
            let path = format!("{}{name}.", fields.path);
            levels.push(Self { path, object, ..fields.clone() });
        }
        levels
    }

    pub(super) fn get(&self, names: &[&'static str]) -> Option<(&'static str, &'a Value)> {
        let attention = self.object.get(ATTENTION).and_then(Value::as_object);
        let found = |name: &&'static str| {
            let value = self.object.get(*name).or_else(|| attention?.get(*name));
            let is_none = |value: &Value| value.is_null() || WINDOW.contains(name) && no_window(value);
            Some((*name, value.filter(|value| !is_none(value))?))
        };
        names.iter().find_map(found)
    }

    /// A whole number from 1 to `max`; `None` if all of the names are `null`, or not there and the first without a default.
    pub(super) fn count(&self, names: &[&'static str], max: u32) -> Result<Option<u32>, ModelError> {
        match self.get(names) {
            Some((name, value)) => self.number(name, value, max).map(Some),
            None if self.object.contains_key(names[0]) => Ok(None),
            None => Ok(self.defaults.iter().find(|(name, _)| *name == names[0]).map(|(_, value)| *value)),
        }
    }

    pub(super) fn number(&self, name: &str, value: &Value, max: u32) -> Result<u32, ModelError> {
        match value.as_u64().map(u32::try_from) {
            Some(Ok(count)) if (1..=max).contains(&count) => Ok(count),
            _ => Err(self.wrong(name, value, format!("a whole number from 1 to {max}"))),
        }
    }

    /// A number for every layer: the same for all, or a list.
    pub(super) fn per_layer(
        &self,
        names: &[&'static str],
        max: u32,
        num_layers: u32,
    ) -> Result<Option<Vec<u32>>, ModelError> {
        let Some((name, Value::Array(list))) = self.get(names) else {
            return Ok(self.count(names, max)?.map(|count| vec![count; num_layers as usize]));
        };
        self.check_len(name, list, num_layers)?;
        list.iter().map(|value| self.number(name, value, max)).collect::<Result<_, _>>().map(Some)
    }

    pub(super) fn check_len(&self, name: &str, list: &[Value], num_layers: u32) -> Result<(), ModelError> {
        if list.len() == num_layers as usize {
            return Ok(());
        }
        let items = Value::String(format!("{} items", list.len()));
        Err(self.wrong(name, &items, format!("one for each of the {num_layers} layers")))
    }

    pub(super) fn required(&self, names: &[&'static str], max: u32) -> Result<u32, ModelError> {
        self.count(names, max)?.ok_or_else(|| self.missing(names))
    }

    /// `true` or `false`, or `default` if it is `null` or not there.
    pub(super) fn flag(&self, name: &'static str, default: bool) -> Result<bool, ModelError> {
        match self.get(&[name]) {
            None => Ok(default),
            Some((_, Value::Bool(flag))) => Ok(*flag),
            Some((_, value)) => Err(self.wrong(name, value, "true or false".into())),
        }
    }

    /// A list, or nothing if it is `null` or not there.
    pub(super) fn list(&self, name: &'static str) -> Result<Option<&'a [Value]>, ModelError> {
        match self.get(&[name]) {
            None => Ok(None),
            Some((_, Value::Array(values))) => Ok(Some(values)),
            Some((_, value)) => Err(self.wrong(name, value, "a list".into())),
        }
    }

    pub(super) fn missing(&self, names: &[&'static str]) -> ModelError {
        let others = names[1..].join(", ");
        let others = if others.is_empty() { others } else { format!(", nor any of {others}") };
        ModelError::Missing { file: self.file.to_owned(), field: format!("{}{}", self.path, names[0]), others }
    }

    pub(super) fn wrong(&self, name: &str, value: &Value, expected: String) -> ModelError {
        let field = format!("{}{name}", self.path);
        ModelError::Field { file: self.file.to_owned(), field, value: shown(value), expected }
    }
}

/// Some write a window of 0 or -1 where they have none.
pub(super) fn no_window(value: &Value) -> bool {
    value.is_null() || *value == 0 || *value == -1
}

pub(super) fn shown(value: &Value) -> String {
    clip(&value.to_string())
}
