//! Timing of what is recorded into one compute pass: by the device's own clock where it has one that works, and by the
//! host's clock from submission to completion.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wgpu_paged_attention::gpu::GpuError;
use wgpu_paged_attention::testkit::Gpu;

use super::{Case, Timing, Work};

pub trait Clock {
    fn now(&self) -> Duration;
}

/// A device clock that reads less than this share of the host's is not believed.
const LEAST_SHARE: f64 = 0.01;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Microseconds by the device's clock; `None` where it has none that works.
    pub gpu_us: Option<f64>,
    /// Microseconds by the host's clock, submission and waiting included.
    pub wall_us: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum TimerError {
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error("wgpu refused the work: {0}")]
    Refused(String),
    #[error("the device was lost while it worked")]
    Lost,
}

#[derive(Debug)]
pub struct PassTimer {
    gpu: Gpu,
    started: Instant,
    queries: Option<Queries>,
}

#[derive(Debug)]
struct Queries {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    period_us: f64,
}

impl Clock for PassTimer {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

impl PassTimer {
    /// A timer; it tries the device's clock and does without if that reads nonsense.
    pub fn new(gpu: &Gpu) -> Result<Self, TimerError> {
        let queries = gpu.device.features().contains(wgpu::Features::TIMESTAMP_QUERY).then(|| Queries {
            set: gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timer"),
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            }),
            resolved: gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("timer"),
                size: 16,
                usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            }),
            period_us: f64::from(gpu.queue.get_timestamp_period()) / 1e3,
        });
        let mut timer = Self { gpu: gpu.clone(), started: Instant::now(), queries };
        timer.measure(|_| Ok(()))?;
        Ok(timer)
    }

    pub fn timing(&self) -> Timing {
        if self.queries.is_some() { Timing::Gpu } else { Timing::Wall }
    }

    pub fn use_wall_clock(&mut self) {
        self.queries = None;
    }

    pub fn time_us(&self, sample: &Sample) -> f64 {
        sample.gpu_us.filter(|_| self.queries.is_some()).unwrap_or(sample.wall_us)
    }

    /// Whether the device's clock is in use and makes no sense beside the host's: nothing, or longer than it took.
    pub fn is_implausible(&self, sample: &Sample) -> bool {
        let plausible = LEAST_SHARE * sample.wall_us..=1.05 * sample.wall_us;
        self.queries.is_some() && !sample.gpu_us.is_some_and(|us| plausible.contains(&us))
    }

    pub fn measure(
        &mut self,
        record: impl FnOnce(&mut wgpu::ComputePass<'_>) -> Result<(), GpuError>,
    ) -> Result<Sample, TimerError> {
        let device = &self.gpu.device;
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let mut encoder = device.create_command_encoder(&Default::default());
        {
            let writes = self.queries.as_ref().map(|queries| wgpu::ComputePassTimestampWrites {
                query_set: &queries.set,
                beginning_of_pass_write_index: Some(0),
                end_of_pass_write_index: Some(1),
            });
            let mut pass = encoder
                .begin_compute_pass(&wgpu::ComputePassDescriptor { label: Some("timed"), timestamp_writes: writes });
            record(&mut pass)?;
        }
        if let Some(queries) = &self.queries {
            encoder.resolve_query_set(&queries.set, 0..2, &queries.resolved, 0);
        }
        let commands = encoder.finish();
        let start = Instant::now();
        self.gpu.queue.submit([commands]);
        let waited = device.poll(wgpu::PollType::wait_indefinitely());
        let wall_us = start.elapsed().as_secs_f64() * 1e6;
        // Within the scope: a lost device refuses to be read.
        let ticks: Option<Option<Vec<u64>>> = self.queries.as_ref().map(|queries| self.gpu.read(&queries.resolved));
        let refused = pollster::block_on(scope.pop());
        if waited.is_err() || ticks == Some(None) {
            return Err(TimerError::Lost);
        }
        if let Some(error) = refused {
            return Err(TimerError::Refused(error.to_string()));
        }
        let gpu_us =
            self.queries.as_ref().zip(ticks.flatten()).and_then(|(queries, ticks)| {
                ticks[1].checked_sub(ticks[0]).map(|ticks| ticks as f64 * queries.period_us)
            });
        Ok(Sample { gpu_us, wall_us })
    }
}

#[derive(Clone, Debug)]
pub struct Rounds {
    /// The fewest, however long they take, and the most. One more goes before them to warm up.
    pub count: RangeInclusive<u32>,
    pub deadline: Duration,
}

impl Rounds {
    /// Calls `round` for each, with whether it counts: the first warms up.
    pub fn each<C: Clock>(
        &self,
        clock: &mut C,
        mut round: impl FnMut(&mut C, bool) -> Result<(), TimerError>,
    ) -> Result<(), TimerError> {
        for number in 0..=*self.count.end() {
            if number > *self.count.start() && clock.now() > self.deadline {
                break;
            }
            round(clock, number > 0)?;
        }
        Ok(())
    }

    /// Times all sides; of each, the microseconds of every round. Once `cancel` is set nothing more is timed.
    pub fn time(
        &self,
        timer: &mut PassTimer,
        sides: &[(&Case, &Work)],
        cancel: &AtomicBool,
    ) -> Result<Vec<Vec<f64>>, TimerError> {
        let mut times_us = vec![Vec::new(); sides.len()];
        self.each(timer, |timer, counts| {
            if cancel.load(Ordering::Relaxed) {
                return Ok(());
            }
            for ((case, work), times_us) in sides.iter().zip(&mut times_us) {
                let sample = case.time(work, timer)?;
                times_us.extend(counts.then(|| timer.time_us(&sample)));
            }
            Ok(())
        })?;
        Ok(times_us)
    }
}
