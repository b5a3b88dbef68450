//! The clock of a calibrated device.

use super::{Calibration, Part, Setup};
use crate::models::Model;
use crate::replay::{Clock, ClockRecord, StepWork};

/// Bytes of a weight: half precision.
const WEIGHT_BYTES: f64 = 2.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    pub num_layers: u32,
    pub windowed_layers: u32,
    /// Weights, read once a step in f16 and multiplied with every token: by the ceilings of the device a bound of what is
    /// not attention. `None` leaves that out.
    pub num_weights: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct CalibratedClock {
    calibration: Calibration,
    layers: Layers,
}

impl Layers {
    /// The layers of a model; those that are not attention take what they must at least, unless they are to be left out.
    /// `None` if they are not, and the number of their weights is unknown.
    pub fn of(model: &Model, attention_only: bool) -> Option<Self> {
        let num_weights = if attention_only { None } else { Some(model.num_weights?) };
        Some(Self { num_layers: model.num_layers, windowed_layers: model.windowed_layers, num_weights })
    }
}

impl CalibratedClock {
    pub fn new(calibration: Calibration, layers: Layers) -> Self {
        Self { calibration, layers }
    }

    fn layers_us(&self, step: &StepWork) -> f64 {
        let layer_us = |work: &StepWork| {
            let coefficients = &self.calibration.coefficients;
            coefficients.layer_us(Part::Append, work) + coefficients.layer_us(Part::Attention, work)
        };
        let Layers { num_layers, windowed_layers, .. } = self.layers;
        let cut = windowed_layers.min(num_layers);
        f64::from(num_layers - cut) * layer_us(step) + f64::from(cut) * layer_us(&windowed(step))
    }

    fn linear_s(&self, step: &StepWork) -> f64 {
        let Some(num_weights) = self.layers.num_weights else { return 0.0 };
        let ceilings = &self.calibration.setup.ceilings;
        let tokens = f64::from(step.decoding) + f64::from(step.prompt_tokens);
        // A calibration without ceilings is refused when it is made or read.
        let rate = |ceiling: Option<f64>| ceiling.unwrap_or(f64::INFINITY) * 1e9;
        let read_s = WEIGHT_BYTES * num_weights as f64 / rate(ceilings.read_gb_s);
        let multiply_s = 2.0 * num_weights as f64 * tokens / rate(ceilings.fma_gflop_s);
        if tokens > 0.0 { read_s.max(multiply_s) } else { 0.0 }
    }
}

impl Clock for CalibratedClock {
    fn step_s(&self, step: &StepWork) -> f64 {
        (self.calibration.setup.submit_us + self.layers_us(step)) / 1e6 + self.linear_s(step)
    }

    fn describe(&self) -> ClockRecord {
        let Calibration { setup, fit_error_mean, fit_error_max, .. } = &self.calibration;
        let Setup { adapter, model, kv_dtype, block_size, ceilings, .. } = setup;
        let mut description = format!(
            "append and attention as measured on {} for {model} in {kv_dtype}, blocks of {block_size}",
            adapter.name
        );
        let number = |ceiling: Option<f64>| ceiling.unwrap_or(f64::NAN);
        description += &match self.layers.num_weights {
            None => "; linear layers left out".to_owned(),
            Some(num_weights) => format!(
                "; linear layers are no measurement but a bound: {num_weights} weights in f16 at {:.1} GB/s or {:.0} GFLOP/s",
                number(ceilings.read_gb_s),
                number(ceilings.fma_gflop_s)
            ),
        };
        ClockRecord {
            kind: "calibrated".to_owned(),
            description,
            adapter: Some(adapter.name.clone()),
            fit_error_mean: Some(*fit_error_mean),
            fit_error_max: Some(*fit_error_max),
            fit_points: self.calibration.fit_points(),
        }
    }
}

fn windowed(step: &StepWork) -> StepWork {
    StepWork { decode_keys: step.decode_window_keys, prompt_pairs: step.prompt_window_pairs, ..*step }
}
