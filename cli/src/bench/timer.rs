//! Timing of what is recorded into one compute pass: by the device's own clock where it has one that works, and by the
//! host's clock from submission to completion.

use std::time::Instant;

use super::report::Timing;
use wgpu_paged_attention::gpu::GpuError;
use wgpu_paged_attention::testkit::Gpu;

/// A device clock that reads less than this share of the host's is not believed.
const LEAST_SHARE: f64 = 0.01;

/// One run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Microseconds by the device's clock; `None` where it has none that works.
    pub gpu_us: Option<f64>,
    /// Microseconds by the host's clock, submission and waiting included.
    pub wall_us: f64,
}

/// Why a run has no time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimerError {
    /// Recording failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// wgpu refused the work.
    #[error("wgpu refused the work: {0}")]
    Refused(String),
    /// The device went away while it worked.
    #[error("the device was lost while it worked")]
    Lost,
}

/// Times passes on one device.
#[derive(Debug)]
pub struct Timer {
    gpu: Gpu,
    queries: Option<Queries>,
}

#[derive(Debug)]
struct Queries {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    /// Microseconds per tick.
    period_us: f64,
}

impl Timer {
    /// A timer; it tries the device's clock and does without if that reads nonsense.
    ///
    /// # Errors
    /// [`TimerError`] if not even an empty pass runs.
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
        let mut timer = Self { gpu: gpu.clone(), queries };
        timer.measure(|_| Ok(()))?;
        Ok(timer)
    }

    /// Which clock [`time_us`](Self::time_us) reads.
    pub fn timing(&self) -> Timing {
        if self.queries.is_some() { Timing::Gpu } else { Timing::Wall }
    }

    /// Gives the device's clock up for good, as when it disagrees with the host's.
    pub fn use_wall_clock(&mut self) {
        self.queries = None;
    }

    /// The time of a sample by the clock in use.
    pub fn time_us(&self, sample: &Sample) -> f64 {
        sample.gpu_us.filter(|_| self.queries.is_some()).unwrap_or(sample.wall_us)
    }

    /// Whether the device's clock is in use and makes no sense beside the host's: nothing, or longer than it took.
    pub fn is_implausible(&self, sample: &Sample) -> bool {
        let plausible = LEAST_SHARE * sample.wall_us..=1.05 * sample.wall_us;
        self.queries.is_some() && !sample.gpu_us.is_some_and(|us| plausible.contains(&us))
    }

    /// Records a pass, submits it and waits for it.
    ///
    /// # Errors
    /// [`TimerError`]; there is no time for work that failed.
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
        if let Some(error) = pollster::block_on(scope.pop()) {
            return Err(TimerError::Refused(error.to_string()));
        }
        waited.map_err(|_| TimerError::Lost)?;
        let gpu_us = match &self.queries {
            None => None,
            Some(queries) => {
                let ticks: Vec<u64> = self.gpu.read(&queries.resolved).ok_or(TimerError::Lost)?;
                ticks[1].checked_sub(ticks[0]).map(|ticks| ticks as f64 * queries.period_us)
            }
        };
        Ok(Sample { gpu_us, wall_us })
    }
}
