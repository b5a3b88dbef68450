//! A device is calibrated, and its clock tells the time of steps that it has not seen.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::bench::models::ModelShape;
use crate::replay::cost::{CalibrateError, CalibrateOptions, CalibratedClock, Calibration, Layers, calibrate};
use crate::replay::{Clock, StepWork};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::testkit::test_device;

fn options() -> CalibrateOptions {
    CalibrateOptions {
        shape: ModelShape::by_name("llama-3-8b").unwrap(),
        kv_dtype: KvDtype::F16,
        block_size: 16,
        seed: 1,
        time_budget: Duration::from_secs(10),
    }
}

#[test]
fn a_calibrated_clock_knows_what_longer_steps_cost() {
    let Some(gpu) = test_device() else { return };
    let (start, mut labels) = (Instant::now(), Vec::new());
    let calibration =
        calibrate(&gpu, &options(), &AtomicBool::new(false), &mut |_, _, label| labels.push(label.to_owned())).unwrap();
    println!("calibrated in {:.1} s: {:?}", start.elapsed().as_secs_f64(), calibration.coefficients);
    for point in &calibration.points {
        println!(
            "{:5} {:28} {:9.1} us measured, {:9.1} predicted",
            if point.held_out { "held" } else { "fit" },
            point.what,
            point.measured_us,
            point.predicted_us
        );
    }
    println!("error: {:.3} mean, {:.3} largest", calibration.fit_error_mean, calibration.fit_error_max);
    assert!(labels.contains(&"timing".to_owned()) && labels.contains(&"decode 64".to_owned()) || !gpu.is_software());
    // A busy machine is forgiven much, a model without sense is not.
    assert!(calibration.fit_error_mean < 0.5, "{}", calibration.fit_error_mean);
    calibration.check_fits(&options().shape, KvDtype::F16, 16).unwrap();
    let again = Calibration::from_json(&calibration.to_json().unwrap(), "again").unwrap();
    assert_eq!(again.points.len(), calibration.points.len());

    let layers = Layers { num_layers: 32, windowed_layers: 0, num_weights: None };
    let clock = CalibratedClock::new(calibration, layers);
    let step = StepWork { decoding: 8, decode_keys: 8192, ..StepWork::default() };
    let longer = StepWork { decode_keys: 4 * 8192, ..step };
    let quotient = clock.step_s(&longer) / clock.step_s(&step);
    assert!((1.5..=4.5).contains(&quotient), "four times the keys take {quotient} times as long");
    assert_eq!(clock.describe().adapter, Some(gpu.info.name));
}

#[test]
fn a_calibration_can_be_stopped() {
    let Some(gpu) = test_device() else { return };
    let stopped = calibrate(&gpu, &options(), &AtomicBool::new(true), &mut |_, _, _| ());
    assert!(matches!(stopped, Err(CalibrateError::Cancelled)));
}
