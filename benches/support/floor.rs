//! The dispatches of a step with wgpu alone: the same number of pipelines, bind groups and bindings, all made beforehand.

use std::num::NonZeroU64;
use std::time::Duration;

use wgpu_paged_attention::testkit::Gpu;
use wgpu_paged_attention::wgpu;

use super::clock::ThreadTime;

#[derive(Clone, Copy)]
enum Kind {
    Read,
    Write,
    Uniform,
}

/// One dispatch: its pipeline, and its bind groups.
struct Dispatch {
    pipeline: wgpu::ComputePipeline,
    groups: Vec<wgpu::BindGroup>,
}

/// The dispatches of all layers.
pub struct Floor {
    dispatches: Vec<Dispatch>,
    words: wgpu::Buffer,
}

impl Floor {
    pub fn new(gpu: &Gpu, layers: u32, merges: bool) -> Self {
        use Kind::{Read, Uniform, Write};
        let maker = Maker { device: &gpu.device };
        let buffer = |label: &str| gpu.storage(label, &[0_u32; 1 << 16]);
        let uniform = || maker.buffer(wgpu::BufferUsages::UNIFORM, 256);
        let words = buffer("words");
        let [tables, rotations, q, k, v, rotated, out, lse, partials] = [(); 9].map(|()| buffer("io"));
        let step = maker.group(&[(Read, &words), (Read, &tables)]);
        let append = maker.pipeline(&[&[Read, Read], &[Write, Write], &[Uniform, Read, Read, Read]]);
        let rotate = maker.pipeline(&[&[Read, Read], &[Uniform, Read, Write, Read]]);
        let attend = maker.pipeline(&[&[Read, Read], &[Read, Read], &[Uniform, Read, Write, Write, Write, Uniform]]);
        let merge = maker.pipeline(&[&[Read, Read], &[Uniform, Read, Write, Write, Uniform]]);
        let mut dispatches = Vec::new();
        for _ in 0..layers {
            let (pool_k, pool_v) = (buffer("k"), buffer("v"));
            let pools = maker.group(&[(Read, &pool_k), (Read, &pool_v)]);
            let pools_append = maker.group(&[(Write, &pool_k), (Write, &pool_v)]);
            let append_io = maker.group(&[(Uniform, &uniform()), (Read, &k), (Read, &v), (Read, &rotations)]);
            let rotate_io = maker.group(&[(Uniform, &uniform()), (Read, &q), (Write, &rotated), (Read, &rotations)]);
            let (params, terms) = (uniform(), uniform());
            let io = [(Uniform, &params), (Read, &rotated), (Write, &out), (Write, &lse), (Write, &partials)];
            let attend_io = maker.group(&[&io[..], &[(Uniform, &terms)]].concat());
            let io = [(Uniform, &params), (Read, &partials), (Write, &out), (Write, &lse), (Uniform, &terms)];
            let merge_io = maker.group(&io);
            let mut push = |pipeline: &wgpu::ComputePipeline, groups: &[&wgpu::BindGroup]| {
                let groups = groups.iter().map(|&group| group.clone()).collect();
                dispatches.push(Dispatch { pipeline: pipeline.clone(), groups });
            };
            push(&append, &[&step, &pools_append, &append_io]);
            push(&rotate, &[&step, &rotate_io]);
            push(&attend, &[&step, &pools, &attend_io]);
            if merges {
                push(&merge, &[&step, &merge_io]);
            }
        }
        Self { dispatches, words }
    }

    /// Records a step: the upload of its words, and the dispatches.
    pub fn step(&self, device: &wgpu::Device, upload_bytes: u64) -> Duration {
        let mut encoder = device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let clock = ThreadTime::now();
        let upload = device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: upload_bytes,
            usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: true,
        });
        let mut mapped = upload.get_mapped_range_mut(..).expect("it is mapped");
        mapped.copy_from_slice(&vec![0; upload_bytes as usize]);
        drop(mapped);
        upload.unmap();
        encoder.copy_buffer_to_buffer(&upload, 0, &self.words, 0, upload_bytes);
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for dispatch in &self.dispatches {
                pass.set_pipeline(&dispatch.pipeline);
                for (index, group) in (0..).zip(&dispatch.groups) {
                    pass.set_bind_group(index, group, &[]);
                }
                pass.dispatch_workgroups(1, 1, 1);
            }
        }
        let commands = encoder.finish();
        let elapsed = clock.elapsed();
        drop(commands);
        elapsed
    }
}

struct Maker<'a> {
    device: &'a wgpu::Device,
}

impl Maker<'_> {
    fn buffer(&self, usage: wgpu::BufferUsages, size: u64) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    }

    fn layout(&self, kinds: &[Kind]) -> wgpu::BindGroupLayout {
        let entry = |(binding, kind): (u32, &Kind)| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: match kind {
                    Kind::Read => wgpu::BufferBindingType::Storage { read_only: true },
                    Kind::Write => wgpu::BufferBindingType::Storage { read_only: false },
                    Kind::Uniform => wgpu::BufferBindingType::Uniform,
                },
                has_dynamic_offset: false,
                min_binding_size: NonZeroU64::new(4),
            },
            count: None,
        };
        let entries: Vec<_> = (0..).zip(kinds).map(entry).collect();
        let descriptor = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
        self.device.create_bind_group_layout(&descriptor)
    }

    fn group(&self, resources: &[(Kind, &wgpu::Buffer)]) -> wgpu::BindGroup {
        let kinds: Vec<Kind> = resources.iter().map(|&(kind, _)| kind).collect();
        let resources = (0..).zip(resources);
        let entries: Vec<_> = resources
            .map(|(binding, (_, buffer))| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.layout(&kinds),
            entries: &entries,
        })
    }

    fn pipeline(&self, groups: &[&[Kind]]) -> wgpu::ComputePipeline {
        let layouts: Vec<_> = groups.iter().map(|kinds| self.layout(kinds)).collect();
        let layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &layouts.iter().map(Some).collect::<Vec<_>>(),
            immediate_size: 0,
        });
        let source = wgpu::ShaderSource::Wgsl("@compute @workgroup_size(1) fn main() {}".into());
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        })
    }
}
