//! The portability gate: every kernel variant must satisfy naga, three back ends, WebGPU's limits, and tint if there is
//! one. No device is needed.

mod common {
    pub mod shaders;
    pub mod variants;
}

use std::mem::{offset_of, size_of};

use common::shaders::{Member, Reflection, Translated, reflect, translate};
use common::variants::variants;
use wgpu_paged_attention::config::KvFormat;
use wgpu_paged_attention::gpu::params::{AppendParams, DecodeParams, MergeParams};
use wgpu_paged_attention::gpu::{APPEND_LANES, Dialect, Exchange, Kernel, KvShape, UPDATE_LANES};
use wgpu_paged_attention::layout::SKIP_SLOT;
use wgpu_paged_attention::plan::{Row, StepHeader, TableUpdate};

/// WebGPU's default limits.
const STORAGE_BUFFERS_PER_STAGE: usize = 8;
const WORKGROUP_BYTES: u32 = 16_384;
const INVOCATIONS: u32 = 256;

fn text(kernel: &Kernel) -> String {
    kernel.wgsl(Dialect::Naga).unwrap_or_else(|error| panic!("{kernel}: {error}"))
}

/// `name: offset, size` of the fields of a host struct.
macro_rules! host_members {
    ($type:ident { $($field:ident),+ $(,)? }) => {{
        let host = $type::default();
        vec![$(Member {
            name: stringify!($field).to_owned(),
            offset: offset_of!($type, $field) as u32,
            size: size_of_val(&host.$field) as u32,
        }),+]
    }};
}

#[track_caller]
fn assert_same_struct(kernel: &Kernel, name: &str, host: &[Member], host_bytes: usize) {
    let reflection = reflect(kernel, &text(kernel));
    let (members, bytes) = reflection.structs.get(name).unwrap_or_else(|| panic!("{kernel} has no struct {name}"));
    assert_eq!(members, host, "{name} of {kernel}");
    assert_eq!(*bytes as usize, host_bytes, "size of {name}");
}

fn append_kernel() -> Kernel {
    Kernel::KvAppend { kv: KvShape { format: KvFormat::F16, head_dim: 64, block_size: 16 } }
}

fn decode_kernel(exchange: Exchange) -> Kernel {
    let kv = KvShape { format: KvFormat::F16, head_dim: 64, block_size: 16 };
    Kernel::PagedDecode { kv, paged: true, group: 4, exchange, write_lse: true, split_tokens: 256 }
}

#[test]
fn every_variant_is_accepted_with_the_capabilities_of_its_devices_and_translated_for_every_api() {
    let kernels = variants();
    assert!(kernels.len() > 200, "only {} variants", kernels.len());
    for kernel in &kernels {
        let Translated { spirv_words, msl, hlsl } = translate(kernel, &text(kernel));
        assert!(spirv_words > 100, "{kernel}");
        assert!(msl.contains("kernel void main_"), "{kernel}");
        assert!(hlsl.contains("void main("), "{kernel}");
    }
}

#[test]
fn every_variant_keeps_the_default_limits() {
    for kernel in variants() {
        let Reflection { entry_points, storage_buffers, workgroup_bytes, invocations, .. } =
            reflect(&kernel, &text(&kernel));
        assert_eq!(entry_points, ["main"], "{kernel}");
        assert!(storage_buffers <= STORAGE_BUFFERS_PER_STAGE, "{kernel} binds {storage_buffers} storage buffers");
        assert!(workgroup_bytes <= WORKGROUP_BYTES, "{kernel} takes {workgroup_bytes} bytes of workgroup memory");
        assert!(invocations <= INVOCATIONS, "{kernel} has {invocations} invocations");
    }
}

#[test]
fn a_workgroup_is_one_subgroup_or_needs_none() {
    for kernel in variants() {
        let reflection = reflect(&kernel, &text(&kernel));
        if let Kernel::PagedDecode { exchange, .. } = kernel {
            assert_eq!(reflection.invocations, exchange.lanes(), "{kernel}");
        }
        assert_eq!(text(&kernel).contains("subgroupShuffle("), kernel.needs_subgroups(), "{kernel}");
        assert!(reflection.workgroup_bytes == 0 || !kernel.needs_subgroups(), "{kernel}");
    }
}

#[test]
fn uniforms_are_laid_out_as_on_the_host() {
    let members = host_members!(AppendParams { first_kv_head, num_kv_heads, total_kv_heads, padding });
    assert_same_struct(&append_kernel(), "AppendParams", &members, size_of::<AppendParams>());

    let members = host_members!(DecodeParams { scale_log2e, first_kv_head, num_kv_heads, num_q_heads });
    for exchange in [Exchange::Subgroup { lanes: 8 }, Exchange::Workgroup { lanes: 64 }] {
        assert_same_struct(&decode_kernel(exchange), "DecodeParams", &members, size_of::<DecodeParams>());
    }

    let members = host_members!(MergeParams { num_q_heads, padding_0, padding_1, padding_2 });
    let merge = Kernel::MergePartials { head_dim: 64, write_lse: true };
    assert_same_struct(&merge, "MergeParams", &members, size_of::<MergeParams>());
}

#[test]
fn the_words_of_a_step_are_laid_out_as_on_the_host() {
    let row = host_members!(Row { kv_len, table_base, split_start, partial_start });
    let header = host_members!(StepHeader {
        num_rows,
        num_slots,
        num_updates,
        num_splits,
        split_tokens,
        rows_base,
        slots_base,
        updates_base,
    });
    let merge = Kernel::MergePartials { head_dim: 64, write_lse: false };
    for kernel in [merge, append_kernel(), Kernel::TableUpdate, decode_kernel(Exchange::Workgroup { lanes: 64 })] {
        assert_same_struct(&kernel, "Row", &row, size_of::<Row>());
        assert_same_struct(&kernel, "StepHeader", &header, size_of::<StepHeader>());
    }
    // The shader numbers the words of an update instead of naming them: two of them, the index first.
    assert_eq!(offset_of!(TableUpdate, index), 0);
    assert_eq!(offset_of!(TableUpdate, block), 4);
    assert_eq!(size_of::<TableUpdate>(), 8);
    let update = text(&Kernel::TableUpdate);
    assert!(update.contains("header.updates_base + 2u * update"), "{update}");
    assert!(update.contains("tables[step[at]] = step[at + 1u]"), "{update}");
}

#[test]
fn constants_agree_with_the_host() {
    let append = reflect(&append_kernel(), &text(&append_kernel()));
    assert_eq!(append.invocations, APPEND_LANES);
    assert_eq!(append.constants.get("APPEND_LANES"), Some(&APPEND_LANES));
    assert_eq!(append.constants.get("SKIP_SLOT"), Some(&SKIP_SLOT));
    let update = reflect(&Kernel::TableUpdate, &text(&Kernel::TableUpdate));
    assert_eq!(update.invocations, UPDATE_LANES);
    assert_eq!(update.constants.get("UPDATE_LANES"), Some(&UPDATE_LANES));
}

#[test]
fn a_swapped_member_is_noticed() {
    let kernel = Kernel::MergePartials { head_dim: 64, write_lse: true };
    let right = text(&kernel);
    let wrong = right.replacen("num_rows: u32,\n    num_slots: u32,", "num_slots: u32,\n    num_rows: u32,", 1);
    assert_ne!(right, wrong, "nothing was swapped");
    let header = |text| reflect(&kernel, text).structs["StepHeader"].clone();
    assert_ne!(header(&right), header(&wrong));

    let wider = right.replacen("    padding_2: u32,", "    padding_2: vec2<u32>,", 1);
    assert_ne!(right, wider, "nothing was widened");
    let params = |text| reflect(&kernel, text).structs["MergeParams"].clone();
    assert_ne!(params(&right), params(&wider));
}

#[test]
fn a_shader_beyond_its_capabilities_is_noticed() {
    let plain = decode_kernel(Exchange::Workgroup { lanes: 64 });
    let subgroups = text(&decode_kernel(Exchange::Subgroup { lanes: 8 }));
    // The text of another class of devices must not pass as that of one without subgroups.
    let refused = std::panic::catch_unwind(|| translate(&plain, &subgroups));
    assert!(refused.is_err());
}
