//! How many weights a model has, worked out from the sizes in its `config.json`.

use super::{Family, Fields, Mlp, Model, ModelError};

pub(super) fn count(fields: &Fields<'_>, family: &Family, model: &Model) -> Result<Option<u64>, ModelError> {
    // Sizes are below 2^32 and heads and layers below 2^17, so no product of them passes 2^128.
    let size = |field| Ok(fields.count(&[field], u32::MAX)?.map(u128::from));
    let (Some(hidden), Some(vocab), Some(layer_mlp)) =
        (size("hidden_size")?, size("vocab_size")?, mlp(fields, family)?)
    else {
        return Ok(None);
    };
    let plain = family.mlp == Mlp::Plain;
    let q = u128::from(model.num_q_heads) * u128::from(model.head_dim);
    let kv = u128::from(model.num_kv_heads) * u128::from(model.head_dim);
    let mut layer = hidden * (2 * q + 2 * kv) + layer_mlp;
    if plain || fields.flag("attention_bias", false)? {
        layer += q + 2 * kv + hidden;
    } else if family.qkv_bias && fields.flag("qkv_bias", true)? {
        layer += q + 2 * kv;
    }
    // The plain kind has one normalisation, but with a bias.
    layer += u128::from(family.norms) * hidden;
    if family.qk_norm {
        layer += 2 * u128::from(model.head_dim);
    }
    let tied = fields.flag("tie_word_embeddings", family.tied)?;
    let mut total = u128::from(model.num_layers) * layer + vocab * hidden + hidden;
    if !tied {
        total += vocab * hidden;
    }
    if plain {
        total += hidden + vocab;
    }
    Ok(u64::try_from(total).ok())
}

fn mlp(fields: &Fields<'_>, family: &Family) -> Result<Option<u128>, ModelError> {
    let size = |field| Ok::<_, ModelError>(fields.count(&[field], u32::MAX)?.map(u128::from));
    let (Some(hidden), Some(intermediate)) = (size("hidden_size")?, size("intermediate_size")?) else {
        return Ok(None);
    };
    let gated = |intermediate: u128| 3 * hidden * intermediate;
    Ok(match family.mlp {
        Mlp::Unknown => None,
        Mlp::Gated if fields.flag("mlp_bias", false)? => Some(gated(intermediate) + 2 * intermediate + hidden),
        Mlp::Gated => Some(gated(intermediate)),
        Mlp::Plain => Some(2 * hidden * intermediate + intermediate + hidden),
        Mlp::Experts => size("num_local_experts")?.map(|experts| experts * (gated(intermediate) + hidden)),
        Mlp::FineExperts => {
            // Where some layers have no experts, the sum is another.
            let everywhere = fields.count(&["decoder_sparse_step"], u32::MAX)?.unwrap_or(1) == 1
                && fields.list("mlp_only_layers")?.is_none_or(<[_]>::is_empty);
            let (Some(experts), Some(width), true) = (size("num_experts")?, size("moe_intermediate_size")?, everywhere)
            else {
                return Ok(None);
            };
            // An expert for all tokens comes with a gate of its own.
            let shared = size("shared_expert_intermediate_size")?.map_or(0, |width| gated(width) + hidden);
            Some(experts * (gated(width) + hidden) + shared)
        }
    })
}
