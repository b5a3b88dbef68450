//! What a device does at best: trivial kernels, measured in the same run as the cases.

mod host;
mod readers;

use std::time::Instant;

use wgpu_paged_attention::testkit::Gpu;

use readers::{GRANULE, SHAPES, Shape};

use super::{Ceilings, PassTimer, Sample, Summary, TimerError, median};

/// Bytes that the reading and copying kernels move at least, where a binding may be that large: more than the last cache
/// of a GPU holds, and little enough for a software adapter.
const GPU_STREAM_BYTES: u64 = 512 << 20;
const SOFTWARE_STREAM_BYTES: u64 = 64 << 20;
const GPU_SAMPLES: usize = 9;
const SOFTWARE_SAMPLES: usize = 5;
const DISPATCHES: u32 = 64;
const COPIES: u32 = 4;

/// Eight independent chains of vec4 multiply-adds: 64 operations a round. No compiler knows the number of rounds, 512, so
/// that none unrolls them.
const FMA: &str = "
@group(0) @binding(0) var<storage, read_write> output: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let x = vec4<f32>(f32(id.x) * 1e-9 + 0.5);
    var a = x; var b = x + 0.1; var c = x + 0.2; var d = x + 0.3;
    var e = x + 0.4; var f = x + 0.5; var g = x + 0.6; var h = x + 0.7;
    let rounds = min(arrayLength(&output), 512u);
    for (var i = 0u; i < rounds; i++) {
        a = a * x + x; b = b * x + x; c = c * x + x; d = d * x + x;
        e = e * x + x; f = f * x + x; g = g * x + x; h = h * x + x;
    }
    let sum = a + b + c + d + e + f + g + h;
    if (sum.x + sum.y + sum.z + sum.w == -1.0) { output[0] = 1.0; }
}";
const FMA_FLOP_PER_INVOCATION: f64 = 512.0 * 64.0;

const EMPTY: &str = "@compute @workgroup_size(1) fn main() {}";

#[derive(Debug)]
pub struct CeilingKernels {
    gpu: Gpu,
    readers: Vec<(wgpu::ComputePipeline, wgpu::BindGroup, u32)>,
    /// The reader that was the fastest.
    fastest: usize,
    fma: wgpu::ComputePipeline,
    fma_bindings: wgpu::BindGroup,
    empty: wgpu::ComputePipeline,
    source: wgpu::Buffer,
    target: wgpu::Buffer,
    /// The bytes of `source`, for the host's own reads; none beside a GPU.
    host: Vec<u32>,
}

impl CeilingKernels {
    pub fn new(gpu: &Gpu) -> Self {
        let limits = gpu.device.limits();
        let wanted = if gpu.is_software() { SOFTWARE_STREAM_BYTES } else { GPU_STREAM_BYTES };
        let bytes = wanted.min(limits.max_storage_buffer_binding_size).min(limits.max_buffer_size);
        // Counting upwards: memory that is all zeros may not be memory at all.
        Self::over(gpu, (0..(bytes / GRANULE * GRANULE / 4) as u32).collect())
    }

    fn over(gpu: &Gpu, words: Vec<u32>) -> Self {
        let source = gpu.storage("ceiling source", &words);
        let target = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("ceiling target"),
            size: source.size(),
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let reader = |shape: &Shape| {
            let read = pipeline(gpu, "read", &shape.text());
            let bound = bindings(gpu, &read, &[&source, &target]);
            (read, bound, shape.groups(source.size()))
        };
        let readers = SHAPES.iter().map(reader).collect();
        let fma = pipeline(gpu, "fma", FMA);
        let fma_bindings = bindings(gpu, &fma, &[&target]);
        let empty = pipeline(gpu, "empty", EMPTY);
        Self {
            gpu: gpu.clone(),
            readers,
            fastest: 0,
            fma,
            fma_bindings,
            empty,
            source,
            target,
            host: if gpu.is_software() { words } else { Vec::new() },
        }
    }

    /// Of the reader that was the fastest when all were measured.
    pub fn read_gb_s(&self, timer: &mut PassTimer) -> Result<f64, TimerError> {
        self.reader_gb_s(self.fastest, timer)
    }

    fn reader_gb_s(&self, reader: usize, timer: &mut PassTimer) -> Result<f64, TimerError> {
        let (read, bound, groups) = &self.readers[reader];
        let sample = timer.measure(|pass| {
            pass.set_pipeline(read);
            pass.set_bind_group(0, bound, &[]);
            pass.dispatch_workgroups(*groups, 1, 1);
            Ok(())
        })?;
        Ok(self.source.size() as f64 / believable_us(timer, &sample) / 1e3)
    }

    /// All ceilings: of rates the best. Gives up a device clock that disagrees with the host's.
    pub fn measure(&mut self, timer: &mut PassTimer) -> Result<Ceilings, TimerError> {
        // First runs compile; and they show whether the device's clock works.
        let probe = self.time_fma(timer)?;
        if timer.is_implausible(&probe) {
            timer.use_wall_clock();
        }
        for reader in 0..self.readers.len() {
            self.reader_gb_s(reader, timer)?;
        }

        let samples = if self.gpu.is_software() { SOFTWARE_SAMPLES } else { GPU_SAMPLES };
        let mut read = vec![Vec::new(); self.readers.len()];
        let [mut host_read, mut host_fma, mut copy, mut fma, mut dispatch] = [const { Vec::new() }; 5];
        for _ in 0..samples {
            for (reader, rates) in read.iter_mut().enumerate() {
                rates.push(self.reader_gb_s(reader, timer)?);
            }
            if !self.host.is_empty() {
                host_read.push(host::read_gb_s(&self.host));
                host_fma.push(host::fma_gflop_s());
            }
            copy.push(self.copy_gb_s());
            fma.push(self.fma_gflop_s(timer)?);
            let sample = timer.measure(|pass| {
                pass.set_pipeline(&self.empty);
                for _ in 0..DISPATCHES {
                    pass.dispatch_workgroups(1, 1, 1);
                }
                Ok(())
            })?;
            dispatch.push(timer.time_us(&sample) / f64::from(DISPATCHES));
        }
        let read: Vec<f64> = read.iter().filter_map(|rates| best(rates)).collect();
        let read_gb_s = best(&read);
        self.fastest = read.iter().position(|&rate| Some(rate) == read_gb_s).unwrap_or(0);
        Ok(Ceilings {
            read_gb_s,
            host_read_gb_s: best(&host_read),
            host_fma_gflop_s: best(&host_fma),
            copy_gb_s: best(&copy),
            fma_gflop_s: best(&fma),
            dispatch_us: median(&dispatch),
        })
    }

    pub fn fma_gflop_s(&self, timer: &mut PassTimer) -> Result<f64, TimerError> {
        let sample = self.time_fma(timer)?;
        let flop = FMA_FLOP_PER_INVOCATION * 64.0 * f64::from(self.fma_groups());
        Ok(flop / believable_us(timer, &sample) / 1e3)
    }

    fn time_fma(&self, timer: &mut PassTimer) -> Result<Sample, TimerError> {
        timer.measure(|pass| {
            pass.set_pipeline(&self.fma);
            pass.set_bind_group(0, &self.fma_bindings, &[]);
            pass.dispatch_workgroups(self.fma_groups(), 1, 1);
            Ok(())
        })
    }

    fn fma_groups(&self) -> u32 {
        if self.gpu.is_software() { 256 } else { 65_535 }
    }

    /// GB/s of copies, bytes read and bytes written together. By the host's clock: a copy is in no pass.
    fn copy_gb_s(&self) -> f64 {
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        for _ in 0..COPIES {
            encoder.copy_buffer_to_buffer(&self.source, 0, &self.target, 0, self.source.size());
        }
        let start = Instant::now();
        self.gpu.submit(encoder);
        let us = start.elapsed().as_secs_f64() * 1e6;
        2.0 * f64::from(COPIES) * self.source.size() as f64 / us / 1e3
    }
}

/// The largest of some rates; `None` without any, or if one is not a number.
pub(super) fn best(rates: &[f64]) -> Option<f64> {
    Summary::of(rates).map(|summary| summary.max)
}

/// A single tick too few would be the best rate of all.
fn believable_us(timer: &PassTimer, sample: &Sample) -> f64 {
    if timer.is_implausible(sample) { sample.wall_us } else { timer.time_us(sample) }
}

fn pipeline(gpu: &Gpu, label: &str, text: &str) -> wgpu::ComputePipeline {
    let module = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some(label),
        source: wgpu::ShaderSource::Wgsl(text.into()),
    });
    gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(label),
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    })
}

fn bindings(gpu: &Gpu, pipeline: &wgpu::ComputePipeline, buffers: &[&wgpu::Buffer]) -> wgpu::BindGroup {
    let entries: Vec<_> = (0..)
        .zip(buffers)
        .map(|(binding, buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
        .collect();
    gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some("ceiling"),
        layout: &pipeline.get_bind_group_layout(0),
        entries: &entries,
    })
}

#[cfg(test)]
mod tests {
    use super::readers::MAGIC;
    use super::*;
    use wgpu_paged_attention::testkit::test_device;

    #[test]
    fn every_reader_reaches_the_last_bytes() {
        let Some(gpu) = test_device() else { return };
        let mut timer = PassTimer::new(&gpu).unwrap();
        for (last, found) in [(MAGIC, 1), (0, 0)] {
            let mut words = vec![0; (3 * GRANULE / 4) as usize];
            let end = words.len() - 4;
            words[end..].fill(last);
            for (reader, shape) in SHAPES.iter().enumerate() {
                let kernels = CeilingKernels::over(&gpu, words.clone());
                kernels.reader_gb_s(reader, &mut timer).unwrap();
                let read: Vec<u32> = gpu.read(&kernels.target).unwrap();
                assert_eq!(read[0], found, "{}", shape.text());
            }
        }
    }

    #[test]
    fn the_best_rate_is_the_largest() {
        assert_eq!(best(&[1.12, 9.6, 3.5]), Some(9.6));
        assert_eq!((best(&[]), best(&[1.0, f64::NAN])), (None, None));
    }
}
