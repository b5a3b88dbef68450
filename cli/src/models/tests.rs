use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn parse(config: &Value) -> Result<Model, ModelError> {
    hub::parse(config.to_string().as_bytes(), "config.json", None, None)
}

fn message(config: &Value) -> String {
    parse(config).unwrap_err().to_string()
}

/// What both kinds of Llama and most others say.
fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 8192, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256
    })
}

fn no_field(field: &str) -> String {
    format!("config.json: no field {field:?}; --heads, --kv-heads and --head-dim do without a file")
}

fn with(mut config: Value, changes: &[(&str, Value)]) -> Value {
    for (field, value) in changes {
        config[*field] = value.clone();
    }
    config
}

fn without(mut config: Value, field: &str) -> Value {
    config.as_object_mut().unwrap().remove(field);
    config
}

/// `config` describes the built-in model of this name, number for number.
#[track_caller]
fn is_built_in(config: &Value, name: &str) {
    assert_eq!(Model { name: Cow::Owned(name.to_owned()), ..parse(config).unwrap() }, Model::by_name(name).unwrap());
}

#[test]
fn published_files_describe_the_built_in_models() {
    is_built_in(&llama(), "llama-3-8b");
    let llama_2 = [("vocab_size", json!(32000)), ("max_position_embeddings", json!(4096))];
    let sizes = [("num_hidden_layers", json!(40)), ("num_attention_heads", json!(40)), ("hidden_size", json!(5120))];
    let llama_13b = with(with(without(llama(), "num_key_value_heads"), &llama_2), &sizes);
    is_built_in(&with(llama_13b, &[("intermediate_size", json!(13824))]), "llama-13b");
    let heads = [("num_key_value_heads", json!(32)), ("intermediate_size", json!(11008))];
    is_built_in(&with(with(llama(), &llama_2), &heads), "llama-2-7b");
    let large = [
        ("hidden_size", json!(8192)),
        ("intermediate_size", json!(28672)),
        ("num_attention_heads", json!(64)),
        ("num_hidden_layers", json!(80)),
    ];
    is_built_in(&with(llama(), &large), "llama-3-70b");
    let mistral = [
        ("model_type", json!("mistral")),
        ("sliding_window", json!(4096)),
        ("max_position_embeddings", json!(32768)),
        ("vocab_size", json!(32000)),
    ];
    is_built_in(&with(llama(), &mistral), "mistral-7b");
    let qwen2 = json!({
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768,
        "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
        "sliding_window": 131072, "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 152064
    });
    is_built_in(&qwen2, "qwen2-7b");
    let qwen3 = json!({
        "model_type": "qwen3", "attention_bias": false, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36,
        "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "sliding_window": null,
        "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 151936
    });
    is_built_in(&qwen3, "qwen3-8b");
    let gemma2 = json!({
        "model_type": "gemma2", "head_dim": 256, "hidden_size": 3584, "intermediate_size": 14336,
        "max_position_embeddings": 8192, "num_attention_heads": 16, "num_hidden_layers": 42,
        "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 256000
    });
    is_built_in(&gemma2, "gemma-2-9b");
    let gemma3 = json!({
        "model_type": "gemma3_text", "head_dim": 256, "hidden_size": 640, "intermediate_size": 2048,
        "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 18,
        "num_key_value_heads": 1, "sliding_window": 512, "_sliding_window_pattern": 6, "vocab_size": 262144
    });
    is_built_in(&gemma3, "gemma-3-270m");
    let phi3 = json!({
        "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32, "sliding_window": 2047,
        "tie_word_embeddings": false, "vocab_size": 32064
    });
    is_built_in(&phi3, "phi-3-mini");
}

#[test]
fn a_token_takes_what_the_layout_says() {
    for model in Model::BUILT_IN {
        for format in KvDtype::ALL {
            let layout = model.cache_config().with_kv_dtype(format).with_num_blocks(4096).layout().unwrap();
            assert_eq!(model.kv_bytes_per_token(format), layout.bytes_per_token(), "{} {format}", model.name);
        }
        assert_eq!(model.window.is_some(), model.windowed_layers > 0, "{}", model.name);
    }
}

#[test]
fn weights_of_experts_and_of_the_plain_kind_add_up_to_published_totals() {
    // Mixtral 8x7B, Qwen3-30B-A3B, Qwen1.5-MoE-A2.7B and phi-2.
    let mixtral = [
        ("model_type", json!("mixtral")),
        ("num_local_experts", json!(8)),
        ("sliding_window", json!(null)),
        ("vocab_size", json!(32000)),
    ];
    assert_eq!(parse(&with(llama(), &mixtral)).unwrap().num_weights, Some(46_702_792_704));
    let qwen3_moe = json!({
        "model_type": "qwen3_moe", "decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "num_attention_heads": 32, "num_experts": 128, "num_hidden_layers": 48,
        "num_key_value_heads": 4, "use_sliding_window": false, "vocab_size": 151936
    });
    let model = parse(&qwen3_moe).unwrap();
    assert_eq!((model.num_weights, model.windowed_layers), (Some(30_532_122_624), 0));
    assert_eq!(parse(&with(qwen3_moe.clone(), &[("mlp_only_layers", json!([3]))])).unwrap().num_weights, None);
    let windowed = [("use_sliding_window", json!(true)), ("sliding_window", json!(4096))];
    assert_eq!(message(&with(qwen3_moe, &windowed)), no_field("layer_types"));
    let qwen2_moe = json!({
        "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 8192,
        "moe_intermediate_size": 1408, "num_attention_heads": 16, "num_experts": 60, "num_hidden_layers": 24,
        "num_key_value_heads": 16, "shared_expert_intermediate_size": 5632, "vocab_size": 151936
    });
    assert_eq!(parse(&qwen2_moe).unwrap().num_weights, Some(14_315_784_192));
    let phi = json!({
        "model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "max_position_embeddings": 2048,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": null, "vocab_size": 51200
    });
    let model = parse(&phi).unwrap();
    assert_eq!((model.num_weights, model.num_kv_heads, model.head_dim), (Some(2_779_683_840), 32, 80));
    assert_eq!(parse(&without(llama(), "vocab_size")).unwrap().num_weights, None);
}

#[test]
fn windows_are_where_the_file_says() {
    let windows = |config: &Value| parse(config).map(|model| (model.windowed_layers, model.window)).unwrap();
    let mistral = with(llama(), &[("model_type", json!("mistral"))]);
    assert_eq!(windows(&mistral), (32, Some(4096)), "the kind's own default");
    assert_eq!(windows(&with(mistral, &[("sliding_window", json!(null))])), (0, None));

    let qwen2 = with(llama(), &[("model_type", json!("qwen2")), ("sliding_window", json!(1000))]);
    assert_eq!(windows(&qwen2), (0, None));
    let used = with(qwen2, &[("use_sliding_window", json!(true)), ("max_window_layers", json!(28))]);
    assert_eq!(windows(&used), (4, Some(1000)));
    assert_eq!(windows(&with(used.clone(), &[("max_window_layers", json!(0))])), (32, Some(1000)));
    assert_eq!(windows(&with(used.clone(), &[("max_window_layers", json!(40))])), (0, None));
    assert_eq!(message(&without(used.clone(), "max_window_layers")), no_field("max_window_layers"));
    let mut types = vec![json!("full_attention"); 31];
    types.push(json!("sliding_attention"));
    let listed = with(used, &[("layer_types", json!(types))]);
    assert_eq!(windows(&listed), (1, Some(1000)));
    assert_eq!(
        message(&without(listed, "sliding_window")),
        format!(
            "{}, nor any of sliding_window_size, attention_window_size, window_size; --heads, --kv-heads and --head-dim do without a file",
            r#"config.json: no field "sliding_window""#
        )
    );

    // 26 layers: every second, beginning with the first; all but four, the 6th, 12th, 18th and 24th.
    let layers = [("num_hidden_layers", json!(26)), ("sliding_window", json!(512))];
    let gemma = |model_type| with(with(llama(), &layers), &[("model_type", json!(model_type))]);
    assert_eq!(windows(&gemma("gemma2")), (13, Some(512)));
    assert_eq!(windows(&gemma("gemma3_text")), (22, Some(512)));
    assert_eq!(windows(&with(gemma("gemma3_text"), &[("sliding_window_pattern", json!(2))])), (13, Some(512)));
    assert_eq!(windows(&gemma("gemma")), (0, None));
}

#[test]
fn the_language_model_of_a_larger_one_has_the_defaults_of_its_kind() {
    // gemma-3-4b says no more than this.
    let gemma3 = json!({
        "model_type": "gemma3", "vision_config": {"hidden_size": 1152},
        "text_config": {
            "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "sliding_window": 1024
        }
    });
    let model = parse(&gemma3).unwrap();
    assert_eq!((model.num_layers, model.num_q_heads, model.num_kv_heads, model.head_dim), (34, 8, 4, 256));
    assert_eq!((model.windowed_layers, model.window, model.max_seq_len), (29, Some(1024), 131_072));
    let wrong = with(gemma3.clone(), &[("text_config", json!({"num_hidden_layers": 0}))]);
    assert_eq!(message(&wrong), "config.json: text_config.num_hidden_layers is 0, not a whole number from 1 to 65536");
    assert_eq!(message(&without(gemma3, "text_config")), no_field("text_config"));
}

#[test]
fn refusals_name_file_field_value_and_limit() {
    for (field, value, expected) in [
        ("num_hidden_layers", json!(65537), "num_hidden_layers is 65537, not a whole number from 1 to 65536"),
        ("num_hidden_layers", json!("32"), "num_hidden_layers is \"32\", not a whole number from 1 to 65536"),
        ("num_attention_heads", json!(-32), "num_attention_heads is -32, not a whole number from 1 to 4096"),
        ("num_attention_heads", json!(2.5), "num_attention_heads is 2.5, not a whole number from 1 to 4096"),
        ("num_key_value_heads", json!(5), "num_key_value_heads is 5, not a divisor of num_attention_heads 32"),
        ("num_key_value_heads", json!(64), "num_key_value_heads is 64, not a divisor of num_attention_heads 32"),
        ("head_dim", json!(513), "head_dim is 513, not a whole number from 1 to 512"),
        (
            "hidden_size",
            json!(4097),
            "hidden_size is 4097, not a multiple of num_attention_heads 32, up to 512 times as large",
        ),
        ("tie_word_embeddings", json!(1), "tie_word_embeddings is 1, not true or false"),
        ("layer_types", json!([]), "layer_types is \"0 items\", not one for each of the 32 layers"),
        (
            "layer_types",
            json!(vec!["odd"; 32]),
            "layer_types is \"odd\", not made of full_attention, sliding_attention, chunked_attention, linear_attention, mamba and the like",
        ),
    ] {
        assert_eq!(message(&with(llama(), &[(field, value)])), format!("config.json: {expected}"));
    }
    for field in ["num_hidden_layers", "num_attention_heads", "hidden_size"] {
        let text = message(&without(llama(), field));
        assert!(text.starts_with(&format!("config.json: no field {field:?}, nor any of ")), "{text}");
        assert!(text.ends_with("--heads, --kv-heads and --head-dim do without a file"), "{text}");
    }
    let latent = [("model_type", json!("deepseek_v3")), ("kv_lora_rank", json!(512))];
    let latent = message(&with(llama(), &latent));
    assert!(latent.starts_with("config.json: kv_lora_rank is 512: multi-head latent attention"), "{latent}");
    let broken = hub::parse(b"{\n\"model_type\": ", "config.json", None, None).unwrap_err().to_string();
    assert!(broken.starts_with("config.json: not a JSON object: ") && broken.contains("line 2"), "{broken}");
    assert_eq!(
        Model::by_name("gpt").unwrap_err().to_string(),
        "unknown model \"gpt\"; known are llama-13b, llama-2-7b, llama-3-8b, llama-3-70b, mistral-7b, qwen2-7b, qwen3-8b, \
         gemma-2-9b, gemma-3-270m, phi-3-mini, or give the config.json of another one with --config, or --heads, \
         --kv-heads and --head-dim"
    );
}

#[test]
fn files_are_named_after_their_folder_and_have_a_limit() {
    let folder = std::env::temp_dir().join(format!("paged-attention-models-{}", std::process::id())).join("Mine-8B");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("config.json");
    std::fs::write(&path, llama().to_string()).unwrap();
    let model = Model::from_config(&path, None).unwrap();
    std::fs::write(&path, vec![b' '; (1 << 20) + 1]).unwrap();
    let large = Model::from_config(&path, None).unwrap_err().to_string();
    std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    assert_eq!(model.name, "Mine-8B");
    assert_eq!(
        large,
        format!("{}: more than 1048576 bytes, so it is not a config.json; give the file of that name", path.display())
    );
    assert!(Model::from_config(&path, None).unwrap_err().to_string().starts_with(&path.display().to_string()));
}

/// Layers, query heads, KV heads, head_dim, the longest context, and the window with its layers.
type Shape = (u32, u32, u32, u32, u32, Option<(u32, u32)>);

fn shape(config: &Value) -> Shape {
    let model = parse(config).unwrap_or_else(|error| panic!("{error}\n{config}"));
    let window = model.window.map(|window| (window, model.windowed_layers));
    (model.num_layers, model.num_q_heads, model.num_kv_heads, model.head_dim, model.max_seq_len, window)
}

#[test]
fn x12_kinds_without_a_name_here_are_read_by_their_fields() {
    let alternate = |a: &str, b: &str, every: usize, num_layers: usize| {
        json!((1..=num_layers).map(|layer| if layer % every == 0 { b } else { a }).collect::<Vec<_>>())
    };
    let gpt_oss = json!({
        "model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880, "num_attention_heads": 64, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "sliding_window": 128, "max_position_embeddings": 131072, "num_local_experts": 32,
        "layer_types": alternate("sliding_attention", "full_attention", 2, 24),
        "rope_scaling": {"factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn"}
    });
    assert_eq!(shape(&gpt_oss), (24, 64, 8, 64, 131_072, Some((128, 12))));
    let granite = with(llama(), &[("model_type", json!("granite")), ("attention_multiplier", json!(0.0078125))]);
    assert_eq!(shape(&granite), (32, 32, 8, 128, 8192, None));
    let falcon_7b = json!({
        "model_type": "falcon", "hidden_size": 4544, "multi_query": true, "new_decoder_architecture": false,
        "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71, "max_position_embeddings": 2048
    });
    assert_eq!(shape(&falcon_7b), (32, 71, 1, 64, 2048, None));
    let falcon_40b = [
        ("hidden_size", json!(8192)),
        ("new_decoder_architecture", json!(true)),
        ("num_attention_heads", json!(128)),
        ("num_kv_heads", json!(8)),
    ];
    assert_eq!(shape(&with(falcon_7b.clone(), &falcon_40b)), (32, 128, 8, 64, 2048, None));
    let starcoder = json!({
        "model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40, "n_positions": 8192, "multi_query": true
    });
    assert_eq!(shape(&starcoder), (40, 48, 1, 128, 8192, None));
    let gpt2 =
        json!({"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024});
    assert_eq!(shape(&gpt2), (12, 12, 12, 64, 1024, None));
    let chatglm = json!({
        "model_type": "chatglm", "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": true,
        "multi_query_group_num": 2, "num_attention_heads": 32, "num_layers": 28, "seq_length": 32768
    });
    assert_eq!(shape(&chatglm), (28, 32, 2, 128, 32_768, None));
    let dbrx = json!({
        "model_type": "dbrx", "attn_config": {"kv_n_heads": 8, "clip_qkv": 8}, "d_model": 6144, "max_seq_len": 32768,
        "n_heads": 48, "n_layers": 40
    });
    assert_eq!(shape(&dbrx), (40, 48, 8, 128, 32_768, None));
    let starcoder2 = with(llama(), &[("model_type", json!("starcoder2")), ("sliding_window", json!(4096))]);
    assert_eq!(shape(&starcoder2), (32, 32, 8, 128, 8192, Some((4096, 32))));
    let cohere2 = with(starcoder2.clone(), &[("sliding_window_pattern", json!(4))]);
    assert_eq!(shape(&cohere2), (32, 32, 8, 128, 8192, Some((4096, 24))));
    let exaone4 = with(starcoder2.clone(), &[("sliding_window_pattern", json!("LLLG"))]);
    assert_eq!(shape(&exaone4), (32, 32, 8, 128, 8192, Some((4096, 24))));
    let gpt_neo = json!({
        "model_type": "gpt_neo", "attention_types": [[["global", "local"], 6]], "hidden_size": 768, "num_heads": 12,
        "num_layers": 12, "max_position_embeddings": 2048, "window_size": 256
    });
    assert_eq!(shape(&gpt_neo), (12, 12, 12, 64, 2048, Some((256, 6))));
    // No kind at all, with the usual fields.
    assert_eq!(shape(&without(llama(), "model_type")), (32, 32, 8, 128, 8192, None));
}

#[test]
fn x12_language_models_are_found_where_they_are_nested() {
    let vision = |part: &str| json!({"model_type": "eyes", "vision_config": {"num_hidden_layers": 3}, part: llama()});
    for part in ["text_config", "llm_config", "language_config"] {
        assert_eq!(shape(&vision(part)), (32, 32, 8, 128, 8192, None), "{part}");
    }
    let omni = json!({"model_type": "omni", "thinker_config": {"audio_config": {}, "text_config": llama()}});
    assert_eq!(shape(&omni), (32, 32, 8, 128, 8192, None));
    let qwen2_vl = with(
        llama(),
        &[
            ("model_type", json!("qwen2_5_vl")),
            ("text_config", json!({"model_type": "qwen2_5_vl_text"})),
            ("use_sliding_window", json!(false)),
            ("sliding_window", json!(32768)),
            ("max_window_layers", json!(28)),
        ],
    );
    assert_eq!(shape(&qwen2_vl), (32, 32, 8, 128, 8192, None), "the fields at the top, beside a part without any");
    let llama4 = json!({
        "model_type": "llama4", "text_config": {
            "model_type": "llama4_text", "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120,
            "max_position_embeddings": 10485760, "no_rope_layers": [], "num_attention_heads": 40,
            "num_hidden_layers": 48, "num_key_value_heads": 8, "rope_scaling": {"factor": 16.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"}
        }
    });
    assert_eq!(shape(&llama4), (48, 40, 8, 128, 10_485_760, Some((8192, 36))));
    let wrong = with(vision("text_config"), &[("text_config", with(llama(), &[("num_hidden_layers", json!(0))]))]);
    assert_eq!(message(&wrong), "config.json: text_config.num_hidden_layers is 0, not a whole number from 1 to 65536");
}

#[test]
fn x12_layers_of_several_kinds_are_counted_as_they_are() {
    let types = |words: &[&str], times: usize| json!(words.repeat(times));
    let qwen3_next = json!({
        "model_type": "qwen3_next", "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048,
        "max_position_embeddings": 262144, "num_attention_heads": 16, "num_hidden_layers": 48, "num_key_value_heads": 2
    });
    assert_eq!(shape(&qwen3_next), (12, 16, 2, 256, 262_144, None));
    let linear = ["linear_attention", "linear_attention", "linear_attention", "full_attention"];
    assert_eq!(shape(&with(qwen3_next.clone(), &[("layer_types", types(&linear, 12))])).0, 12);
    let note = parse(&qwen3_next).unwrap().note.unwrap();
    assert_eq!(note, "12 of its 48 layers keep K and V of their own");
    let gemma3n = json!({"model_type": "gemma3n", "text_config": {
        "model_type": "gemma3n_text", "head_dim": 256, "hidden_size": 2048, "max_position_embeddings": 32768,
        "num_attention_heads": 8, "num_hidden_layers": 35, "num_key_value_heads": 2, "num_kv_shared_layers": 15,
        "sliding_window": 512,
        "layer_types": types(&[&["sliding_attention"; 4][..], &["full_attention"]].concat(), 7)
    }});
    assert_eq!(shape(&gemma3n), (20, 8, 2, 256, 32_768, Some((512, 16))));
    let of_32 = |field: &str, value: Value| with(llama(), &[("model_type", json!("hybrid")), (field, value)]);
    for (field, value, layers) in [
        ("layer_types", types(&["mamba", "attention"], 16), 16),
        ("layers_block_type", types(&["mamba", "hybrid", "mamba", "mamba"], 8), 8),
        ("block_types", json!(["recurrent", "recurrent", "attention"]), 10),
        ("hybrid_override_pattern", json!("M-M*".repeat(8)), 8),
        ("attn_type_list", json!([0, 0, 0, 1].repeat(8)), 8),
        ("attn_layer_indices", json!([9, 18, 27]), 3),
        ("full_attn_idxs", json!([2, 5]), 2),
        ("attn_layer_period", json!(8), 4),
    ] {
        assert_eq!(shape(&of_32(field, value)).0, layers, "{field}");
    }
    let none = of_32("layer_types", types(&["mamba"], 32));
    assert_eq!(message(&none), "config.json: none of the 32 layers keeps K and V, so there is nothing to cache");
    let windows = of_32("sliding_window", json!([vec![Value::Null; 8], vec![json!(512); 24]].concat()));
    assert_eq!(shape(&windows).5, Some((512, 24)));
    for none in [0, -1] {
        let windows = of_32("sliding_window", json!([vec![json!(none); 8], vec![json!(512); 24]].concat()));
        assert_eq!(shape(&windows).5, Some((512, 24)), "{none}");
        assert_eq!(shape(&of_32("sliding_window", json!(vec![none; 32]))).5, None, "{none}");
    }
    let two = of_32("sliding_window", json!([vec![json!(256); 8], vec![json!(512); 24]].concat()));
    assert!(message(&two).starts_with("config.json: sliding_window is 512, not 256 as in the layers before it"));
}

#[test]
fn attention_beside_other_layers_may_have_a_window() {
    let plamo2 = json!({
        "model_type": "plamo2", "hidden_size": 4096, "hidden_size_per_head": 128, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 4, "mamba_step": 2, "mamba_enabled": true,
        "attention_window_size": 2048, "full_attention_idx": [3, 31], "max_position_embeddings": 10485760
    });
    assert_eq!(shape(&plamo2), (16, 32, 4, 128, 10_485_760, Some((2048, 14))));
    assert_eq!(shape(&without(plamo2, "full_attention_idx")).5, Some((2048, 16)));
    let recurrent_gemma = json!({
        "model_type": "recurrent_gemma", "attention_window_size": 2048, "head_dim": 256, "hidden_size": 2560,
        "block_types": ["recurrent", "recurrent", "attention"], "num_attention_heads": 10, "num_hidden_layers": 26,
        "num_key_value_heads": 1
    });
    assert_eq!(shape(&recurrent_gemma), (8, 10, 1, 256, 2048, Some((2048, 8))));
}

#[test]
fn kinds_without_k_and_v_of_plain_attention_are_refused_by_name() {
    let of = |kind: &str| with(llama(), &[("model_type", json!(kind))]);
    for (kind, expected) in [
        ("bert", "a decoder: an encoder sees all tokens at once and caches nothing"),
        ("roberta", "a decoder: an encoder sees all tokens at once and caches nothing"),
        ("vit", "a decoder: an encoder sees all tokens at once and caches nothing"),
        (
            "phi4flash",
            "of plain attention: its layers subtract two attentions, and half of them read the K and V of another",
        ),
        ("hymba", "of plain attention: its layers add a state to it, share K and V, and all see tokens of no text"),
    ] {
        assert_eq!(message(&of(kind)), format!("config.json: model_type is {kind:?}, not {expected}"));
    }
    // Some encoders were trained as decoders; and one for images may stand beside a decoder.
    assert_eq!(shape(&with(of("bert"), &[("is_decoder", json!(true))])).0, 32);
    assert_eq!(shape(&json!({"model_type": "vit", "text_config": llama()})).0, 32);
}

#[test]
fn x12_layers_with_other_numbers_of_heads_take_what_they_take() {
    let openelm = json!({
        "model_type": "openelm", "head_dim": 64, "max_context_length": 2048, "model_dim": 1280, "num_kv_heads": [3, 3, 4, 5],
        "num_query_heads": [12, 12, 16, 20], "num_transformer_layers": 4
    });
    let model = parse(&openelm).unwrap();
    assert_eq!(shape(&openelm), (15, 4, 1, 64, 2048, None));
    assert_eq!(model.kv_bytes_per_token(KvDtype::F16), (3 + 3 + 4 + 5) * 2 * 64 * 2);
    assert_eq!(
        model.note.unwrap(),
        "its 4 layers have different numbers of heads; they are counted as 15 of 1 KV head"
    );
    let short = with(openelm.clone(), &[("num_kv_heads", json!([3, 3, 4]))]);
    assert_eq!(message(&short), "config.json: num_kv_heads is \"3 items\", not one for each of the 4 layers");
    let uneven = with(openelm, &[("num_kv_heads", json!([3, 3, 4, 7]))]);
    assert_eq!(message(&uneven), "config.json: num_kv_heads is 7, not a divisor of num_attention_heads 20");
    let block = |group: Value| json!({"attention": {"n_heads_in_group": group, "no_op": group.is_null()}});
    let deci = json!({
        "model_type": "nemotron-nas", "hidden_size": 8192, "max_position_embeddings": 131072, "num_attention_heads": 64,
        "num_hidden_layers": 4, "num_key_value_heads": null,
        "block_configs": [block(json!(8)), block(json!(null)), block(json!(16)), block(json!(8))]
    });
    assert_eq!(shape(&deci), (5, 64, 4, 128, 131_072, None), "8, 4 and 8 KV heads in parts of 4");
    let decilm = [("num_key_value_heads_per_layer", json!(vec![4; 32])), ("num_key_value_heads", json!(8))];
    assert_eq!(shape(&with(llama(), &decilm)), (32, 32, 4, 128, 8192, None));
    let other = with(llama(), &[("v_head_dim", json!(64))]);
    assert_eq!(message(&other), "config.json: v_head_dim is 64, not 128, the head_dim of all layers");
    let encoder = with(llama(), &[("model_type", json!("t5")), ("is_encoder_decoder", json!(true))]);
    assert_eq!(message(&encoder), "config.json: is_encoder_decoder is true, not a model of a decoder alone");
}

#[test]
fn x17_numbers_as_python_writes_them_and_empty_ranks() {
    let text = llama().to_string().replace("500000.0", "NaN").replacen('{', "{\"a\": [Infinity, -Infinity], ", 1);
    assert_eq!(hub::parse(text.as_bytes(), "config.json", None, None).unwrap(), parse(&llama()).unwrap());
    for rank in [json!(0), json!(null)] {
        assert_eq!(parse(&with(llama(), &[("kv_lora_rank", rank)])).unwrap(), parse(&llama()).unwrap());
    }
}

#[test]
fn x11_the_longest_context_includes_what_stretches_it() {
    let length = |scaling: Value| parse(&with(llama(), &[("rope_scaling", scaling)])).unwrap().max_seq_len;
    assert_eq!(length(json!(null)), 8192);
    assert_eq!(length(json!({"type": "linear", "factor": 4.0})), 8192, "given after it");
    assert_eq!(length(json!({"type": "dynamic", "factor": 4.0})), 32_768);
    assert_eq!(length(json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 8192})), 32_768);
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 1024});
    assert_eq!(length(llama3), 8192, "of the stretched length already");
    assert_eq!(length(json!({"type": "su", "long_factor": [1.0]})), 8192);
    assert_eq!(length(json!({"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": true})), 8192);
    let local = json!({"rope_type": "default", "rope_theta": 10_000.0});
    let global = json!({"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0});
    let by_layers = json!({"sliding_attention": local, "full_attention": global});
    assert_eq!(parse(&with(llama(), &[("rope_parameters", by_layers)])).unwrap().max_seq_len, 8192);
    let text = without(llama(), "max_position_embeddings").to_string();
    let asked = hub::parse(text.as_bytes(), "config.json", None, Some(77)).unwrap();
    assert_eq!((asked.max_seq_len, asked.note), (77, None));
    let untold = hub::parse(text.as_bytes(), "config.json", None, None).unwrap();
    assert_eq!(untold.max_seq_len, 2048);
    assert_eq!(
        untold.note.unwrap(),
        "nothing tells its longest context, so it is taken as 2048 tokens; --max-len gives another"
    );
}

#[test]
fn x12_the_given_length_is_final_unless_a_rotation_stretches_it() {
    let length = |config: &Value| parse(config).unwrap().max_seq_len;
    let llama3 = json!({"rope_type": "llama3", "factor": 32.0, "original_max_position_embeddings": 8192});
    let small = [("max_position_embeddings", json!(131_072)), ("rope_scaling", llama3)];
    assert_eq!(length(&with(llama(), &small)), 131_072);
    let linear = json!({"type": "linear", "factor": 4.0, "original_max_position_embeddings": 8192});
    let coder = [("max_position_embeddings", json!(16_384)), ("rope_scaling", linear)];
    assert_eq!(length(&with(llama(), &coder)), 16_384);
    assert_eq!(length(&with(llama(), &[("model_max_length", json!(131_072))])), 131_072, "as in Command R");
    let marked = format!("\u{feff}{}", llama());
    assert_eq!(hub::parse(marked.as_bytes(), "config.json", None, None).unwrap(), parse(&llama()).unwrap());
}

#[test]
fn x12_one_kv_head_is_what_some_kinds_have_unless_they_say_otherwise() {
    let kv_heads = |kind: &str, changes: &[(&str, Value)]| {
        let config = with(without(llama(), "num_key_value_heads"), &[("model_type", json!(kind))]);
        shape(&with(config, changes)).2
    };
    for kind in ["falcon", "gpt_bigcode"] {
        assert_eq!(kv_heads(kind, &[]), 1, "{kind}");
        assert_eq!(kv_heads(kind, &[("multi_query", json!(false))]), 32, "{kind}");
    }
    let new = [("new_decoder_architecture", json!(true)), ("num_kv_heads", json!(8))];
    assert_eq!(kv_heads("falcon", &new), 8);
    assert_eq!(kv_heads("other", &[("attention_head_type", json!("multiquery"))]), 1);
    assert_eq!(kv_heads("other", &[("attention_head_type", json!("multihead"))]), 32);
    assert_eq!(kv_heads("step3_text", &[("num_attention_groups", json!(4))]), 4);
}

#[test]
fn x12_models_without_attention_are_refused_by_the_field_that_says_so() {
    let config = json!({"hidden_size": 4096, "num_heads": 128, "head_dim": 64, "num_hidden_layers": 32});
    for (kind, field, value) in [
        ("mamba2", "state_size", json!(128)),
        ("mamba2", "conv_kernel", json!(4)),
        ("xlstm", "qk_dim_factor", json!(0.5)),
        ("rwkv7", "decay_low_rank_dim", json!(64)),
        ("rwkv6", "rescale_every", json!(6)),
        ("gated_deltanet", "attn_mode", json!("chunk")),
        ("retnet", "expand_v", json!(2)),
        ("modernbert-decoder", "local_attention", json!(128)),
    ] {
        let config = with(config.clone(), &[("model_type", json!(kind)), (field, value.clone())]);
        let expected = "left out; where it stands, layer_types must tell which layers keep K and V";
        assert_eq!(message(&config), format!("config.json: {field} is {value}, not {expected}"));
        let listed = [("layer_types", json!(["mamba", "attention"].repeat(16)))];
        assert_eq!(shape(&with(config, &listed)).0, 16, "{kind}");
    }
}

#[test]
fn x12_a_window_of_zero_or_minus_one_is_none() {
    for none in [json!(0), json!(-1)] {
        for kind in ["other", "mistral", "gemma2"] {
            let config = with(llama(), &[("model_type", json!(kind)), ("sliding_window", none.clone())]);
            assert_eq!(shape(&config).5, None, "{kind}");
        }
        let config = with(
            llama(),
            &[("model_type", json!("mpt")), ("attn_config", json!({"sliding_window_size": none.clone()}))],
        );
        assert_eq!(shape(&config).5, None);
    }
}

#[test]
fn x12_layers_that_a_field_sets_apart_are_counted_apart() {
    let layers = |changes: &[(&str, Value)]| {
        let of_kind = with(llama(), &[("model_type", json!("other"))]);
        let shape = shape(&with(of_kind, changes));
        (shape.0, shape.5)
    };
    assert_eq!(layers(&[("cross_attention_layers", json!([3, 8, 13, 18]))]), (28, None));
    assert_eq!(layers(&[("mamba_step", json!(2)), ("mamba_enabled", json!(true))]), (16, None));
    assert_eq!(layers(&[("mamba_step", json!(2)), ("mamba_enabled", json!(false))]), (32, None));
    assert_eq!(layers(&[("use_cla", json!(true)), ("cla_share_factor", json!(2))]), (16, None));
    assert_eq!(layers(&[("use_cla", json!(false)), ("cla_share_factor", json!(2))]), (32, None));
    let every = [("global_attn_every_n_layers", json!(4)), ("sliding_window", json!(2048))];
    assert_eq!(layers(&every), (32, Some((2048, 24))));
    for name in ["attn_layer_indices", "full_attn_idxs", "cross_attention_layers"] {
        let text = message(&with(llama(), &[("model_type", json!("other")), (name, json!([3, 40]))]));
        assert_eq!(text, format!("config.json: {name} is 40, not below 32"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_stands_in_a_field_is_read_or_refused(
        family in 0..families::FAMILIES.len(),
        changes in prop::collection::vec(
            (
                prop::sample::select(vec![
                    "hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads",
                    "num_key_value_heads", "head_dim", "sliding_window", "sliding_window_pattern",
                    "max_window_layers", "use_sliding_window", "max_position_embeddings", "num_local_experts",
                    "num_experts", "moe_intermediate_size", "layer_types", "text_config", "model_type", "n_layer",
                    "num_kv_shared_layers", "attention_types", "block_types", "attn_layer_period", "multi_query",
                    "rope_scaling", "attention_chunk_size", "no_rope_layers", "block_configs", "attn_config",
                ]),
                prop_oneof![
                    Just(json!(null)), Just(json!(true)), Just(json!("x")), Just(json!([1])), Just(json!({})),
                    Just(json!([])), Just(json!([[["global", "local"], 16]])), Just(json!({"rope_type": "linear", "factor": 1e300})),
                    any::<u64>().prop_map(|n| json!(n)), (0_u64..9).prop_map(|n| json!(n)),
                    Just(json!(u32::MAX)), any::<f64>().prop_map(|x| json!(x)),
                ],
            ),
            0..6,
        ),
    ) {
        let mut config = with(llama(), &[("model_type", json!(families::FAMILIES[family].model_type))]);
        if changes.len() % 2 == 1 {
            config["text_config"] = llama();
        }
        config = with(config, &changes.iter().map(|(field, value)| (*field, value.clone())).collect::<Vec<_>>());
        match parse(&config) {
            Ok(model) => {
                prop_assert!(model.cache_config().with_max_sequences(1).with_num_blocks(1).layout().is_ok(), "{:?}", model);
                prop_assert!(model.windowed_layers <= model.num_layers);
                prop_assert_eq!(model.window.is_some(), model.windowed_layers > 0);
            }
            Err(error) => prop_assert!(error.to_string().starts_with("config.json: ")),
        }
    }
}
