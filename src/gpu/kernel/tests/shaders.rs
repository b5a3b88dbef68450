//! The portability gate: every kernel variant must satisfy naga, three back ends, WebGPU's limits, and tint if there is
//! one. No device is needed.

use std::mem::{offset_of, size_of};

use super::shader_text::{Member, Reflection, Translated, reflect, translate};
use super::variants::{ATTENTIONS, CLASSES, WORKGROUP, attention, subgroup, variants};
use crate::formats::KvDtype;
use crate::gpu::BlockPair;
use crate::gpu::kernel::attention_shape::AttentionForm;
use crate::gpu::kernel::params::{AppendParams, AttentionParams, HeadTerms, MergeParams, ShardParams, TransferParams};
use crate::gpu::kernel::shape::{KvShape, Scoring};
use crate::gpu::kernel::variant::IoFormat;
use crate::gpu::kernel::{ITEM_LANES, Kernel};
use crate::gpu::value::{ExternalElement, ExternalLayout, ExternalOrder, RowChange};
use crate::layout::SKIP_SLOT;
use crate::plan::{Merge, NO_PARTIAL, QueryTile, StepHeader, TILE_CLASSES, TableUpdate, TileClass};

/// WebGPU's default limits.
const STORAGE_BUFFERS_PER_STAGE: usize = 8;
const WORKGROUP_BYTES: u32 = 16_384;
const INVOCATIONS: u32 = 256;

fn text(kernel: &Kernel) -> String {
    kernel.wgsl()
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
    let kv = KvShape { format: KvDtype::F16, head_dim: 64, v_head_dim: 64, block_size: 16 };
    Kernel::KvAppend { kv, io_format: IoFormat::F32, change: RowChange::default() }
}

fn transfer_kernels() -> [Kernel; 2] {
    let kv = KvShape { format: KvDtype::Int4, head_dim: 64, v_head_dim: 64, block_size: 16 };
    let external = ExternalLayout { order: ExternalOrder::TokenMajor, element: ExternalElement::Bf16 };
    [Kernel::PoolImport { kv, external }, Kernel::PoolExport { kv, external }]
}

fn attention_kernel(form: AttentionForm) -> Kernel {
    let kv = KvShape { format: KvDtype::F16, head_dim: 64, v_head_dim: 64, block_size: 16 };
    attention(kv, true, 4, 1, form, ATTENTIONS[1])
}

fn merge_kernel() -> Kernel {
    Kernel::MergePartials { v_head_dim: 64, variant: ATTENTIONS[1] }
}

#[test]
fn every_variant_is_accepted_with_the_capabilities_of_its_devices_and_translated_for_every_api() {
    let kernels = variants();
    assert!(kernels.len() > 300, "only {} variants", kernels.len());
    for class in CLASSES {
        for options in ATTENTIONS.map(|variant| variant.soft_cap) {
            let met = |kernel: &&Kernel| matches!(kernel, Kernel::PagedAttention { class: c, variant, .. } if *c == class && variant.soft_cap == options);
            assert!(kernels.iter().filter(met).count() > 5, "class {class}, options {options}");
        }
    }
    for kernel in &kernels {
        let Translated { spirv_words, msl, hlsl } = translate(kernel, &text(kernel));
        assert!(spirv_words > 100, "{kernel}");
        assert!(msl.contains("kernel void main_"), "{kernel}");
        assert!(hlsl.contains("void main("), "{kernel}");
        // Without this call, naga takes a parameter from nowhere, which DXC refuses.
        assert_eq!(hlsl.contains("WaveGetLaneIndex()"), kernel.needs_subgroups(), "{kernel}");
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
fn a_workgroup_is_as_many_subgroups_as_its_form_has_or_needs_none() {
    for kernel in variants() {
        let reflection = reflect(&kernel, &text(&kernel));
        if let Kernel::PagedAttention { form, .. } = kernel {
            let subgroups = reflection.constants["SUBGROUPS"];
            assert_eq!(reflection.invocations, subgroups * form.lane_comm.lanes(), "{kernel}");
            assert!(subgroups <= form.subgroups, "{kernel}");
            assert_eq!(text(&kernel).contains("@builtin(subgroup_id) member"), subgroups > 1, "{kernel}");
        }
        assert_eq!(text(&kernel).contains("subgroupShuffle("), kernel.needs_subgroups(), "{kernel}");
        let shares = |form: AttentionForm| form.scoring == Scoring::SharedQueries || form.subgroups > 1;
        let shares = matches!(kernel, Kernel::PagedAttention { form, .. } if shares(form));
        assert!(reflection.workgroup_bytes == 0 || shares || !kernel.needs_subgroups(), "{kernel}");
    }
}

#[test]
fn uniforms_are_laid_out_as_on_the_host() {
    let members = host_members!(AppendParams {
        first_kv_head,
        num_kv_heads,
        k_base,
        k_stride,
        v_base,
        v_stride,
        norm_base,
        norm_eps,
    });
    assert_same_struct(&append_kernel(), "AppendParams", &members, size_of::<AppendParams>());

    let members = host_members!(ShardParams { num_kv_heads, padding_0, padding_1, padding_2 });
    let kv = KvShape { format: KvDtype::F16, head_dim: 64, v_head_dim: 64, block_size: 16 };
    assert_same_struct(&Kernel::BlockCopy { kv }, "ShardParams", &members, size_of::<ShardParams>());

    let members = host_members!(TransferParams { num_pairs, first_kv_head, num_kv_heads, total_kv_heads });
    for kernel in transfer_kernels() {
        assert_same_struct(&kernel, "TransferParams", &members, size_of::<TransferParams>());
    }
    // The shaders take a pair as two words: theirs, ours.
    assert_eq!((offset_of!(BlockPair, external), offset_of!(BlockPair, own), size_of::<BlockPair>()), (0, 4, 8));

    let members = host_members!(AttentionParams {
        query_factor,
        score_factor,
        window,
        first_kv_head,
        num_kv_heads,
        num_q_heads,
        first_item,
        q_base,
        q_stride,
        out_base,
        out_stride,
        lse_base,
        padding_0,
        padding_1,
        padding_2,
        padding_3,
    });
    for form in [subgroup(8), WORKGROUP] {
        assert_same_struct(&attention_kernel(form), "AttentionParams", &members, size_of::<AttentionParams>());
    }

    let members = host_members!(MergeParams {
        num_q_heads,
        window,
        out_base,
        out_stride,
        lse_base,
        padding_0,
        padding_1,
        padding_2,
    });
    let merge = merge_kernel();
    assert_same_struct(&merge, "MergeParams", &members, size_of::<MergeParams>());

    // The shaders take the terms of a head as a vec4: slope and sink in its first two components.
    let offsets = (offset_of!(HeadTerms, slope_log2e), offset_of!(HeadTerms, sink_log2e), size_of::<HeadTerms>());
    assert_eq!(offsets, (0, 4, 16));
    let attention = text(&attention_kernel(WORKGROUP));
    assert!(attention.contains("select(0.0, head_terms[min(head, HEAD_TERMS - 1u)].x, ALIBI)"));
    assert!(attention.contains("select(0.0, head_terms[min(head, HEAD_TERMS - 1u)].y, SINKS)"));
    assert!(text(&merge).contains("if (SINKS) { sink = head_terms[min(head, HEAD_TERMS - 1u)].y; }"));
}

#[test]
fn the_words_of_a_step_are_laid_out_as_on_the_host() {
    let header = host_members!(StepHeader {
        version,
        num_queries,
        num_slots,
        num_requests,
        num_last_rows,
        positions_base,
        slots_base,
        cu_seqlens_base,
        last_rows_base,
        num_updates,
        num_merges,
        members_base,
        merges_base,
        updates_base,
        num_copies,
        copies_base,
        num_clears,
        clears_base,
    });
    let class = host_members!(TileClass { tiles_base, num_tiles, num_items });
    let tile = host_members!(QueryTile {
        first_member,
        num_members,
        table_base,
        key_begin,
        key_end,
        split_tokens,
        item_start,
        first_partial,
    });
    let merge = host_members!(Merge {
        query,
        kv_len,
        shared_splits,
        shared_partial,
        shared_stride,
        own_partial,
        own_stride,
        split_tokens,
    });
    let attention = attention_kernel(WORKGROUP);
    for kernel in [merge_kernel(), append_kernel(), Kernel::TableUpdate, attention] {
        assert_same_struct(&kernel, "StepHeader", &header, size_of::<StepHeader>());
        assert_same_struct(&kernel, "TileClass", &class, size_of::<TileClass>());
        assert_same_struct(&kernel, "QueryTile", &tile, size_of::<QueryTile>());
        assert_same_struct(&kernel, "Merge", &merge, size_of::<Merge>());
    }
    // The shader counts words where the host counts structs.
    let words =
        (size_of::<StepHeader>() / 4, size_of::<TileClass>() / 4, size_of::<QueryTile>() / 4, size_of::<Merge>() / 4);
    assert_eq!((words, TILE_CLASSES), ((18, 3, 8, 8), 6));
    let step = text(&attention);
    assert!(step.contains("HEADER_WORDS + 3u * class_idx") && step.contains("tiles.tiles_base + 8u * idx"));
    assert!(text(&merge_kernel()).contains("header.merges_base + 8u * idx"));
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
    assert_eq!(append.constants.get("SKIP_SLOT"), Some(&SKIP_SLOT));
    for kernel in [append_kernel(), Kernel::TableUpdate].iter().chain(&transfer_kernels()) {
        assert_eq!(reflect(kernel, &text(kernel)).invocations, ITEM_LANES, "{kernel}");
    }
    let attention = attention_kernel(WORKGROUP);
    let attention = reflect(&attention, &text(&attention)).constants;
    assert_eq!(attention.get("NO_PARTIAL"), Some(&NO_PARTIAL));
    assert_eq!(attention.get("HEADER_WORDS"), Some(&(size_of::<StepHeader>() as u32 / 4)));
}

#[test]
fn a_swapped_member_is_noticed() {
    let kernel = merge_kernel();
    let right = text(&kernel);
    let wrong = right.replacen("num_queries: u32,\n    num_slots: u32,", "num_slots: u32,\n    num_queries: u32,", 1);
    assert_ne!(right, wrong, "nothing was swapped");
    let header = |text| reflect(&kernel, text).structs["StepHeader"].clone();
    assert_ne!(header(&right), header(&wrong));

    let wider = right.replacen("    padding_1: u32,", "    padding_1: vec2<u32>,", 1);
    assert_ne!(right, wider, "nothing was widened");
    let params = |text| reflect(&kernel, text).structs["MergeParams"].clone();
    assert_ne!(params(&right), params(&wider));
}

#[test]
fn a_shader_beyond_its_capabilities_is_noticed() {
    let plain = attention_kernel(WORKGROUP);
    let subgroups = text(&attention_kernel(subgroup(8)));
    // The text of another class of devices must not pass as that of one without subgroups.
    let refused = std::panic::catch_unwind(|| translate(&plain, &subgroups));
    assert!(refused.is_err());
}
