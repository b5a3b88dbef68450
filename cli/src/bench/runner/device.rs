//! The device that a run measures with.

use std::time::Duration;

use wgpu_paged_attention::gpu::DeviceProfile;
use wgpu_paged_attention::testkit::{Gpu, Verdict};

use crate::bench::{
    Case, CaseError, CaseInputs, CeilingKernels, Ceilings, Clock, Figure, Mode, Op, PassTimer, Sample, ThreadTimes,
    Timer, TimerError, Timing, Work, figures,
};

pub(super) struct Device<'a> {
    gpu: &'a Gpu,
    profile: &'a DeviceProfile,
    timer: PassTimer,
    kernels: CeilingKernels,
}

impl<'a> Device<'a> {
    pub(super) fn new(gpu: &'a Gpu, profile: &'a DeviceProfile) -> Result<(Self, Ceilings), TimerError> {
        let mut timer = PassTimer::new(gpu)?;
        let mut kernels = CeilingKernels::new(gpu);
        let ceilings = kernels.measure(&mut timer)?;
        Ok((Self { gpu, profile, timer, kernels }, ceilings))
    }
}

impl Clock for Device<'_> {
    fn now(&self) -> Duration {
        self.timer.now()
    }
}

impl Timer for Device<'_> {
    type Case = Case;
    type Work = Work;

    fn prepare(&mut self, inputs: &CaseInputs, mode: Mode) -> Result<Case, CaseError> {
        Ok(Case::new(self.gpu, self.profile, inputs, mode)?)
    }

    fn check(&mut self, case: &Case, op: Op) -> Result<(Work, Sample, f64), CaseError> {
        let work = case.begin(op)?;
        let (cold, max_abs_error) = case.check(&work, &mut self.timer)?;
        Ok((work, cold, max_abs_error))
    }

    fn time(&mut self, case: &Case, work: &Work) -> Result<Sample, TimerError> {
        case.time(work, &mut self.timer)
    }

    fn read_gb_s(&mut self) -> Result<f64, TimerError> {
        self.kernels.read_gb_s(&mut self.timer)
    }

    fn fma_gflop_s(&mut self) -> Result<f64, TimerError> {
        self.kernels.fma_gflop_s(&mut self.timer)
    }

    fn accuracy(&mut self, seed: u64, index: usize) -> Result<Figure, Verdict> {
        figures::accuracy(self.gpu, self.profile, seed, index)
    }

    fn timing(&self) -> Timing {
        self.timer.timing()
    }

    fn time_us(&self, sample: &Sample) -> f64 {
        self.timer.time_us(sample)
    }

    fn core_time(&self) -> Option<ThreadTimes> {
        self.gpu.is_software().then(ThreadTimes::now)
    }
}
