//! A device as wgpu opens it, which also tells what its compiler made of a pipeline.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::time::Instant;

use anyhow::{Context as _, bail};
use ash::{ext, khr, vk};
use wgpu_paged_attention::gpu::{matrix_features, recommended_features};
use wgpu_paged_attention::wgpu;
use wgpu_paged_attention::wgpu::hal::api::Vulkan;

use super::translate::{Binding, Target};

/// The device, which lives as long as the process.
pub struct Device {
    raw: ash::Device,
    executables: khr::pipeline_executable_properties::Device,
    target: Target,
}

/// What a compiler tells of a pipeline.
#[derive(Debug, Default)]
pub struct Compiled {
    pub millis: f64,
    /// Lanes of a subgroup, as the compiler chose them.
    pub subgroup: u32,
    pub statistics: BTreeMap<String, f64>,
    /// Name and text; the machine code is the last.
    pub listings: Vec<(String, String)>,
}

impl Device {
    /// Opens a device with all that wgpu asks for, and the reports of the compiler.
    pub fn open(adapter: &wgpu::Adapter) -> anyhow::Result<Self> {
        // SAFETY: what the adapter refers to is only read, and the adapter outlives this function.
        let hal = unsafe { adapter.as_hal::<Vulkan>() }.context("the adapter is not one of Vulkan")?;
        let (instance, physical) = (hal.shared_instance().raw_instance(), hal.raw_physical_device());
        let version = hal.physical_device_capabilities().properties().api_version;
        if version < vk::API_VERSION_1_3 {
            bail!("the driver offers Vulkan {version:#x}; 1.3 is what this tool translates for");
        }
        let reports = khr::pipeline_executable_properties::NAME;
        if !hal.physical_device_capabilities().supports_extension(reports) {
            bail!("the driver does not tell what it compiled: it lacks {reports:?}");
        }
        // Plants may ask for words of 64 bits.
        let int64 = adapter.features() & wgpu::Features::SHADER_INT64;
        let features = recommended_features(adapter) | matrix_features(adapter) | int64;
        let mut extensions = hal.required_device_extensions(features);
        let mut wanted = hal.physical_device_features(&extensions, features);
        extensions.push(reports);
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let queue = vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0]);
        let queues = [queue];
        let mut telling =
            vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default().pipeline_executable_info(true);
        let create = vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
        let create = wanted.add_to_device_create(create.push_next(&mut telling));
        // SAFETY: the physical device is the instance's, and everything `create` points to is alive.
        let raw = unsafe { instance.create_device(physical, &create, None) }.context("no device")?;
        let executables = khr::pipeline_executable_properties::Device::new(instance, &raw);
        let robust = extensions.contains(&ext::robustness2::NAME);
        // SAFETY: as above.
        let target = unsafe { target(instance, physical, robust, !matrix_features(adapter).is_empty()) };
        Ok(Self { raw, executables, target })
    }

    pub fn target(&self) -> Target {
        self.target
    }

    /// Compiles a kernel as wgpu-hal does on a device with subgroups.
    pub fn compile(&self, spirv: &[u32], groups: &BTreeMap<u32, BTreeMap<u32, Binding>>) -> anyhow::Result<Compiled> {
        // SAFETY: naga validated the module, the layout names all its bindings, and nothing is used after it is destroyed.
        unsafe {
            let layout = self.layout(groups)?;
            let module = self.raw.create_shader_module(&vk::ShaderModuleCreateInfo::default().code(spirv), None)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .flags(vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE)
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let tell = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
                | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR;
            let create = vk::ComputePipelineCreateInfo::default().flags(tell).stage(stage).layout(layout);
            let start = Instant::now();
            let made = self.raw.create_compute_pipelines(vk::PipelineCache::null(), &[create], None);
            let millis = start.elapsed().as_secs_f64() * 1e3;
            let pipeline = made.map_err(|(_, error)| error).context("no pipeline")?[0];
            let compiled = self.report(pipeline, millis);
            self.raw.destroy_pipeline(pipeline, None);
            self.raw.destroy_shader_module(module, None);
            self.raw.destroy_pipeline_layout(layout, None);
            compiled
        }
    }

    /// A layout with these bindings. Its sets leave a few bytes behind.
    ///
    /// # Safety
    /// The device is alive.
    unsafe fn layout(&self, groups: &BTreeMap<u32, BTreeMap<u32, Binding>>) -> anyhow::Result<vk::PipelineLayout> {
        let count = groups.keys().max().map_or(0, |last| last + 1);
        let mut sets = Vec::new();
        for group in 0..count {
            let entries = groups.get(&group).into_iter().flatten();
            let entries: Vec<_> = entries.map(|(&number, &kind)| binding(number, kind)).collect();
            let create = vk::DescriptorSetLayoutCreateInfo::default().bindings(&entries);
            // SAFETY: `entries` is alive.
            sets.push(unsafe { self.raw.create_descriptor_set_layout(&create, None) }?);
        }
        let create = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
        // SAFETY: `sets` is alive.
        Ok(unsafe { self.raw.create_pipeline_layout(&create, None) }?)
    }

    /// What the compiler tells of the pipeline's executable; of several, as Intel makes for several widths, of the last,
    /// which is the widest.
    ///
    /// # Safety
    /// The pipeline is alive and was made with the flags that ask for reports.
    unsafe fn report(&self, pipeline: vk::Pipeline, millis: f64) -> anyhow::Result<Compiled> {
        let tell = &self.executables;
        // SAFETY: the pipeline is alive.
        let all =
            unsafe { tell.get_pipeline_executable_properties(&vk::PipelineInfoKHR::default().pipeline(pipeline)) }?;
        let last = all.len().checked_sub(1).context("the compiler tells of no executable")?;
        let which = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline).executable_index(last as u32);
        // SAFETY: as above, and `which` names one of its executables.
        let statistics = unsafe { tell.get_pipeline_executable_statistics(&which) }?;
        let statistics = statistics.iter().map(|one| (text(&one.name), number(one))).collect();
        // SAFETY: as above.
        let listings = unsafe { self.listings(&which) };
        Ok(Compiled { millis, subgroup: all[last].subgroup_size, statistics, listings })
    }

    /// # Safety
    /// `which` names an executable of a pipeline that is alive.
    unsafe fn listings(&self, which: &vk::PipelineExecutableInfoKHR<'_>) -> Vec<(String, String)> {
        let fetch = self.executables.fp().get_pipeline_executable_internal_representations_khr;
        let device = self.raw.handle();
        let mut count = 0;
        // SAFETY: without a list the driver writes the count alone.
        let _ = unsafe { fetch(device, which, &mut count, std::ptr::null_mut()) };
        let mut found = vec![vk::PipelineExecutableInternalRepresentationKHR::default(); count as usize];
        // SAFETY: the list has room for `count`; without room for texts the driver writes their sizes alone.
        let _ = unsafe { fetch(device, which, &mut count, found.as_mut_ptr()) };
        let mut texts: Vec<Vec<u8>> = found.iter().map(|one| vec![0; one.data_size]).collect();
        for (one, text) in found.iter_mut().zip(&mut texts) {
            one.p_data = text.as_mut_ptr().cast();
        }
        // SAFETY: each text has room for as many bytes as its entry says.
        let _ = unsafe { fetch(device, which, &mut count, found.as_mut_ptr()) };
        let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
        found.iter().zip(&texts).map(|(one, bytes)| (text(&one.name), string(bytes))).collect()
    }
}

fn binding(number: u32, kind: Binding) -> vk::DescriptorSetLayoutBinding<'static> {
    vk::DescriptorSetLayoutBinding::default()
        .binding(number)
        .descriptor_type(match kind {
            Binding::Uniform => vk::DescriptorType::UNIFORM_BUFFER,
            Binding::Storage => vk::DescriptorType::STORAGE_BUFFER,
        })
        .descriptor_count(1)
        .stage_flags(vk::ShaderStageFlags::COMPUTE)
}

/// # Safety
/// The physical device is the instance's.
unsafe fn target(instance: &ash::Instance, physical: vk::PhysicalDevice, robustness2: bool, matrices: bool) -> Target {
    let mut robust = vk::PhysicalDeviceRobustness2FeaturesEXT::default();
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut all = vk::PhysicalDeviceFeatures2::default().push_next(&mut robust).push_next(&mut v12).push_next(&mut v13);
    // SAFETY: the caller says so, and the chain is alive.
    unsafe { instance.get_physical_device_features2(physical, &mut all) };
    Target {
        version: (1, 6),
        robust_buffer_access2: robustness2 && robust.robust_buffer_access2 == vk::TRUE,
        integer_dot_product: v13.shader_integer_dot_product == vk::TRUE,
        int8: v12.shader_int8 == vk::TRUE,
        matrices,
    }
}

/// A name that a driver wrote.
fn text(name: &[c_char]) -> String {
    let bytes: Vec<u8> = name.iter().map(|&byte| byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
}

fn number(one: &vk::PipelineExecutableStatisticKHR<'_>) -> f64 {
    // SAFETY: the format says which of the values was written; all are plain numbers of at most 8 bytes.
    unsafe {
        match one.format {
            vk::PipelineExecutableStatisticFormatKHR::BOOL32 => one.value.b32.into(),
            vk::PipelineExecutableStatisticFormatKHR::INT64 => one.value.i64 as f64,
            vk::PipelineExecutableStatisticFormatKHR::UINT64 => one.value.u64 as f64,
            _ => one.value.f64,
        }
    }
}
