//! What a device does at best: trivial kernels, measured in the same run as the cases.

use std::time::Instant;

use wgpu_paged_attention::testkit::Gpu;

use super::{Ceilings, PassTimer, Sample, TimerError, median};

/// Bytes that the reading and copying kernels move at least, where a binding may be that large.
const STREAM_BYTES: u64 = 64 << 20;
const SAMPLES: usize = 9;
const DISPATCHES: u32 = 64;
const COPIES: u32 = 4;

/// Invocations of a workgroup, and 16-byte units that each of them reads.
const READ_LANES: u64 = 64;
const READ_UNITS: u64 = 16;

/// Every invocation reads 16 units, neighbours next to each other. The sum is written if it has a value that it never
/// has, so that the reads are not optimised away.
const READ: &str = "
@group(0) @binding(0) var<storage, read> input: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var sum = vec4<u32>(0u);
    for (var i = 0u; i < 16u; i++) { sum ^= input[(group.x * 16u + i) * 64u + lane]; }
    if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x9e3779b9u) { output[0] = 1u; }
}";

/// Eight independent chains of vec4 multiply-adds: 64 operations a round.
const FMA: &str = "
@group(0) @binding(0) var<storage, read_write> output: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let x = vec4<f32>(f32(id.x) * 1e-9 + 0.5);
    var a = x; var b = x + 0.1; var c = x + 0.2; var d = x + 0.3;
    var e = x + 0.4; var f = x + 0.5; var g = x + 0.6; var h = x + 0.7;
    for (var i = 0u; i < 512u; i++) {
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
    read: wgpu::ComputePipeline,
    read_bindings: wgpu::BindGroup,
    read_groups: u32,
    fma: wgpu::ComputePipeline,
    fma_bindings: wgpu::BindGroup,
    empty: wgpu::ComputePipeline,
    source: wgpu::Buffer,
    target: wgpu::Buffer,
}

impl CeilingKernels {
    pub fn new(gpu: &Gpu) -> Self {
        let limits = gpu.device.limits();
        let per_group = READ_LANES * READ_UNITS * 16;
        let bytes = STREAM_BYTES.min(limits.max_storage_buffer_binding_size).min(limits.max_buffer_size);
        let read_groups = bytes / per_group;
        let bytes = read_groups * per_group;
        // Counting upwards: memory that is all zeros may not be memory at all.
        let source = gpu.storage("ceiling source", &(0..(bytes / 4) as u32).collect::<Vec<_>>());
        let target = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("ceiling target"),
            size: bytes,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let (read, fma) = (pipeline(gpu, "read", READ), pipeline(gpu, "fma", FMA));
        let read_bindings = bindings(gpu, &read, &[&source, &target]);
        let fma_bindings = bindings(gpu, &fma, &[&target]);
        let empty = pipeline(gpu, "empty", EMPTY);
        Self {
            gpu: gpu.clone(),
            read,
            read_bindings,
            read_groups: read_groups as u32,
            fma,
            fma_bindings,
            empty,
            source,
            target,
        }
    }

    pub fn read_gb_s(&self, timer: &mut PassTimer) -> Result<f64, TimerError> {
        let sample = timer.measure(|pass| {
            pass.set_pipeline(&self.read);
            pass.set_bind_group(0, &self.read_bindings, &[]);
            pass.dispatch_workgroups(self.read_groups, 1, 1);
            Ok(())
        })?;
        Ok(self.source.size() as f64 / timer.time_us(&sample) / 1e3)
    }

    /// All ceilings, each a median. Gives up a device clock that disagrees with the host's.
    pub fn measure(&self, timer: &mut PassTimer) -> Result<Ceilings, TimerError> {
        // First runs compile; and they show whether the device's clock works.
        let probe = self.time_fma(timer)?;
        if timer.is_implausible(&probe) {
            timer.use_wall_clock();
        }
        self.read_gb_s(timer)?;

        let (mut read, mut copy, mut fma, mut dispatch) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..SAMPLES {
            read.push(self.read_gb_s(timer)?);
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
        Ok(Ceilings {
            read_gb_s: median(&read),
            copy_gb_s: median(&copy),
            fma_gflop_s: median(&fma),
            dispatch_us: median(&dispatch),
        })
    }

    pub fn fma_gflop_s(&self, timer: &mut PassTimer) -> Result<f64, TimerError> {
        let sample = self.time_fma(timer)?;
        let flop = FMA_FLOP_PER_INVOCATION * 64.0 * f64::from(self.fma_groups());
        Ok(flop / timer.time_us(&sample) / 1e3)
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
