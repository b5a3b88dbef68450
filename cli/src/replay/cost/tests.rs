use rand::RngExt;

use super::calibration::CalibrationError;
use super::calibration::{Point, Setup};
use super::coefficients::{AppendCost, Coefficients, DecodeCost, Part, PrefillCost};
use super::*;
use crate::bench::models::ModelShape;
use crate::bench::report::Ceilings;
use crate::models::Model;
use crate::replay::{Clock, StepWork};
use crate::report::Adapter;
use crate::seed::rng_for;
use wgpu_paged_attention::config::KvDtype;

/// Coefficients as a GPU might have them: fixed costs matter in small steps only.
const TRUE: Coefficients = Coefficients {
    append: AppendCost { fixed_us: 8.0, token_us: 0.05 },
    decode: DecodeCost { fixed_us: 12.0, sequence_us: 0.7, key_us: 0.004 },
    prefill: PrefillCost { fixed_us: 15.0, token_us: 0.3, pair_us: 0.0009 },
};

fn setup() -> Setup {
    Setup {
        adapter: Adapter { name: "card".into(), driver: "driver".into(), ..Adapter::default() },
        model: "llama-3-8b".into(),
        num_q_heads: 32,
        num_kv_heads: 8,
        head_dim: 128,
        kv_dtype: KvDtype::F16,
        block_size: 16,
        ceilings: Ceilings { read_gb_s: Some(100.0), fma_gflop_s: Some(1000.0), ..Ceilings::default() },
        submit_us: 100.0,
    }
}

/// Steps of all kinds, timed by `TRUE` with a relative error of up to `noise`.
fn points(noise: f64) -> Vec<Point> {
    let mut rng = rng_for("noise", 3);
    let mut points = Vec::new();
    let mut push = |what: &str, part, work: StepWork, held_out| {
        let noise = if noise > 0.0 { rng.random_range(-noise..noise) } else { 0.0 };
        let measured_us = TRUE.layer_us(part, &work) * (1.0 + noise);
        points.push(Point { what: what.into(), part, work, measured_us, predicted_us: 0.0, held_out });
    };
    let none = StepWork::default();
    let prompt = |tokens: u32, context: u64| StepWork {
        prompt_tokens: tokens,
        prompt_pairs: u64::from(tokens) * context,
        chunks: 1,
        ..none
    };
    for tokens in [1, 16, 64, 256, 1024] {
        push("append", Part::Append, StepWork { prompt_tokens: tokens, ..none }, false);
        push("prefill", Part::Attention, prompt(tokens, u64::from(tokens)), false);
        push("chunk", Part::Attention, prompt(tokens, 4096), false);
    }
    for (decoding, keys) in [(1, 64), (1, 2048), (16, 256), (64, 16_384), (8, 32_768), (128, 1024)] {
        push("decode", Part::Attention, StepWork { decoding, decode_keys: keys, ..none }, false);
    }
    push("decode", Part::Attention, StepWork { decoding: 30, decode_keys: 9000, ..none }, true);
    push("mixed", Part::Attention, StepWork { decoding: 30, decode_keys: 9000, ..prompt(500, 700) }, true);
    push("append", Part::Append, StepWork { decoding: 30, prompt_tokens: 500, ..none }, true);
    points
}

#[test]
fn known_coefficients_are_recovered() {
    let calibration = Calibration::fitted(setup(), points(0.0)).unwrap();
    for ((name, found), (_, wanted)) in calibration.coefficients.all().into_iter().zip(TRUE.all()) {
        assert!((found / wanted - 1.0).abs() < 0.01, "{name}: {found} instead of {wanted}");
    }
    assert!(calibration.fit_error_max < 1e-6, "{}", calibration.fit_error_max);
    assert_eq!(calibration.fit_points(), 21);
}

#[test]
fn noisy_times_are_predicted_within_the_stated_error() {
    let calibration = Calibration::fitted(setup(), points(0.05)).unwrap();
    let held_out = calibration.points.iter().filter(|point| point.held_out);
    for Point { what, measured_us, predicted_us, .. } in held_out {
        let error = (predicted_us / measured_us - 1.0).abs();
        assert!(error <= calibration.fit_error_max, "{what}: {error}");
    }
    // The noise of what is predicted, and what is left of that of the fit.
    assert!((0.001..0.1).contains(&calibration.fit_error_max), "{}", calibration.fit_error_max);
    assert!(calibration.fit_error_mean <= calibration.fit_error_max);
    // A step like none that was measured is near the truth as well.
    let step = StepWork {
        decoding: 50,
        decode_keys: 50_000,
        prompt_tokens: 200,
        prompt_pairs: 100_000,
        chunks: 2,
        ..StepWork::default()
    };
    let us = |coefficients: &Coefficients| coefficients.layer_us(Part::Attention, &step);
    assert!((us(&calibration.coefficients) / us(&TRUE) - 1.0).abs() < 0.1);
}

#[test]
fn a_wrong_coefficient_shows_in_the_points_held_out() {
    let mut calibration = Calibration::fitted(setup(), points(0.02)).unwrap();
    let honest = calibration.fit_error_max;
    calibration.coefficients.decode.key_us *= 1.5;
    calibration.judge();
    assert!(calibration.fit_error_max > 0.1 && calibration.fit_error_max > 3.0 * honest);
    // And a file in which only the coefficient was changed does not pass.
    let mut forged = Calibration::fitted(setup(), points(0.02)).unwrap();
    forged.coefficients.prefill.pair_us *= 1.01;
    assert!(matches!(forged.to_json(), Err(CalibrationError::Inconsistent { .. })));
}

#[test]
fn a_file_gives_the_same_calibration_again() {
    let calibration = Calibration::fitted(setup(), points(0.05)).unwrap();
    let json = calibration.to_json().unwrap();
    assert_eq!(Calibration::from_json(&json, "file").unwrap(), calibration);
}

#[test]
fn foreign_and_damaged_files_are_refused_by_name() {
    let json = Calibration::fitted(setup(), points(0.05)).unwrap().to_json().unwrap();
    let refusal = |text: &str| Calibration::from_json(text, "gpu.json").unwrap_err().to_string();
    assert!(refusal(&json[..json.len() / 2]).starts_with("gpu.json:"), "{}", refusal(&json[..json.len() / 2]));
    assert_eq!(refusal("{}"), "gpu.json: kind is missing, where calibration is wanted");
    assert_eq!(refusal(r#"{"schema":1,"kind":"bench"}"#), "gpu.json: kind is bench, where calibration is wanted");
    let newer = json.replacen("\"schema\": 1", "\"schema\": 2", 1);
    assert_eq!(refusal(&newer), "gpu.json: schema is 2, where 1 is wanted");
    let unknown = json.replacen("\"submit_us\"", "\"submit\"", 1);
    assert!(refusal(&unknown).contains("unknown field `submit`"), "{}", refusal(&unknown));
    let negative = json.replacen("\"submit_us\": 100.0", "\"submit_us\": -1.0", 1);
    assert_eq!(refusal(&negative), "gpu.json: submit_us is -1, which no measurement gives");
    let without = json.replacen("\"read_gb_s\": 100.0", "\"read_gb_s\": null", 1);
    assert_eq!(refusal(&without), "gpu.json: read_gb_s is null, which no measurement gives");
    let mut unjudged = Calibration::fitted(setup(), points(0.0)).unwrap();
    unjudged.points.retain(|point| !point.held_out);
    unjudged.judge();
    let unjudged = refusal(&serde_json::to_string(&unjudged).unwrap());
    assert!(unjudged.starts_with("gpu.json: ") && unjudged.contains(" and 0 held out"), "{unjudged}");
    assert!(matches!(Calibration::read("no/such/file"), Err(CalibrationError::Io { .. })));
}

#[test]
fn a_calibration_serves_only_what_it_was_made_for() {
    let calibration = Calibration::fitted(setup(), points(0.0)).unwrap();
    let shape = ModelShape::by_name("llama-3-8b").unwrap();
    calibration.check_fits(&shape, KvDtype::F16, 16).unwrap();
    let other = ModelShape::by_name("llama-13b").unwrap();
    for (shape, format, block_size, words) in [
        (&other, KvDtype::F16, 16, "heads 32/8 x 128, but 40/40 x 128"),
        (&shape, KvDtype::Int8, 16, "the format f16, but int8"),
        (&shape, KvDtype::F16, 32, "blocks of 16, but 32"),
    ] {
        let error = calibration.check_fits(shape, format, block_size).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn too_few_points_are_no_calibration() {
    let all = points(0.0);
    let without = |held_out: bool| all.iter().filter(|point| point.held_out != held_out).cloned().collect();
    for points in [Vec::new(), without(true), without(false)] {
        assert!(matches!(Calibration::fitted(setup(), points), Err(CalibrationError::TooFewPoints { .. })));
    }
    let mut broken = all.clone();
    broken[0].measured_us = f64::NAN;
    assert!(matches!(Calibration::fitted(setup(), broken), Err(CalibrationError::Number { .. })));
}

#[test]
fn a_step_is_its_layers_a_submission_and_the_bound_of_the_rest() {
    let calibration = Calibration::fitted(setup(), points(0.0)).unwrap();
    let layers = Layers { num_layers: 4, windowed_layers: 3, num_weights: None };
    let step = StepWork { decoding: 10, decode_keys: 5000, decode_window_keys: 1000, ..StepWork::default() };
    // Append: 8 + 10 · 0.05 = 8.5. Decode: 12 + 10 · 0.7 + 5,000 · 0.004 = 39; with the 1,000 keys of a window, 23.
    let expected = 1e-6 * (100.0 + 4.0 * 8.5 + 39.0 + 3.0 * 23.0);
    let clock = CalibratedClock::new(calibration.clone(), layers);
    assert!((clock.step_s(&step) / expected - 1.0).abs() < 1e-6, "{}", clock.step_s(&step));

    // 10⁹ weights: 2 GB at 100 GB/s are 20 ms; 10 tokens are 2·10¹⁰ operations at 10¹², 20 ms; 100 tokens 200 ms.
    let num_weights = Some(1_000_000_000);
    let bounded = CalibratedClock::new(calibration, Layers { num_weights, ..layers });
    assert!((bounded.step_s(&step) - expected - 0.02).abs() < 1e-9);
    let more = StepWork { decoding: 100, ..step };
    assert!((bounded.step_s(&more) - clock.step_s(&more) - 0.2).abs() < 1e-9);

    let record = bounded.describe();
    assert_eq!((record.kind.as_str(), record.adapter.as_deref(), record.fit_points), ("calibrated", Some("card"), 21));
    assert!(record.description.contains("no measurement but a bound"), "{}", record.description);
    assert!(clock.describe().description.contains("linear layers left out"));
}

#[test]
fn the_layers_of_a_model_are_counted() {
    let gemma = Model::by_name("gemma-2-9b").unwrap();
    let num_weights = Some(9_241_705_984);
    assert_eq!(Layers::of(&gemma, false), Some(Layers { num_layers: 42, windowed_layers: 21, num_weights }));
    let unknown = Model { num_weights: None, ..gemma };
    assert_eq!(Layers::of(&unknown, false), None);
    assert_eq!(Layers::of(&unknown, true).map(|layers| layers.num_weights), Some(None));
}
