use super::*;

fn refused(object: &str, model: &RopeModel) -> String {
    let parameters: RopeParameters = serde_json::from_str(object).unwrap_or_else(|error| panic!("{object}: {error}"));
    parameters.rope(model).expect_err(object).to_string()
}

fn model() -> RopeModel {
    RopeModel::new(8, 100)
}

#[test]
fn unknown_keys_and_types_are_refused_by_name() {
    for (object, words) in [
        (r#"{"rope_type": "linear", "fctor": 2.0}"#, "unknown field `fctor`, expected one of `rope_type`, `type`"),
        (r#"{"type": "dynamic", "alpha": 1000.0}"#, "unknown field `alpha`"),
        (r#"{"rope_type": "spiral"}"#, "unknown variant `spiral`, expected one of `default`, `linear`"),
        (r#"{"rope_type": "linear", "factor": "two"}"#, "invalid type: string \"two\", expected f64"),
    ] {
        let said = serde_json::from_str::<RopeParameters>(object).unwrap_err().to_string();
        assert!(said.starts_with(words), "`{said}` does not begin with `{words}`");
    }
}

#[test]
fn missing_and_needless_keys_are_refused_by_name() {
    for (object, words) in [
        (r#"{"type": "linear"}"#, "factor is missing, but rope type linear needs it"),
        (r#"{"type": "dynamic", "factor": 2}"#, "original_max_position_embeddings is missing"),
        (r#"{"type": "yarn", "original_max_position_embeddings": 40}"#, "factor is missing, but rope type yarn"),
        (r#"{"type": "llama3", "factor": 2, "low_freq_factor": 1}"#, "high_freq_factor is missing"),
        (r#"{"type": "longrope", "original_max_position_embeddings": 40}"#, "short_factor is missing"),
        (r#"{"type": "mrope"}"#, "mrope_section is missing, but rope type mrope needs it"),
        (r#"{"mrope_interleaved": true}"#, "mrope_section is missing, but rope type default"),
        (r#"{"rope_type": "default", "factor": 8.0}"#, "factor is given, but rope type default has no use for it"),
        (r#"{"factor": 8.0}"#, "factor is given, but rope type default"),
        (r#"{"rope_type": "linear", "factor": 8.0, "beta_fast": 32}"#, "beta_fast is given, but rope type linear"),
        (r#"{"rope_type": "yarn", "factor": 8.0, "long_factor": [1]}"#, "long_factor is given, but rope type yarn"),
    ] {
        let said = refused(object, &model());
        assert!(said.starts_with(words), "`{said}` does not begin with `{words}`");
    }
}

#[test]
fn llama_3_is_told_what_it_was_stretched_from() {
    let object = r#"{"type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4}"#;
    let said = refused(object, &model().with_max_position_embeddings(90));
    assert!(said.starts_with("original_max_position_embeddings is missing, but rope type llama3"), "{said}");
}

#[test]
fn values_that_cannot_be_are_refused_by_name() {
    let longrope = |short: &str, long: &str| {
        format!(
            r#"{{"type": "longrope", "factor": 2, "original_max_position_embeddings": 40, "short_factor": {short},
                "long_factor": {long}}}"#
        )
    };
    let llama3 = r#"{"type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4}"#;
    for (object, words) in [
        (r#"{"type": "linear", "factor": 0.5}"#.to_owned(), "factor is 0.5; it must be at least 1, and finite"),
        (r#"{"rope_theta": 1.0}"#.to_owned(), "rope_theta is 1; it must be greater than 1, and finite"),
        (r#"{"partial_rotary_factor": 1.5}"#.to_owned(), "partial_rotary_factor is 1.5; it must be above 0"),
        (
            r#"{"partial_rotary_factor": 0.4}"#.to_owned(),
            "partial_rotary_factor is 0.4; it must be a part of head_dim 8 that is an even number from 2 on, not 3",
        ),
        (r#"{"type": "yarn", "factor": 2, "beta_slow": -1}"#.to_owned(), "beta_slow is -1; it must be positive"),
        (
            r#"{"type": "yarn", "factor": 2, "beta_slow": 40}"#.to_owned(),
            "beta_slow is 40, but beta_fast is 32; the first",
        ),
        (
            r#"{"type": "dynamic", "factor": 1e300, "original_max_position_embeddings": 40}"#.to_owned(),
            "factor is 1000000000",
        ),
        (llama3.to_owned(), "low_freq_factor is 4, but high_freq_factor is 4; the first must be less"),
        (longrope("[1, 1, 1]", "[1, 1, 1, 1]"), "short_factor has 3 elements instead of 4"),
        (longrope("[1, 1, 1, 1]", "[]"), "long_factor has 0 elements instead of 4"),
        (longrope("[1, 1, 0, 1]", "[1, 1, 1, 1]"), "short_factor[2] is 0; it must be positive and finite"),
        (r#"{"mrope_section": [1, 2]}"#.to_owned(), "mrope_section has 2 elements instead of 3"),
        (
            r#"{"mrope_section": [1, 2, 2]}"#.to_owned(),
            "mrope_section is [1, 2, 2]; it must be numbers whose sum is the 4 pairs that are rotated",
        ),
        (r#"{"type": "yarn", "rope_type": "linear"}"#.to_owned(), "rope_type is linear, but type is yarn; leave one"),
    ] {
        let said = refused(&object, &model());
        assert!(said.starts_with(words), "`{said}` does not begin with `{words}`");
    }
    // JSON has no NaN, but a struct has.
    for wrong in [f64::NAN, f64::INFINITY] {
        let mut parameters = RopeParameters::new(RopeType::Linear);
        parameters.factor = Some(wrong);
        assert!(matches!(parameters.rope(&model()), Err(RopeError::Value { key: "factor", .. })));
        let mut parameters: RopeParameters = serde_json::from_str(&longrope("[1, 1, 1, 1]", "[1, 1, 1, 1]")).unwrap();
        parameters.long_factor.as_mut().unwrap()[3] = wrong;
        let error = parameters.rope(&model()).unwrap_err();
        assert!(matches!(error, RopeError::Element { key: "long_factor", index: 3, .. }), "{error}");
    }
}

#[test]
fn what_stands_beside_the_object_may_not_differ_from_it() {
    let object = r#"{"rope_theta": 5000.0, "partial_rotary_factor": 0.5}"#;
    let parameters: RopeParameters = serde_json::from_str(object).unwrap();
    let alike = model().with_rope_theta(5000.0).with_partial_rotary_factor(0.5);
    assert_eq!(parameters.rope(&alike), parameters.rope(&model()));
    let said = refused(object, &model().with_rope_theta(500.0));
    assert_eq!(said, "rope_theta is 5000, but the one beside the rope object is 500; leave one of them out");
}

#[test]
fn objects_of_old_and_new_files_mean_the_same() {
    let rope =
        |object: &str, model: &RopeModel| serde_json::from_str::<RopeParameters>(object).unwrap().rope(model).unwrap();
    let old = rope(r#"{"type": "linear", "factor": 4.0}"#, &model().with_rope_theta(5e5));
    let new = rope(r#"{"rope_type": "linear", "factor": 4, "rope_theta": 500000}"#, &model());
    let both = rope(
        r#"{"type": "linear", "rope_type": "linear", "factor": 4, "beta_fast": null}"#,
        &model().with_rope_theta(5e5),
    );
    assert_eq!((&old, &old), (&new, &both));
    assert_eq!(rope("{}", &model()).inv_freq[0], 1.0);
    let both = rope(r#"{"type": "mrope", "rope_type": "default", "mrope_section": [2, 1, 1]}"#, &model());
    assert_eq!((both.mrope_section, both.mrope_interleaved), (Some([2, 1, 1]), false));
}
