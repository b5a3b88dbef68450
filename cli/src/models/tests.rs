use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn parse(config: &Value) -> Result<Model, ModelError> {
    hub::parse(config.to_string().as_bytes(), "config.json", None)
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
fn the_measured_shapes_are_those_of_the_models() {
    for shape in ModelShape::BUILT_IN {
        assert_eq!(Model::by_name(&shape.name).unwrap().shape(), shape);
    }
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
    assert_eq!(message(&with(qwen3_moe, &windowed)), r#"config.json: no field "layer_types""#);
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
    assert_eq!(message(&without(used.clone(), "max_window_layers")), r#"config.json: no field "max_window_layers""#);
    let mut types = vec![json!("full_attention"); 31];
    types.push(json!("sliding_attention"));
    let listed = with(used, &[("layer_types", json!(types))]);
    assert_eq!(windows(&listed), (1, Some(1000)));
    assert_eq!(message(&without(listed, "sliding_window")), r#"config.json: no field "sliding_window""#);

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
    assert_eq!(message(&without(gemma3, "text_config")), r#"config.json: no field "text_config""#);
}

#[test]
fn refusals_name_file_field_value_and_limit() {
    for (field, value, expected) in [
        ("model_type", json!(null), "model_type is null, not the name of a kind of model"),
        ("num_hidden_layers", json!(65537), "num_hidden_layers is 65537, not a whole number from 1 to 65536"),
        ("num_hidden_layers", json!("32"), "num_hidden_layers is \"32\", not a whole number from 1 to 65536"),
        ("num_hidden_layers", json!(null), r#"no field "num_hidden_layers""#),
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
        ("layer_types", json!([]), "layer_types is \"0 types\", not one for each of num_hidden_layers 32"),
        (
            "layer_types",
            json!(vec!["linear_attention"; 32]),
            "layer_types is \"linear_attention\", not made of full_attention and sliding_attention",
        ),
    ] {
        assert_eq!(message(&with(llama(), &[(field, value)])), format!("config.json: {expected}"));
    }
    for field in ["model_type", "num_hidden_layers", "num_attention_heads", "hidden_size", "max_position_embeddings"] {
        assert_eq!(message(&without(llama(), field)), format!("config.json: no field {field:?}"));
    }
    let unknown = message(&with(llama(), &[("model_type", json!("mamba"))]));
    assert!(unknown.starts_with(r#"config.json: model_type "mamba" is not known; known are llama, mistral, "#));
    let latent = [("model_type", json!("deepseek_v3")), ("kv_lora_rank", json!(512))];
    let latent = message(&with(llama(), &latent));
    assert!(latent.starts_with("config.json: kv_lora_rank is 512: multi-head latent attention"), "{latent}");
    let broken = hub::parse(b"{\n\"model_type\": ", "config.json", None).unwrap_err().to_string();
    assert!(broken.starts_with("config.json: not a JSON object: ") && broken.contains("line 2"), "{broken}");
    assert_eq!(
        Model::by_name("gpt").unwrap_err().to_string(),
        "unknown model \"gpt\"; known are llama-13b, llama-2-7b, llama-3-8b, llama-3-70b, mistral-7b, qwen2-7b, qwen3-8b, \
         gemma-2-9b, gemma-3-270m, phi-3-mini, or give the config.json of another one"
    );
}

#[test]
fn files_are_named_after_their_folder_and_have_a_limit() {
    let folder = std::env::temp_dir().join(format!("paged-attention-models-{}", std::process::id())).join("Mine-8B");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("config.json");
    std::fs::write(&path, llama().to_string()).unwrap();
    let model = Model::from_config(&path).unwrap();
    std::fs::write(&path, vec![b' '; (1 << 20) + 1]).unwrap();
    let large = Model::from_config(&path).unwrap_err().to_string();
    std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();
    assert_eq!(model.name, "Mine-8B");
    assert_eq!(
        large,
        format!("{}: more than 1048576 bytes, so it is no config.json; give the file of that name", path.display())
    );
    assert!(Model::from_config(&path).unwrap_err().to_string().starts_with(&path.display().to_string()));
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
                    "num_experts", "moe_intermediate_size", "layer_types", "text_config",
                ]),
                prop_oneof![
                    Just(json!(null)), Just(json!(true)), Just(json!("x")), Just(json!([1])), Just(json!({})),
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
