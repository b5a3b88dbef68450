//! The portability gate, which needs no device: every kernel variant is valid WGSL for naga and tint, translates to
//! SPIR-V, MSL and HLSL, keeps WebGPU's default limits, and agrees with the host about every struct.

use std::fs;
use std::mem::offset_of;
use std::path::PathBuf;
use std::process::Command;

use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, TypeInner};
use wgpu_paged_attention::config::KvFormat;
use wgpu_paged_attention::gpu::params::{AppendParams, DecodeParams, MergeParams};
use wgpu_paged_attention::gpu::{APPEND_LANES, Dialect, Exchange, Kernel, KvShape, UPDATE_LANES};
use wgpu_paged_attention::layout::SKIP_SLOT;
use wgpu_paged_attention::plan::{Row, StepHeader, TableUpdate};

/// What a stage may use on a device with WebGPU's default limits.
const MAX_WORKGROUP_BYTES: u32 = 16_384;
const MAX_INVOCATIONS: u32 = 256;
const MAX_STORAGE_BUFFERS: usize = 8;

/// Every kernel, over formats, widths, groups, forms and flags.
fn variants() -> Vec<Kernel> {
    let mut all = vec![Kernel::TableUpdate];
    for format in KvFormat::ALL {
        for (head_dim, block_size) in [(1, 1), (5, 16), (64, 16), (80, 17), (128, 16), (256, 256)] {
            let kv = KvShape { format, head_dim, block_size };
            all.push(Kernel::KvAppend { kv });
            for exchange in exchanges() {
                for group in [1, 4, 7, 8, 9, 71] {
                    // The contiguous twin differs in one function; one group shows that it is valid.
                    for paged in [true, false].into_iter().filter(|paged| *paged || group == 4) {
                        let (split_tokens, write_lse) = (if paged { 1024 } else { 37 }, group % 2 == 1);
                        all.push(Kernel::PagedDecode { kv, paged, group, exchange, split_tokens, write_lse });
                    }
                }
            }
        }
    }
    for head_dim in [1, 5, 128, 256] {
        all.extend([true, false].map(|write_lse| Kernel::MergePartials { head_dim, write_lse }));
    }
    all
}

fn exchanges() -> Vec<Exchange> {
    let subgroups = [4, 8, 16, 32, 64].map(|lanes| Exchange::Subgroup { lanes });
    subgroups.into_iter().chain([Exchange::Workgroup { lanes: 64 }]).collect()
}

/// The heaviest variants, and one of everything: what a slow outside tool is asked about.
fn sample() -> Vec<Kernel> {
    let keep = |kernel: &Kernel| match kernel {
        Kernel::PagedDecode { kv, group, exchange, .. } => {
            let few_lanes = matches!(exchange, Exchange::Subgroup { lanes: 8 | 32 } | Exchange::Workgroup { .. });
            matches!((kv.head_dim, group), (5, 9) | (128, 4 | 71) | (256, 8)) && few_lanes
        }
        _ => true,
    };
    variants().into_iter().filter(keep).collect()
}

/// Parses and validates a text for a device that offers subgroups or does not.
fn validate(text: &str, subgroups: bool) -> Result<(Module, ModuleInfo), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let mut capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if subgroups {
        capabilities |= Capabilities::SUBGROUP;
    }
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all())
        .validate(&module)
        .map_err(|error| error.emit_to_string(text))?;
    Ok((module, info))
}

fn parsed(kernel: &Kernel) -> (Module, ModuleInfo) {
    let text = kernel.wgsl(Dialect::Naga).unwrap_or_else(|error| panic!("{kernel}: {error}"));
    validate(&text, kernel.needs_subgroups()).unwrap_or_else(|error| panic!("{kernel}: {error}"))
}

fn translate(module: &Module, info: &ModuleInfo) -> Result<(), String> {
    let spv = naga::back::spv::Options { lang_version: (1, 3), ..Default::default() };
    naga::back::spv::write_vec(module, info, &spv, None).map_err(|error| format!("SPIR-V: {error}"))?;
    let msl = naga::back::msl::Options { lang_version: (2, 4), ..Default::default() };
    naga::back::msl::write_string(module, info, &msl, &Default::default()).map_err(|error| format!("MSL: {error}"))?;
    let hlsl = naga::back::hlsl::Options {
        shader_model: naga::back::hlsl::ShaderModel::V6_6,
        fake_missing_bindings: true,
        ..Default::default()
    };
    let mut text = String::new();
    naga::back::hlsl::Writer::new(&mut text, &hlsl, &Default::default())
        .write(module, info, None)
        .map_err(|error| format!("HLSL: {error}"))?;
    if text.is_empty() { Err("HLSL: empty".to_owned()) } else { Ok(()) }
}

#[test]
fn every_variant_is_valid_and_translates_to_spirv_msl_and_hlsl() {
    let variants = variants();
    for kernel in &variants {
        let (module, info) = parsed(kernel);
        translate(&module, &info).unwrap_or_else(|error| panic!("{kernel}: {error}"));
    }
    assert!(variants.len() > 400, "only {} variants", variants.len());
}

#[test]
fn only_the_subgroup_form_needs_subgroups() {
    let kv = KvShape { format: KvFormat::F16, head_dim: 64, block_size: 16 };
    let decode =
        |exchange| Kernel::PagedDecode { kv, paged: true, group: 4, exchange, split_tokens: 256, write_lse: true };
    let text = |exchange| decode(exchange).wgsl(Dialect::Naga).unwrap();
    assert!(validate(&text(Exchange::Subgroup { lanes: 8 }), false).is_err());
    assert!(validate(&text(Exchange::Workgroup { lanes: 64 }), false).is_ok());
    let directive = "enable subgroups;";
    assert!(decode(Exchange::Subgroup { lanes: 8 }).wgsl(Dialect::Tint).unwrap().starts_with(directive));
    assert!(!decode(Exchange::Workgroup { lanes: 64 }).wgsl(Dialect::Tint).unwrap().contains(directive));
    assert!(!text(Exchange::Subgroup { lanes: 8 }).contains(directive));
}

#[test]
fn every_variant_keeps_the_default_limits_of_a_stage() {
    for kernel in variants() {
        let (module, _) = parsed(&kernel);
        let [entry] = &module.entry_points[..] else { panic!("{kernel}: not one entry point") };
        assert_eq!(entry.name, "main", "{kernel}");
        assert!(entry.workgroup_size.iter().product::<u32>() <= MAX_INVOCATIONS, "{kernel}");
        let globals = |wanted: fn(&AddressSpace) -> bool| {
            module.global_variables.iter().filter(move |(_, global)| wanted(&global.space)).map(|(_, global)| global)
        };
        let buffers = globals(|space| matches!(space, AddressSpace::Storage { .. })).count();
        assert!(buffers <= MAX_STORAGE_BUFFERS, "{kernel}: {buffers} storage buffers");
        let bytes: u32 = globals(|space| *space == AddressSpace::WorkGroup)
            .map(|global| module.types[global.ty].inner.size(module.to_ctx()))
            .sum();
        assert!(bytes <= MAX_WORKGROUP_BYTES, "{kernel}: {bytes} bytes of workgroup memory");
    }
}

/// Compares a shader's struct with a host's: `(member, offset)` in order, and the size.
fn compare_struct(module: &Module, name: &str, fields: &[(&str, usize)], size: usize) -> Result<(), String> {
    let found = module.types.iter().find(|(_, ty)| ty.name.as_deref() == Some(name));
    let (_, ty) = found.ok_or_else(|| format!("no struct {name}"))?;
    let TypeInner::Struct { members, span } = &ty.inner else { return Err(format!("{name} is no struct")) };
    let shader: Vec<_> = members.iter().map(|m| (m.name.as_deref().unwrap_or(""), m.offset as usize)).collect();
    if shader != fields || *span as usize != size {
        return Err(format!("{name}: shader {shader:?} of {span} bytes, host {fields:?} of {size} bytes"));
    }
    Ok(())
}

/// Name and offset of every field, from the host's struct.
macro_rules! fields {
    ($ty:ty: $($field:ident),+) => { [$((stringify!($field), offset_of!($ty, $field))),+] };
}

fn append_kernel() -> Kernel {
    Kernel::KvAppend { kv: KvShape { format: KvFormat::F16, head_dim: 64, block_size: 16 } }
}

fn decode_kernel() -> Kernel {
    let kv = KvShape { format: KvFormat::F16, head_dim: 64, block_size: 16 };
    let exchange = Exchange::Workgroup { lanes: 64 };
    Kernel::PagedDecode { kv, paged: true, group: 4, exchange, split_tokens: 256, write_lse: true }
}

#[test]
fn host_and_shader_agree_about_every_struct() {
    let (append, _) = parsed(&append_kernel());
    let (decode, _) = parsed(&decode_kernel());
    let (merge, _) = parsed(&Kernel::MergePartials { head_dim: 64, write_lse: true });
    let checks = [
        compare_struct(
            &append,
            "AppendParams",
            &fields!(AppendParams: first_kv_head, num_kv_heads, total_kv_heads, padding),
            size_of::<AppendParams>(),
        ),
        compare_struct(
            &decode,
            "DecodeParams",
            &fields!(DecodeParams: scale_log2e, first_kv_head, num_kv_heads, num_q_heads),
            size_of::<DecodeParams>(),
        ),
        compare_struct(
            &merge,
            "MergeParams",
            &fields!(MergeParams: num_q_heads, padding_0, padding_1, padding_2),
            size_of::<MergeParams>(),
        ),
        compare_struct(&decode, "Row", &fields!(Row: kv_len, table_base, split_start, partial_start), size_of::<Row>()),
        compare_struct(
            &decode,
            "StepHeader",
            &fields!(StepHeader: num_rows, num_slots, num_updates, num_splits, split_tokens, rows_base, slots_base, updates_base),
            size_of::<StepHeader>(),
        ),
    ];
    for check in checks {
        check.unwrap();
    }
    // An update is two words that the shader reads by their place.
    assert_eq!(fields!(TableUpdate: index, block), [("index", 0), ("block", 4)]);
}

#[test]
fn a_member_out_of_place_is_noticed() {
    let (decode, _) = parsed(&decode_kernel());
    let swapped = [("kv_len", 0), ("split_start", 4), ("table_base", 8), ("partial_start", 12)];
    assert!(compare_struct(&decode, "Row", &swapped, 16).is_err());
    let right = fields!(Row: kv_len, table_base, split_start, partial_start);
    assert!(compare_struct(&decode, "Row", &right, 20).is_err());
    assert!(compare_struct(&decode, "NoSuchStruct", &right, 16).is_err());
}

#[test]
fn constants_that_a_shader_repeats_are_the_hosts() {
    let lanes = |kernel: &Kernel| parsed(kernel).0.entry_points[0].workgroup_size;
    assert_eq!(lanes(&append_kernel()), [APPEND_LANES, 1, 1]);
    assert_eq!(lanes(&Kernel::TableUpdate), [UPDATE_LANES, 1, 1]);
    assert_eq!(lanes(&decode_kernel()), [64, 1, 1]);
    let text = append_kernel().wgsl(Dialect::Naga).unwrap();
    assert!(text.contains(&format!("const SKIP_SLOT: u32 = {SKIP_SLOT:#x}u;")), "SKIP_SLOT");
}

#[test]
fn no_shader_compares_a_value_with_itself_or_relies_on_an_infinity() {
    for kernel in sample() {
        let text = kernel.wgsl(Dialect::Naga).unwrap();
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for operator in [" != ", " == "] {
                for (left, right) in line.match_indices(operator).map(|(at, _)| line.split_at(at)) {
                    let word = |c: char| c.is_alphanumeric() || "_.[]".contains(c);
                    let left = left.rsplit(|c| !word(c)).next().unwrap_or("");
                    let right = right[operator.len()..].split(|c| !word(c)).next().unwrap_or("");
                    assert!(left.is_empty() || left != right, "{kernel}: {line}");
                }
            }
            assert!(!line.contains("isNan") && !line.contains("isInf"), "{kernel}: {line}");
        }
    }
}

/// Where a `tint` command is, if there is one.
fn tint() -> Option<PathBuf> {
    let named = std::env::var_os("TINT").map(PathBuf::from);
    let on_path =
        || std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join("tint")).find(|path| path.is_file());
    named.or_else(on_path)
}

/// tint's verdict on a text.
fn ask_tint(tint: &PathBuf, text: &str) -> Result<(), String> {
    let file = std::env::temp_dir().join(format!("paged-attention-{}-{:p}.wgsl", std::process::id(), text));
    fs::write(&file, text).unwrap();
    let answer = Command::new(tint).arg("--format").arg("wgsl").arg(&file).output().unwrap();
    fs::remove_file(&file).unwrap();
    if answer.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&answer.stderr).into_owned()) }
}

#[test]
fn tint_accepts_the_variants_and_finds_their_barriers_uniform() {
    let Some(tint) = tint() else {
        println!("skipped: no tint command; naga does not check that barriers are uniform");
        return;
    };
    for kernel in sample() {
        let text = kernel.wgsl(Dialect::Tint).unwrap();
        ask_tint(&tint, &text).unwrap_or_else(|error| panic!("{kernel}: {error}"));
    }
}

#[test]
fn tint_refuses_a_barrier_that_some_lanes_do_not_reach() {
    let Some(tint) = tint() else {
        println!("skipped: no tint command");
        return;
    };
    let text = decode_kernel().wgsl(Dialect::Tint).unwrap();
    let planted = text.replace(
        "run(linear_index(group, groups), lane);",
        "if (lane < 3u) { run(linear_index(group, groups), lane); }",
    );
    assert_ne!(text, planted);
    let error = ask_tint(&tint, &planted).unwrap_err();
    assert!(error.contains("uniform"), "{error}");
}
