//! A `config.json` as Hugging Face publishes it, read by its fields: a kind of model that is not known by name is one too.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value};
use wgpu_paged_attention::config::{MAX_HEAD_DIM, MAX_LAYERS_OR_HEADS, MAX_SEQ_LEN};

use super::layers::Kind;
use super::{
    ANY, FAMILIES, Family, Fields, HEAD_DIM, HIDDEN, KV_HEADS, LAYERS, MAX_LEN, MAX_Q_HEADS, Mlp, Model, ModelError,
    Q_HEADS, layers, shown, weights,
};
use crate::common::python_json::without_nan;

const MAX_BYTES: u64 = 1 << 20;
const PER_LAYER: &[&str] = &["num_key_value_heads_per_layer"];
const LATENT: &str = "kv_lora_rank";
/// Fields that give some layers, or V, other sizes than the rest, which one cache cannot have.
const OTHER_SIZES: [(&str, &[&str]); 5] = [
    ("v_head_dim", HEAD_DIM),
    ("global_head_dim", HEAD_DIM),
    ("swa_head_dim", HEAD_DIM),
    ("num_global_key_value_heads", KV_HEADS),
    ("swa_num_key_value_heads", KV_HEADS),
];

/// Kinds that this cache cannot serve, and what they are not.
#[rustfmt::skip]
const OTHER_KINDS: [(&[&str], &str); 3] = [
    (&["albert", "beit", "bert", "big_bird", "camembert", "clip_text_model", "clip_vision_model", "convbert", "deberta",
        "deberta-v2", "deit", "dinov2", "distilbert", "electra", "ernie", "esm", "eurobert", "flaubert", "hubert", "longformer",
        "mobilebert", "modernbert", "mpnet", "neobert", "nomic_bert", "roberta", "roberta-prelayernorm", "siglip_text_model",
        "siglip_vision_model", "squeezebert", "vit", "vit_mae", "wav2vec2", "wavlm", "xlm", "xlm-roberta", "xlm-roberta-xl"],
        "a decoder: an encoder sees all tokens at once and caches nothing"),
    (&["phi4flash"], "of plain attention: its layers subtract two attentions, and half of them read the K and V of another"),
    (&["hymba"], "of plain attention: its layers add a state to it, share K and V, and all see tokens of no text"),
];

pub(super) fn read(path: &Path, max_len: Option<u32>) -> Result<Model, ModelError> {
    let file = path.display().to_string();
    let mut text = Vec::new();
    File::open(path)
        .and_then(|input| input.take(MAX_BYTES + 1).read_to_end(&mut text))
        .map_err(|source| ModelError::Io { file: file.clone(), source })?;
    if text.len() as u64 > MAX_BYTES {
        return Err(ModelError::TooLarge { file, limit: MAX_BYTES });
    }
    let folder = path.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    parse(&text, &file, folder, max_len)
}

pub(super) fn parse(text: &[u8], file: &str, name: Option<String>, max_len: Option<u32>) -> Result<Model, ModelError> {
    let text = without_nan(text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text));
    let root: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|source| ModelError::Json { file: file.to_owned(), source })?;
    let levels = Fields::of(file, &root).levels();
    for level in &levels {
        // Some write 0 where they have none.
        if let Some((name, value)) = level.get(&[LATENT]).filter(|(_, value)| value.as_u64() != Some(0)) {
            let (file, field, value) = (file.to_owned(), format!("{}{name}", level.path), shown(value));
            return Err(ModelError::LatentAttention { file, field, value });
        }
        if level.flag("is_encoder_decoder", false)? {
            return Err(level.wrong("is_encoder_decoder", &Value::Bool(true), "a model of a decoder alone".into()));
        }
    }
    let types: Vec<&str> = levels.iter().rev().filter_map(|level| level.object.get("model_type")?.as_str()).collect();
    let family = types.iter().find_map(|given| FAMILIES.iter().find(|family| family.model_type == *given));
    let family = family.unwrap_or(&ANY);
    // The language model; a part of that name without the fields of one, or of its kind's defaults, is something else.
    let tells =
        |level: &&Fields<'_>| level.get(LAYERS).is_some() || level.defaults.iter().any(|(name, _)| *name == LAYERS[0]);
    let levels: Vec<Fields<'_>> =
        levels.into_iter().map(|level| Fields { defaults: family.defaults, ..level }).collect();
    let fields = levels.iter().rev().find(tells).unwrap_or(&levels[0]);
    // Its defaults are those of a nested part.
    if family.model_type == "gemma3" && fields.path.is_empty() && fields.get(LAYERS).is_none() {
        return Err(fields.missing(&["text_config"]));
    }
    if !fields.flag("is_decoder", false)? {
        let kind = fields.get(&["model_type"]).map_or(&Value::Null, |(_, kind)| kind);
        if let Some((_, expected)) = OTHER_KINDS.iter().find(|(kinds, _)| kinds.iter().any(|other| kind == other)) {
            return Err(fields.wrong("model_type", kind, (*expected).to_owned()));
        }
    }
    let name = name.or_else(|| types.last().map(|name| (*name).to_owned())).unwrap_or_else(|| "config".to_owned());
    let mut model = model(fields, family, name)?;
    if model.max_seq_len == 0 {
        model.assume_length(max_len);
    }
    Ok(model)
}

fn model(fields: &Fields<'_>, family: &Family, name: String) -> Result<Model, ModelError> {
    let num_layers = fields.required(LAYERS, MAX_LAYERS_OR_HEADS)?;
    let kinds = layers::kinds(fields, family, num_layers)?;
    let q_heads = fields.per_layer(Q_HEADS, MAX_Q_HEADS, num_layers)?.ok_or_else(|| fields.missing(Q_HEADS))?;
    let kv_heads = kv_heads(fields, &q_heads)?;
    let kept: Vec<(u32, u32, Kind)> = (0..num_layers as usize)
        .filter(|&layer| kinds[layer] != Kind::Nothing && kv_heads[layer] > 0)
        .map(|layer| (q_heads[layer], kv_heads[layer], kinds[layer]))
        .collect();
    let Some(&(q, kv, _)) = kept.first() else {
        return Err(ModelError::NoAttention { file: fields.file.to_owned(), num_layers });
    };
    let head_dim = head_dim(fields, q_heads[0])?;
    for (name, names) in OTHER_SIZES {
        let usual = if names == HEAD_DIM { head_dim } else { kv };
        if let Some((name, value)) = fields.get(&[name]).filter(|(_, value)| value.as_u64() != Some(usual.into())) {
            return Err(fields.wrong(name, value, format!("{usual}, the {} of all layers", names[0])));
        }
    }
    // Layers with other numbers of heads are counted in parts of equally many.
    let part = kept.iter().fold(0, |part, &(_, kv, _)| gcd(part, kv));
    let groups = kept.iter().map(|&(q, kv, _)| q / kv).max().unwrap_or(1);
    let parts = |kept: &mut dyn Iterator<Item = &(u32, u32, Kind)>| kept.map(|(_, kv, _)| u64::from(kv / part)).sum();
    let alike = kept.iter().all(|&(other_q, other_kv, _)| (other_q, other_kv) == (q, kv));
    let all: u64 = parts(&mut kept.iter());
    let windowed: u64 = parts(&mut kept.iter().filter(|(_, _, kind)| *kind == Kind::Window));
    let counted = |parts: u64| u32::try_from(parts).ok().filter(|parts| *parts <= MAX_LAYERS_OR_HEADS);
    let (Some(all), Some(windowed)) = (counted(all), counted(windowed)) else {
        return Err(fields.wrong(KV_HEADS[0], &all.into(), format!("up to {MAX_LAYERS_OR_HEADS} in all layers")));
    };
    let mut model = Model {
        name: name.into(),
        num_layers: all,
        num_q_heads: part * groups,
        num_kv_heads: part,
        head_dim,
        max_seq_len: max_seq_len(fields, windowed > 0)?,
        windowed_layers: windowed,
        window: layers::window(fields, &kinds)?.filter(|_| windowed > 0),
        num_weights: None,
        note: None,
    };
    if !alike {
        model.note = Some(format!(
            "its {} layers have different numbers of heads; they are counted as {all} of {part} KV {}",
            kept.len(),
            if part == 1 { "head" } else { "heads" }
        ));
    } else if kept.len() < num_layers as usize {
        model.note = Some(format!("{} of its {num_layers} layers keep K and V of their own", kept.len()));
    } else if family.mlp != Mlp::Unknown {
        model.num_weights = weights::count(fields, family, &model)?;
    }
    Ok(model)
}

fn gcd(a: u32, b: u32) -> u32 {
    if a == 0 { b } else { gcd(b % a, a) }
}

fn kv_heads(fields: &Fields<'_>, q_heads: &[u32]) -> Result<Vec<u32>, ModelError> {
    let num_layers = q_heads.len() as u32;
    let one_head = fields.object.get("model_type").is_some_and(|kind| kind == "falcon" || kind == "gpt_bigcode");
    let (name, kv_heads) = if let Some(blocks) = fields.list("block_configs")? {
        fields.check_len("block_configs", blocks, num_layers)?;
        let group = |(block, &q): (&Value, &u32)| match block.pointer("/attention/n_heads_in_group") {
            Some(Value::Null) | None => Ok(0),
            Some(group) => fields.number("block_configs", group, q).map(|group| q / group),
        };
        ("block_configs", blocks.iter().zip(q_heads).map(group).collect::<Result<_, _>>()?)
    } else if (fields.flag("multi_query", one_head)? && !fields.flag("new_decoder_architecture", false)?)
        || fields.get(&["attn_type", "attention_head_type"]).is_some_and(|(_, kind)| shown(kind).contains("multiquery"))
    {
        // One head for all queries, whatever `num_kv_heads` says.
        return Ok(vec![1; q_heads.len()]);
    } else if fields.flag("multi_query_attention", false)? {
        ("multi_query_group_num", vec![fields.required(&["multi_query_group_num"], MAX_Q_HEADS)?; q_heads.len()])
    } else {
        // The list, where both are there.
        let names = if fields.get(PER_LAYER).is_some() { PER_LAYER } else { KV_HEADS };
        let name = fields.get(names).map_or(names[0], |(name, _)| name);
        (name, fields.per_layer(names, MAX_Q_HEADS, num_layers)?.unwrap_or_else(|| q_heads.to_vec()))
    };
    match kv_heads.iter().zip(q_heads).find(|(kv, q)| **kv > 0 && !q.is_multiple_of(**kv)) {
        Some((kv, q)) => Err(fields.wrong(name, &(*kv).into(), format!("a divisor of {} {q}", Q_HEADS[0]))),
        None => Ok(kv_heads),
    }
}

fn head_dim(fields: &Fields<'_>, q_heads: u32) -> Result<u32, ModelError> {
    if let Some(head_dim) = fields.count(HEAD_DIM, MAX_HEAD_DIM)? {
        return Ok(head_dim);
    }
    let hidden = fields.required(HIDDEN, u32::MAX)?;
    if !hidden.is_multiple_of(q_heads) || hidden / q_heads > MAX_HEAD_DIM {
        let name = fields.get(HIDDEN).map_or(HIDDEN[0], |(name, _)| name);
        let expected = format!("a multiple of {} {q_heads}, up to {MAX_HEAD_DIM} times as large", Q_HEADS[0]);
        return Err(fields.wrong(name, &hidden.into(), expected));
    }
    Ok(hidden / q_heads)
}

/// The longest context, 0 where the file does not tell. Two kinds of rotation stretch what it gives, unless layers have
/// windows or the length before the stretching is there; what it gives beside other kinds is final.
fn max_seq_len(fields: &Fields<'_>, windowed: bool) -> Result<u32, ModelError> {
    let longest = fields.count(&["model_max_length"], MAX_SEQ_LEN)?;
    let Some(given) = longest.or(fields.count(MAX_LEN, MAX_SEQ_LEN)?) else { return Ok(0) };
    let scaling = fields.get(&["rope_scaling", "rope_parameters"]).and_then(|(_, scaling)| scaling.as_object());
    let stretched = scaling.and_then(|scaling| {
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type"))?;
        let original = scaling.get("original_max_position_embeddings").and_then(Value::as_f64);
        let base = original.or((!windowed).then_some(given.into())).filter(|_| kind == "yarn" || kind == "dynamic")?;
        Some((base * scaling.get("factor")?.as_f64()?).clamp(0.0, MAX_SEQ_LEN.into()) as u32)
    });
    Ok(stretched.unwrap_or(0).max(given))
}
