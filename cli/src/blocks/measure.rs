//! Decode times of all block sizes on one batch.

use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wgpu_paged_attention::config::KvDtype;
use wgpu_paged_attention::testkit::Gpu;

use super::BlockSizesError;
use crate::bench::measure::{Band, median_band};
use crate::bench::{
    Case, CaseError, CaseInputs, Clock, Mode, ModelShape, Op, PassTimer, Rounds, Summary, rotated_layers,
};
use crate::common::ChosenProfile;
use crate::trace::{Request, sequence_lengths};

const ROUNDS: RangeInclusive<u32> = 5..=41;
/// Sequences of a batch, and the most tokens of one.
const SOFTWARE_BATCH: (usize, u32) = (8, 2048);
const GPU_BATCH: (usize, u32) = (64, 8192);
const REFERENCE: u32 = 16;

#[derive(Clone, Debug)]
pub struct DecodeMeasure {
    pub shape: ModelShape,
    pub kv_dtype: KvDtype,
    pub max_seq_len: u32,
    pub seed: u64,
    /// Time for the rounds; filling caches and checking them comes before.
    pub time_budget: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeTime {
    /// Microseconds of a layer, the median over the rounds.
    pub median_us: f64,
    /// That median is no less than this with a certainty of 95 %,
    pub low_us: f64,
    /// and no more than this.
    pub high_us: f64,
    /// Over the time with blocks of 16, or of the first size if 16 is not among them: the median over the rounds.
    pub relative: f64,
    /// Distance of the quartiles of that quotient.
    pub noise: f64,
}

impl DecodeMeasure {
    /// Times a decode step of a batch drawn from `requests` with every block size, in alternation, each compared with the
    /// oracle before. `None` if `cancel` was set before there were enough rounds.
    pub fn run(
        &self,
        gpu: &Gpu,
        requests: &[Request],
        block_sizes: &[u32],
        cancel: &AtomicBool,
    ) -> Result<Option<Vec<DecodeTime>>, BlockSizesError> {
        let (batch, longest) = if gpu.is_software() { SOFTWARE_BATCH } else { GPU_BATCH };
        let lens = sequence_lengths(requests, batch, self.max_seq_len.min(longest), self.seed)?;
        let layers = rotated_layers(&self.shape, self.kv_dtype, &lens, gpu.is_software());
        let profile = ChosenProfile::of(gpu).profile;
        let mut timer = PassTimer::new(gpu)?;
        let mut cases = Vec::new();
        for &block_size in block_sizes {
            let inputs = CaseInputs {
                kv_dtype: self.kv_dtype,
                block_size,
                layers,
                ..CaseInputs::new(self.shape.clone(), lens.clone(), self.seed)
            };
            let failed = |source: CaseError| BlockSizesError::Case { block_size, source };
            let case = Case::new(gpu, &profile, &inputs, Mode::Paged).map_err(|verdict| failed(verdict.into()))?;
            let work = case.begin(Op::Decode).map_err(|verdict| failed(verdict.into()))?;
            let (first, _) = case.check(&work, &mut timer).map_err(failed)?;
            if timer.is_implausible(&first) {
                timer.use_wall_clock();
            }
            cases.push((case, work));
        }
        let sides: Vec<_> = cases.iter().map(|(case, work)| (case, work)).collect();
        let rounds = Rounds { count: ROUNDS, deadline: timer.now() + self.time_budget };
        let times_us = rounds.time(&mut timer, &sides, cancel)?;
        if times_us.iter().any(|times_us| times_us.len() < *ROUNDS.start() as usize) {
            return Ok(None);
        }
        Ok(relative_times(block_sizes, &times_us, layers))
    }
}

pub(super) fn reference(block_sizes: &[u32]) -> usize {
    block_sizes.iter().position(|&size| size == REFERENCE).unwrap_or(0)
}

fn relative_times(block_sizes: &[u32], times_us: &[Vec<f64>], layers: u32) -> Option<Vec<DecodeTime>> {
    let reference = &times_us[reference(block_sizes)];
    let time = |times_us: &Vec<f64>| {
        let quotients: Vec<f64> = times_us.iter().zip(reference).map(|(us, reference)| us / reference).collect();
        let Summary { median: relative, p25, p75, .. } = Summary::of(&quotients)?;
        let Band { value, low, high } = median_band(times_us).ok()?;
        let [median_us, low_us, high_us] = [value, low, high].map(|us| us / f64::from(layers));
        Some(DecodeTime { median_us, low_us, high_us, relative, noise: p75 - p25 })
    };
    times_us.iter().map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_compared_round_by_round() {
        // The machine slows down by ten from round to round; the quotients stay.
        let slower = [2.0, 20.0, 200.0, 2000.0, 20_000.0];
        let times = [slower.map(|us| 1.5 * us).to_vec(), slower.to_vec()];
        let found = relative_times(&[8, 16], &times, 2).unwrap();
        let time = |factor: f64| DecodeTime {
            median_us: factor * 100.0,
            low_us: factor,
            high_us: factor * 10_000.0,
            relative: factor,
            noise: 0.0,
        };
        assert_eq!(found, [time(1.5), time(1.0)]);
        // Without 16, the first is the measure.
        assert_eq!(relative_times(&[8, 32], &times, 2).unwrap()[0].relative, 1.0);
        assert_eq!(relative_times(&[8], &[vec![f64::NAN; 5]], 1), None);
    }
}
