//! The device that profiles are measured on.

use std::time::Duration;

use wgpu_paged_attention::gpu::{ChunkForm, DeviceProfile};
use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu::Features;

use super::TuneOptions;
use super::candidates::Surroundings;
use super::entrant::Stand;
use crate::bench::{Case, CaseError, CaseInputs, Clock, Mode, Op, PassTimer, TimerError, Work, rotated_layers};

/// Of a case at most: there are several at a time, and each pushes the others out of the device's caches.
const MOST_LAYERS: u32 = 4;

pub(super) struct Device<'a> {
    gpu: &'a Gpu,
    timer: PassTimer,
    options: &'a TuneOptions,
}

/// A case and the step that is timed.
pub(super) struct Ready {
    case: Case,
    work: Work,
    layers: u32,
}

impl<'a> Device<'a> {
    pub(super) fn new(gpu: &'a Gpu, options: &'a TuneOptions) -> Result<Self, TimerError> {
        Ok(Self { gpu, timer: PassTimer::new(gpu)?, options })
    }

    pub(super) fn surroundings(&self) -> Surroundings {
        let subgroup = self.gpu.smallest_subgroup().unwrap_or(0);
        let int64 = self.gpu.device.features().contains(Features::SHADER_INT64);
        let matrices = ChunkForm::matrix_tiles(&self.gpu.device);
        Surroundings { context: self.options.context, prompt: self.options.prompt, subgroup, int64, matrices }
    }
}

impl Clock for Device<'_> {
    fn now(&self) -> Duration {
        self.timer.now()
    }
}

impl Stand for Device<'_> {
    type Case = Ready;

    fn prepare(&mut self, profile: &DeviceProfile, op: Op) -> Result<Ready, CaseError> {
        let TuneOptions { shape, kv_dtype, block_size, seed, .. } = self.options;
        let lens = self.options.lens(op);
        let layers = rotated_layers(shape, *kv_dtype, &lens, self.gpu.is_software()).min(MOST_LAYERS);
        let inputs = CaseInputs {
            kv_dtype: *kv_dtype,
            block_size: *block_size,
            layers,
            ..CaseInputs::new(shape.clone(), lens, *seed)
        };
        let case = Case::new(self.gpu, profile, &inputs, Mode::Paged)?;
        let work = case.begin(op)?;
        Ok(Ready { case, work, layers })
    }

    fn verify(&mut self, ready: &Ready) -> Result<(), CaseError> {
        let (first, _) = ready.case.check(&ready.work, &mut self.timer)?;
        if self.timer.is_implausible(&first) {
            self.timer.use_wall_clock();
        }
        Ok(())
    }

    fn time_us(&mut self, ready: &Ready) -> Result<f64, TimerError> {
        let sample = ready.case.time(&ready.work, &mut self.timer)?;
        Ok(self.timer.time_us(&sample) / f64::from(ready.layers))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::bench::ModelShape;
    use crate::tune::candidates::AXES;
    use crate::tune::found::{Found, Outcome};
    use crate::tune::search::{Search, SearchOptions};
    use wgpu_paged_attention::testkit::test_device;

    const SPLIT: u32 = 128;

    /// A device on which, if it is to, profiles with splits of [`SPLIT`] keys compute something wrong.
    struct Spoiled<'a>(Device<'a>, bool);

    impl Clock for Spoiled<'_> {
        fn now(&self) -> Duration {
            self.0.now()
        }
    }

    impl Stand for Spoiled<'_> {
        type Case = Ready;

        fn prepare(&mut self, profile: &DeviceProfile, op: Op) -> Result<Ready, CaseError> {
            let ready = self.0.prepare(profile, op)?;
            if self.1 && profile.split_tokens == SPLIT {
                ready.case.spoil();
            }
            Ok(ready)
        }

        fn verify(&mut self, ready: &Ready) -> Result<(), CaseError> {
            self.0.verify(ready)
        }

        fn time_us(&mut self, ready: &Ready) -> Result<f64, TimerError> {
            self.0.time_us(ready)
        }
    }

    fn search(gpu: &Gpu, spoiled: bool) -> Found {
        let mut options = TuneOptions::new(ModelShape::custom(2, 1, 8).unwrap(), true, true);
        (options.batch, options.prompt) = (1, 4);
        let mut stand = Spoiled(Device::new(gpu, &options).unwrap(), spoiled);
        let around = stand.0.surroundings();
        let search = SearchOptions { axes: &AXES[..1], around, noise: 0.05, time_budget: options.time_budget };
        let (never, mut profile) = (AtomicBool::new(false), DeviceProfile::of(&gpu.device));
        profile.split_tokens = 2 * SPLIT;
        Search::new(&mut stand, profile, &search, &never, &mut |_| {}).run().unwrap().unwrap()
    }

    #[test]
    fn a_planted_fault_is_noticed_before_anything_is_timed() {
        let Some(gpu) = test_device() else { return };
        let found = search(&gpu, true);
        let [tried] = &found.tried[..] else { panic!("{:?}", found.tried) };
        assert_eq!(tried.differences, format!("split_tokens = {SPLIT}"));
        assert!(matches!(&tried.outcome, Outcome::Wrong(why) if why.contains("NaN")), "{:?}", tried.outcome);
        assert!(tried.times.is_empty() && found.differences.is_empty());
        // It is the fault that was noticed, and nothing else.
        let tried = &search(&gpu, false).tried;
        assert!(matches!(tried[0].outcome, Outcome::Led | Outcome::Slower | Outcome::NoFaster), "{tried:?}");
        assert_eq!(tried[0].times.len(), 1);
    }
}
