//! Kinds of models, by the `model_type` of their `config.json`: which fields have defaults, which layers have a window,
//! and what their weights consist of.

#[derive(Clone, Copy)]
pub(super) struct Family {
    pub(super) model_type: &'static str,
    /// Values of fields that are not there, where the kind does not derive them from others.
    pub(super) defaults: &'static [(&'static str, u32)],
    pub(super) windows: Windows,
    /// Whether the output layer is the embedding, unless `tie_word_embeddings` says otherwise.
    pub(super) tied: bool,
    /// Vectors of `hidden_size` that normalise, per layer.
    pub(super) norms: u32,
    /// Whether queries and keys are normalised by a vector of `head_dim` each.
    pub(super) qk_norm: bool,
    /// Whether queries, keys and values have a bias, unless `qkv_bias` says otherwise.
    pub(super) qkv_bias: bool,
    pub(super) mlp: Mlp,
}

/// Which layers have the window of `sliding_window`, if no `layer_types` tell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    /// Those that the file tells, in whichever way; all, if it gives a window and says no more.
    Told,
    None,
    /// All, unless it is `null`.
    All,
    /// From layer `max_window_layers` on, if `use_sliding_window`.
    Upper,
    /// As `Upper`, but which layers it is differs between versions, so `layer_types` must tell.
    Listed,
    /// All but each `sliding_window_pattern`-th; the value is for want of that field.
    AllBut(u32),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mlp {
    Unknown,
    /// Three matrices.
    Gated,
    /// Two matrices, and biases everywhere in the model.
    Plain,
    /// `num_local_experts` times three matrices, and a router.
    Experts,
    /// `num_experts` times three matrices of `moe_intermediate_size`, a router, and perhaps an expert for all tokens.
    FineExperts,
}

const LLAMA: Family = Family {
    model_type: "llama",
    defaults: &[],
    windows: Windows::None,
    tied: false,
    norms: 2,
    qk_norm: false,
    qkv_bias: false,
    mlp: Mlp::Gated,
};
pub(super) const ANY: Family = Family { model_type: "", windows: Windows::Told, mlp: Mlp::Unknown, ..LLAMA };
const MISTRAL: Family = Family {
    model_type: "mistral",
    defaults: &[("num_key_value_heads", 8), ("sliding_window", 4096)],
    windows: Windows::All,
    ..LLAMA
};
const MIXTRAL: Family = Family {
    model_type: "mixtral",
    defaults: &[("num_key_value_heads", 8)],
    windows: Windows::All,
    mlp: Mlp::Experts,
    ..LLAMA
};
const QWEN2: Family = Family { model_type: "qwen2", windows: Windows::Upper, qkv_bias: true, ..LLAMA };
const QWEN2_MOE: Family = Family { model_type: "qwen2_moe", windows: Windows::Listed, mlp: Mlp::FineExperts, ..QWEN2 };
const QWEN3: Family =
    Family { model_type: "qwen3", defaults: &[("head_dim", 128)], windows: Windows::Upper, qk_norm: true, ..LLAMA };
const QWEN3_MOE: Family =
    Family { model_type: "qwen3_moe", defaults: &[], windows: Windows::Listed, mlp: Mlp::FineExperts, ..QWEN3 };
const GEMMA: Family = Family {
    model_type: "gemma",
    defaults: &[("head_dim", 256), ("max_position_embeddings", 8192)],
    tied: true,
    ..LLAMA
};
const GEMMA2: Family = Family {
    model_type: "gemma2",
    defaults: &[("head_dim", 256), ("sliding_window", 4096)],
    windows: Windows::AllBut(2),
    norms: 4,
    ..GEMMA
};
const GEMMA3_TEXT: Family = Family {
    model_type: "gemma3_text",
    // Published files with a vision model leave these out of their `text_config`.
    defaults: &[
        ("vocab_size", 262_208),
        ("hidden_size", 2304),
        ("intermediate_size", 9216),
        ("num_hidden_layers", 26),
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 256),
        ("max_position_embeddings", 131_072),
        ("sliding_window", 4096),
    ],
    windows: Windows::AllBut(6),
    qk_norm: true,
    ..GEMMA2
};
const GEMMA3: Family = Family { model_type: "gemma3", ..GEMMA3_TEXT };
const PHI: Family = Family { model_type: "phi", mlp: Mlp::Plain, ..LLAMA };
const PHI3: Family = Family { model_type: "phi3", windows: Windows::All, ..LLAMA };

pub(super) const FAMILIES: [Family; 13] =
    [LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, GEMMA, GEMMA2, GEMMA3, GEMMA3_TEXT, PHI, PHI3];
