//! A `config.json` as Hugging Face publishes it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};

use super::families::{FAMILIES, Family, Windows};
use super::fields::{Fields, shown};
use super::{Model, ModelError, weights};
use crate::bench::models::MAX_Q_HEADS;
use wgpu_paged_attention::config::{MAX_HEAD_DIM, MAX_LAYERS_OR_HEADS, MAX_SEQ_LEN};

/// Far more than any configuration has.
const MAX_BYTES: u64 = 1 << 20;
/// The field of multi-head latent attention.
const LATENT: &str = "kv_lora_rank";
/// Where a model with several parts keeps the fields of its language model.
const NESTED: &str = "text_config";

/// Reads a file.
pub(super) fn read(path: &Path) -> Result<Model, ModelError> {
    let file = path.display().to_string();
    let mut text = Vec::new();
    File::open(path)
        .and_then(|input| input.take(MAX_BYTES + 1).read_to_end(&mut text))
        .map_err(|source| ModelError::Io { file: file.clone(), source })?;
    if text.len() as u64 > MAX_BYTES {
        return Err(ModelError::TooLarge { file, limit: MAX_BYTES });
    }
    let folder = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    parse(&text, &file, folder)
}

/// Reads its text; a model without a `name` is called after its kind.
pub(super) fn parse(text: &[u8], file: &str, name: Option<String>) -> Result<Model, ModelError> {
    let root: Map<String, Value> =
        serde_json::from_slice(text).map_err(|source| ModelError::Json { file: file.to_owned(), source })?;
    let root = Fields { file, path: "", object: &root, defaults: &[] };
    let model_type = match root.object.get("model_type") {
        Some(Value::String(model_type)) => model_type,
        Some(other) => return Err(root.wrong("model_type", other, "the name of a kind of model".into())),
        None => return Err(root.missing("model_type")),
    };
    let nested = match root.object.get(NESTED) {
        Some(Value::Object(nested)) => Some(nested),
        _ => None,
    };
    for (path, object) in [("", Some(root.object)), ("text_config.", nested)] {
        if let Some(value) = object.and_then(|object| object.get(LATENT)).filter(|value| !value.is_null()) {
            let (file, field, value) = (file.to_owned(), format!("{path}{LATENT}"), shown(value));
            return Err(ModelError::LatentAttention { file, field, value });
        }
    }
    let Some(family) = FAMILIES.iter().find(|family| family.model_type == model_type) else {
        let known = FAMILIES.map(|family| family.model_type).join(", ");
        let given = model_type.chars().take(80).collect();
        return Err(ModelError::UnknownType { file: file.to_owned(), given, known });
    };
    let defaults = family.defaults;
    let fields = match (model_type.as_str(), nested) {
        ("gemma3", Some(object)) => Fields { file, path: "text_config.", object, defaults },
        ("gemma3", None) => return Err(root.missing(NESTED)),
        _ => Fields { defaults, ..root },
    };
    model(&fields, family, name.unwrap_or_else(|| model_type.clone()))
}

fn model(fields: &Fields<'_>, family: &Family, name: String) -> Result<Model, ModelError> {
    let num_layers = fields.required("num_hidden_layers", MAX_LAYERS_OR_HEADS)?;
    let num_q_heads = fields.required("num_attention_heads", MAX_Q_HEADS)?;
    let num_kv_heads = fields.count("num_key_value_heads", MAX_Q_HEADS)?.unwrap_or(num_q_heads);
    if !num_q_heads.is_multiple_of(num_kv_heads) {
        let expected = format!("a divisor of num_attention_heads {num_q_heads}");
        return Err(fields.wrong("num_key_value_heads", &num_kv_heads.into(), expected));
    }
    let head_dim = match fields.count("head_dim", MAX_HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None => {
            let hidden_size = fields.required("hidden_size", u32::MAX)?;
            if !hidden_size.is_multiple_of(num_q_heads) || hidden_size / num_q_heads > MAX_HEAD_DIM {
                let expected =
                    format!("a multiple of num_attention_heads {num_q_heads}, up to {MAX_HEAD_DIM} times as large");
                return Err(fields.wrong("hidden_size", &hidden_size.into(), expected));
            }
            hidden_size / num_q_heads
        }
    };
    let windowed_layers = windowed_layers(fields, family, num_layers)?;
    let window = match windowed_layers {
        0 => None,
        _ => Some(fields.required("sliding_window", u32::MAX)?),
    };
    let mut model = Model {
        name: name.into(),
        num_layers,
        num_q_heads,
        num_kv_heads,
        head_dim,
        max_seq_len: fields.required("max_position_embeddings", MAX_SEQ_LEN)?,
        windowed_layers,
        window,
        num_weights: None,
    };
    model.num_weights = weights::count(fields, family, &model)?;
    Ok(model)
}

/// Layers with a window.
fn windowed_layers(fields: &Fields<'_>, family: &Family, num_layers: u32) -> Result<u32, ModelError> {
    if let Some(types) = fields.list("layer_types")? {
        if types.len() != num_layers as usize {
            let expected = format!("one for each of num_hidden_layers {num_layers}");
            return Err(fields.wrong("layer_types", &Value::String(format!("{} types", types.len())), expected));
        }
        let mut windowed = 0;
        for layer_type in types {
            match layer_type.as_str() {
                Some("sliding_attention") => windowed += 1,
                Some("full_attention") => {}
                _ => {
                    let expected = "made of full_attention and sliding_attention".to_owned();
                    return Err(fields.wrong("layer_types", layer_type, expected));
                }
            }
        }
        return Ok(windowed);
    }
    let has_window = fields.count("sliding_window", u32::MAX)?.is_some();
    Ok(match family.windows {
        Windows::None => 0,
        Windows::All => num_layers * u32::from(has_window),
        Windows::Upper | Windows::Listed if !fields.flag("use_sliding_window", false)? || !has_window => 0,
        Windows::Upper => {
            let first = match fields.object.get("max_window_layers") {
                // All layers, which `count` takes for no number.
                Some(Value::Number(number)) if number.as_u64() == Some(0) => 0,
                _ => fields.required("max_window_layers", u32::MAX)?,
            };
            num_layers.saturating_sub(first)
        }
        Windows::Listed => return Err(fields.missing("layer_types")),
        Windows::AllBut(_) if !has_window => 0,
        Windows::AllBut(default) => {
            let pattern = match fields.count("sliding_window_pattern", u32::MAX)? {
                Some(pattern) => pattern,
                None => fields.count("_sliding_window_pattern", u32::MAX)?.unwrap_or(default),
            };
            num_layers - num_layers / pattern
        }
    })
}
