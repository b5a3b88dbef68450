//! What the portability gate does with a shader: reflection, and translation for every API.

use std::collections::BTreeMap;

use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, TypeInner};

use crate::gpu::kernel::{Kernel, MATRIX_FEATURES};

/// A member of a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) offset: u32,
    pub(super) size: u32,
}

/// What a shader declares.
pub(super) struct Reflection {
    /// Members and size in bytes.
    pub(super) structs: BTreeMap<String, (Vec<Member>, u32)>,
    /// Named constants of type `u32`.
    pub(super) constants: BTreeMap<String, u32>,
    pub(super) entry_points: Vec<String>,
    pub(super) invocations: u32,
    pub(super) storage_buffers: usize,
    pub(super) workgroup_bytes: u32,
}

/// A shader in the languages of the APIs.
pub(super) struct Translated {
    pub(super) spirv_words: usize,
    pub(super) msl: String,
    pub(super) hlsl: String,
}

fn parse(kernel: &Kernel, text: &str) -> Module {
    naga::front::wgsl::parse_str(text).unwrap_or_else(|error| panic!("{kernel}: {}", error.emit_to_string(text)))
}

/// With the capabilities that a device must offer for this kernel, and no more.
fn validate(kernel: &Kernel, module: &Module) -> ModuleInfo {
    // `pack2x16float` and its inverse are core WGSL, but naga counts them.
    let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if kernel.needs_subgroups() {
        capabilities |= Capabilities::SUBGROUP;
    }
    if kernel.features().contains(wgpu::Features::SHADER_INT64) {
        capabilities |= Capabilities::SHADER_INT64;
    }
    if kernel.features().contains(MATRIX_FEATURES) {
        capabilities |= Capabilities::SHADER_FLOAT16 | Capabilities::COOPERATIVE_MATRIX;
    }
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    validator.validate(module).unwrap_or_else(|error| panic!("{kernel}: {error:?}"))
}

pub(super) fn reflect(kernel: &Kernel, text: &str) -> Reflection {
    let module = parse(kernel, text);
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).unwrap();
    let size = |ty| layouter[ty].size;

    let mut structs = BTreeMap::new();
    for (_, ty) in module.types.iter() {
        if let (Some(name), TypeInner::Struct { members, span }) = (&ty.name, &ty.inner) {
            let members = members.iter().map(|member| Member {
                name: member.name.clone().unwrap_or_default(),
                offset: member.offset,
                size: size(member.ty),
            });
            structs.insert(name.clone(), (members.collect(), *span));
        }
    }
    let mut constants = BTreeMap::new();
    for (_, constant) in module.constants.iter() {
        let value = &module.global_expressions[constant.init];
        if let (Some(name), naga::Expression::Literal(naga::Literal::U32(value))) = (&constant.name, value) {
            constants.insert(name.clone(), *value);
        }
    }
    let globals = || module.global_variables.iter().map(|(_, global)| global);
    Reflection {
        structs,
        constants,
        entry_points: module.entry_points.iter().map(|entry| entry.name.clone()).collect(),
        invocations: module.entry_points[0].workgroup_size.iter().product(),
        storage_buffers: globals().filter(|global| matches!(global.space, AddressSpace::Storage { .. })).count(),
        workgroup_bytes: globals()
            .filter(|global| global.space == AddressSpace::WorkGroup)
            .map(|global| size(global.ty).next_multiple_of(16))
            .sum(),
    }
}

/// SPIR-V 1.3, MSL 2.4 and HLSL of shader model 6.0.
pub(super) fn translate(kernel: &Kernel, text: &str) -> Translated {
    let module = parse(kernel, text);
    let info = validate(kernel, &module);
    let failed = |language: &str, error: &dyn std::fmt::Debug| -> ! { panic!("{kernel} in {language}: {error:?}") };

    let options = spv::Options { lang_version: (1, 3), ..Default::default() };
    let spirv = spv::write_vec(&module, &info, &options, None).unwrap_or_else(|error| failed("SPIR-V", &error));

    let options = msl::Options { lang_version: (2, 4), ..Default::default() };
    let (msl, msl_info) = msl::write_string(&module, &info, &options, &msl::PipelineOptions::default())
        .unwrap_or_else(|error| failed("MSL", &error));
    for name in msl_info.entry_point_names {
        name.unwrap_or_else(|error| failed("MSL", &error));
    }

    // HLSL of this model has no matrices.
    if kernel.features().contains(MATRIX_FEATURES) {
        return Translated { spirv_words: spirv.len(), msl, hlsl: String::new() };
    }
    let options = hlsl::Options { shader_model: hlsl::ShaderModel::V6_0, ..Default::default() };
    let pipeline = hlsl::PipelineOptions::default();
    let mut hlsl = String::new();
    let written = hlsl::Writer::new(&mut hlsl, &options, &pipeline)
        .write(&module, &info, None)
        .unwrap_or_else(|error| failed("HLSL", &error));
    for name in written.entry_point_names {
        name.unwrap_or_else(|error| failed("HLSL", &error));
    }
    Translated { spirv_words: spirv.len(), msl, hlsl }
}
