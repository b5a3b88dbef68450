//! Which layers keep K and V, and which of them for a window alone.

use serde_json::Value;

use super::fields::no_window;
use super::{Family, Fields, ModelError, WINDOW, Windows};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Full,
    Window,
    /// No K and V: a state of fixed size, or those of another layer.
    Nothing,
}

/// Lists of a word for every layer.
const WORDS: [&str; 4] = ["layer_types", "layers_block_type", "attention_layers", "block_types"];
const INDICES: [&str; 5] =
    ["attn_layer_indices", "full_attn_idxs", "full_attention_idxs", "hybrid_layer_ids", "cross_attention_layers"];
const CHUNK: &str = "attention_chunk_size";
/// Every so many layers one sees everything, and the others a window.
const PATTERNS: &[&str] =
    &["sliding_window_pattern", "_sliding_window_pattern", "layer_switch", "global_attn_every_n_layers"];
/// Fields of models with a state instead of K and V, or with layers that only a list tells apart.
#[rustfmt::skip]
const UNLISTED: &[&str] = &["state_size", "ssm_cfg", "conv_kernel", "attn_mode", "expand_v", "qk_dim_factor",
    "decay_low_rank_dim", "head_size_divisor", "rescale_every", "kv_reuse_group", "local_attention"];
const LIST: &str = "left out; where it stands, layer_types must tell which layers keep K and V";

pub(super) fn kinds(fields: &Fields<'_>, family: &Family, num_layers: u32) -> Result<Vec<Kind>, ModelError> {
    let mut kinds = match listed(fields, num_layers)? {
        Some(kinds) if fields.get(&["attention_window_size"]).is_some() => {
            // Beside layers of other kinds, attention sees a window, but for the layers of a list.
            let full = fields.list("full_attention_idx")?.unwrap_or_default();
            let of = |(at, kind)| if kind == Kind::Full { window_if(!full.contains(&Value::from(at))) } else { kind };
            kinds.into_iter().enumerate().map(of).collect()
        }
        Some(kinds) => kinds,
        None => windows(fields, family, num_layers)?,
    };
    // The last layers of some models read the K and V of others.
    if let Some((name, value)) = fields.get(&["num_kv_shared_layers"]).filter(|(_, value)| value.as_u64() != Some(0)) {
        let shared = fields.number(name, value, num_layers)? as usize;
        kinds.iter_mut().rev().take(shared).for_each(|kind| *kind = Kind::Nothing);
    }
    Ok(kinds)
}

/// Keys that a layer with a window sees; `None` where no layer has one.
pub(super) fn window(fields: &Fields<'_>, kinds: &[Kind]) -> Result<Option<u32>, ModelError> {
    if !kinds.contains(&Kind::Window) {
        return Ok(None);
    }
    let chunk = fields.count(&[CHUNK], u32::MAX)?;
    let window = match fields.get(WINDOW) {
        Some((name, Value::Array(list))) => {
            let mut windows = list.iter().filter(|window| !no_window(window));
            let first = windows.next().unwrap_or(&Value::Null);
            if let Some(other) = windows.find(|window| *window != first) {
                let expected =
                    format!("{first} as in the layers before it; layers with several windows are not supported");
                return Err(fields.wrong(name, other, expected));
            }
            Some(fields.number(name, first, u32::MAX)?)
        }
        _ => fields.count(WINDOW, u32::MAX)?,
    };
    window.or(chunk).ok_or_else(|| fields.missing(WINDOW)).map(Some)
}

fn listed(fields: &Fields<'_>, num_layers: u32) -> Result<Option<Vec<Kind>>, ModelError> {
    let layers = 0..num_layers as usize;
    for name in WORDS {
        let Some(list) = fields.list(name)? else { continue };
        // This one is repeated until all layers have a word.
        if name != "block_types" || list.is_empty() {
            fields.check_len(name, list, num_layers)?;
        }
        return layers.map(|layer| word(fields, name, &list[layer % list.len()])).collect::<Result<_, _>>().map(Some);
    }
    if let Some(groups) = fields.list("attention_types")? {
        // Words, and how often they are repeated.
        let words = groups.iter().flat_map(|group| {
            let words = group.get(0).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let times = group.get(1).and_then(Value::as_u64).unwrap_or(0).min(num_layers.into());
            (0..times).flat_map(move |_| words)
        });
        let words: Vec<Value> = words.take(num_layers as usize + 1).cloned().collect();
        fields.check_len("attention_types", &words, num_layers)?;
        return words.iter().map(|kind| word(fields, "attention_types", kind)).collect::<Result<_, _>>().map(Some);
    }
    if let Some((name, value)) = fields.get(&["hybrid_override_pattern"]) {
        let pattern = value.as_str().filter(|pattern| pattern.chars().count() == num_layers as usize);
        let wrong = || fields.wrong(name, value, format!("a text of a letter for each of the {num_layers} layers"));
        let kind = |letter| if letter == '*' { Kind::Full } else { Kind::Nothing };
        return Ok(Some(pattern.ok_or_else(wrong)?.chars().map(kind).collect()));
    }
    if let Some(list) = fields.list("attn_type_list")? {
        fields.check_len("attn_type_list", list, num_layers)?;
        return Ok(Some(list.iter().map(|kind| full_if(kind.as_u64() == Some(1))).collect()));
    }
    for name in INDICES {
        let Some(list) = fields.list(name)? else { continue };
        let crossed = name == "cross_attention_layers";
        let mut kinds = vec![full_if(crossed); num_layers as usize];
        for index in list {
            let layer = index.as_u64().and_then(|layer| kinds.get_mut(usize::try_from(layer).ok()?));
            *layer.ok_or_else(|| fields.wrong(name, index, format!("below {num_layers}")))? = full_if(!crossed);
        }
        return Ok(Some(kinds));
    }
    let used = [true, fields.flag("mamba_enabled", true)?, fields.flag("use_cla", false)?];
    for (name, _) in ["attn_layer_period", "mamba_step", "cla_share_factor"].into_iter().zip(used).filter(|at| at.1) {
        let Some(period) = fields.count(&[name], u32::MAX)? else { continue };
        let usual = if name == "mamba_step" { u64::from(period / 2) } else { 0 };
        let offset = fields.get(&["attn_layer_offset"]).and_then(|(_, offset)| offset.as_u64()).unwrap_or(usual);
        return Ok(Some(layers.map(|layer| full_if(layer as u64 % u64::from(period) == offset)).collect()));
    }
    if let Some(interval) = fields.count(&["full_attention_interval"], u32::MAX)? {
        return Ok(Some(layers.map(|layer| full_if((layer + 1).is_multiple_of(interval as usize))).collect()));
    }
    fields.get(UNLISTED).map_or(Ok(None), |(name, value)| Err(fields.wrong(name, value, LIST.to_owned())))
}

fn full_if(is_full: bool) -> Kind {
    if is_full { Kind::Full } else { Kind::Nothing }
}

fn word(fields: &Fields<'_>, name: &str, word: &Value) -> Result<Kind, ModelError> {
    match word.as_str() {
        Some("full_attention" | "attention" | "global" | "global_attention" | "hybrid") => Ok(Kind::Full),
        Some("sliding_attention" | "chunked_attention" | "local" | "local_attention") => Ok(Kind::Window),
        Some("linear_attention" | "mamba" | "mamba2" | "conv" | "recurrent") => Ok(Kind::Nothing),
        _ => {
            let expected =
                "made of full_attention, sliding_attention, chunked_attention, linear_attention, mamba and the like";
            Err(fields.wrong(name, word, expected.to_owned()))
        }
    }
}

fn windows(fields: &Fields<'_>, family: &Family, num_layers: u32) -> Result<Vec<Kind>, ModelError> {
    let layers = 0..num_layers;
    let all_but = |every: u32| layers.clone().map(|layer| window_if(!(layer + 1).is_multiple_of(every))).collect();
    if fields.get(&[CHUNK]).is_some() {
        return match fields.list("no_rope_layers")? {
            Some(rotated) if !rotated.is_empty() => {
                fields.check_len("no_rope_layers", rotated, num_layers)?;
                // Those without rotation see everything, in spite of the name.
                Ok(rotated.iter().map(|rotated| window_if(rotated.as_u64() != Some(0))).collect())
            }
            _ => Ok(all_but(fields.count(&["no_rope_layer_interval"], u32::MAX)?.unwrap_or(4))),
        };
    }
    if let Some((name, Value::Array(list))) = fields.get(WINDOW) {
        fields.check_len(name, list, num_layers)?;
        return Ok(list.iter().map(|window| window_if(!no_window(window))).collect());
    }
    let has_window = fields.count(WINDOW, u32::MAX)?.is_some();
    let says_used = fields.get(&["use_sliding_window"]).is_some();
    let used = has_window && fields.flag("use_sliding_window", family.windows == Windows::Told)?;
    let pattern = fields.get(PATTERNS);
    if let (Windows::Told, true, Some((_, Value::String(letters)))) = (family.windows, has_window, pattern) {
        let letters: Vec<char> = letters.chars().collect();
        let kind = |layer: u32| window_if(letters.get(layer as usize % letters.len().max(1)) == Some(&'L'));
        return Ok(layers.map(kind).collect());
    }
    Ok(match family.windows {
        Windows::None => vec![Kind::Full; num_layers as usize],
        Windows::All => vec![window_if(has_window); num_layers as usize],
        Windows::Told | Windows::Upper | Windows::Listed if !used => vec![Kind::Full; num_layers as usize],
        Windows::Told if pattern.is_some() && has_window => all_but(fields.required(PATTERNS, u32::MAX)?),
        Windows::Told if !says_used || fields.get(&["max_window_layers"]).is_none() => {
            vec![window_if(has_window); num_layers as usize]
        }
        Windows::Told | Windows::Upper => {
            let first = match fields.get(&["max_window_layers"]) {
                // All layers, which `count` takes for no number.
                Some((_, Value::Number(number))) if number.as_u64() == Some(0) => 0,
                _ => fields.required(&["max_window_layers"], u32::MAX)?,
            };
            layers.map(|layer| window_if(layer >= first)).collect()
        }
        Windows::Listed => return Err(fields.missing(&["layer_types"])),
        Windows::AllBut(_) if !has_window => vec![Kind::Full; num_layers as usize],
        Windows::AllBut(default) => all_but(fields.count(PATTERNS, u32::MAX)?.unwrap_or(default)),
    })
}

fn window_if(has_window: bool) -> Kind {
    if has_window { Kind::Window } else { Kind::Full }
}
