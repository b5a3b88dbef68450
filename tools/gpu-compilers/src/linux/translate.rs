//! WGSL to SPIR-V and HLSL as wgpu-hal translates it.

use std::collections::BTreeMap;

use anyhow::{Context as _, anyhow};
use naga::back::{hlsl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ShaderStage};
use wgpu_paged_attention::wgpu::ShaderRuntimeChecks;

/// A kernel that naga has read and found valid.
pub struct Parsed {
    module: Module,
    info: ModuleInfo,
}

/// What stands at one binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    Uniform,
    Storage,
}

/// What of a device decides how wgpu-hal translates for it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Of SPIR-V.
    pub version: (u8, u8),
    /// The hardware keeps accesses to buffers in bounds, so that the text need not.
    pub robust_buffer_access2: bool,
    pub integer_dot_product: bool,
    pub int8: bool,
    /// Matrix units, and what their kernels need besides.
    pub matrices: bool,
}

pub fn parse(wgsl: &str) -> anyhow::Result<Parsed> {
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|error| anyhow!("{}", error.emit_to_string(wgsl)))?;
    let capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SUBGROUP
        | Capabilities::SHADER_INT64
        | Capabilities::COOPERATIVE_MATRIX;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(ShaderStages::COMPUTE);
    let info = validator.validate(&module).map_err(|error| anyhow!("{}", error.emit_to_string(wgsl)))?;
    Ok(Parsed { module, info })
}

impl Parsed {
    /// The bindings of each bind group, by their numbers.
    pub fn bindings(&self) -> BTreeMap<u32, BTreeMap<u32, Binding>> {
        let mut groups: BTreeMap<u32, BTreeMap<u32, Binding>> = BTreeMap::new();
        for (_, global) in self.module.global_variables.iter() {
            let Some(place) = &global.binding else { continue };
            let kind = if global.space == AddressSpace::Uniform { Binding::Uniform } else { Binding::Storage };
            groups.entry(place.group).or_default().insert(place.binding, kind);
        }
        groups
    }

    /// SPIR-V as wgpu-hal's Vulkan backend gives it to the driver for a module with these checks.
    pub fn spirv(&self, target: Target, checks: ShaderRuntimeChecks) -> anyhow::Result<Vec<u32>> {
        let unchecked_if = |safe: bool| if safe { BoundsCheckPolicy::Unchecked } else { BoundsCheckPolicy::Restrict };
        let options = spv::Options {
            lang_version: target.version,
            flags: spv::WriterFlags::LABEL_VARYINGS | spv::WriterFlags::FORCE_POINT_SIZE,
            capabilities: Some(capabilities(target).into_iter().collect()),
            bounds_check_policies: BoundsCheckPolicies {
                index: unchecked_if(!checks.bounds_checks),
                buffer: unchecked_if(!checks.bounds_checks || target.robust_buffer_access2),
                image_load: BoundsCheckPolicy::Unchecked,
                binding_array: BoundsCheckPolicy::Unchecked,
            },
            zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
            force_loop_bounding: checks.force_loop_bounding,
            emit_int_div_checks: checks.int_div_checks,
            ..Default::default()
        };
        let pipeline = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: "main".to_owned() };
        spv::write_vec(&self.module, &self.info, &options, Some(&pipeline)).context("no SPIR-V")
    }

    /// HLSL as wgpu-hal's DX12 backend gives it to DXC.
    pub fn hlsl(&self, checks: ShaderRuntimeChecks) -> anyhow::Result<String> {
        let options = hlsl::Options {
            shader_model: hlsl::ShaderModel::V6_0,
            zero_initialize_workgroup_memory: false,
            restrict_indexing: checks.bounds_checks,
            force_loop_bounding: checks.force_loop_bounding,
            ..Default::default()
        };
        let mut text = String::new();
        let pipeline = hlsl::PipelineOptions::default();
        hlsl::Writer::new(&mut text, &options, &pipeline).write(&self.module, &self.info, None).context("no HLSL")?;
        Ok(text)
    }
}

/// Those that a compute kernel could use, of what wgpu-hal allows on a device with subgroups.
fn capabilities(target: Target) -> Vec<spv::Capability> {
    use spv::Capability as C;
    let mut allowed = vec![C::Shader, C::Matrix, C::Int64, C::GroupNonUniform, C::GroupNonUniformVote];
    allowed.extend([C::GroupNonUniformArithmetic, C::GroupNonUniformBallot, C::GroupNonUniformShuffle]);
    allowed.extend([C::GroupNonUniformShuffleRelative, C::GroupNonUniformQuad]);
    if target.integer_dot_product {
        allowed.extend([C::DotProductInputAllKHR, C::DotProductInput4x8BitKHR]);
        allowed.extend([C::DotProductInput4x8BitPackedKHR, C::DotProductKHR]);
    }
    if target.matrices {
        allowed.extend([C::Float16, C::CooperativeMatrixKHR, C::VulkanMemoryModel]);
    }
    if target.int8 {
        allowed.push(C::Int8);
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target =
        Target { version: (1, 6), robust_buffer_access2: true, integer_dot_product: true, int8: true, matrices: true };
    const TEXT: &str = "@group(0) @binding(0) var<uniform> n: u32;
        @group(2) @binding(1) var<storage, read_write> out: array<u32>;
        @compute @workgroup_size(1) fn main() { for (var i = 0u; i < n; i++) { out[i] = i; } }";

    #[test]
    fn bindings_are_those_of_the_text() {
        let groups = parse(TEXT).unwrap().bindings();
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[&0][&0], Binding::Uniform);
        assert_eq!(groups[&2][&1], Binding::Storage);
    }

    #[test]
    fn checks_cost_words_and_only_those_asked_for_are_there() {
        let words = |robust_buffer_access2, force_loop_bounding| {
            let target = Target { robust_buffer_access2, ..TARGET };
            let checks = ShaderRuntimeChecks { force_loop_bounding, ..ShaderRuntimeChecks::checked() };
            parse(TEXT).unwrap().spirv(target, checks).unwrap().len()
        };
        assert!(words(true, false) < words(true, true));
        assert!(words(true, true) < words(false, true));
    }

    #[test]
    fn a_text_that_naga_refuses_is_quoted() {
        assert!(parse("fn main() { x = 1; }").err().unwrap().to_string().contains("x = 1"));
    }
}
