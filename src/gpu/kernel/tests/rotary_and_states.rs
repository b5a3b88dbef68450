//! The kernels that turn rows and merge states.

use std::mem::offset_of;

use super::shader_text::reflect;
use crate::formats::KvDtype;
use crate::gpu::kernel::params::{RotateParams, StateParams};
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::kernel::variant::IoFormat;
use crate::gpu::kernel::{ITEM_LANES, Kernel};
use crate::gpu::value::{MropeSections, RotaryShape, RotaryStyle, RowChange};

/// Compares a uniform struct with its host twin: names, offsets, bytes.
#[track_caller]
fn assert_words<const WORDS: usize>(kernel: &Kernel, name: &str, host: [(&str, usize); WORDS], host_bytes: usize) {
    let (members, bytes) = &reflect(kernel, &kernel.wgsl()).structs[name];
    let members: Vec<_> = members.iter().map(|member| (&*member.name, member.offset as usize, member.size)).collect();
    assert_eq!((members, *bytes as usize), (host.map(|(name, offset)| (name, offset, 4)).to_vec(), host_bytes));
}

const ROTARY: RotaryShape = RotaryShape { style: RotaryStyle::HalfSplit, dims: 64, sections: None };

#[test]
fn kernels_hold_what_becomes_of_rows_and_nothing_else_of_it() {
    let kv = KvShape { format: KvDtype::F16, head_dim: 64, v_head_dim: 64, block_size: 16 };
    for (norm, rotary) in [(false, None), (false, Some(ROTARY)), (true, None), (true, Some(ROTARY))] {
        let change = RowChange { norm, rotary };
        let kernel = Kernel::KvAppend { kv, io_format: IoFormat::F16, change };
        let text = kernel.wgsl();
        assert_eq!(text.contains("> rotations: array"), rotary.is_some(), "{kernel}");
        assert_eq!(text.contains("> norm_weights: array"), norm, "{kernel}");
        // The tables of sequences come along in the group of the step, though no append reads them.
        assert!(reflect(&kernel, &text).storage_buffers < 8, "{kernel}");
    }
    let change = RowChange { norm: false, rotary: Some(ROTARY) };
    let kernel = Kernel::RotateQueries { head_dim: 64, io_format: IoFormat::F16, change };
    assert_eq!(reflect(&kernel, &kernel.wgsl()).invocations, ITEM_LANES);
}

#[test]
fn kernels_are_named_by_what_becomes_of_rows() {
    let name = |norm, rotary| {
        let change = RowChange { norm, rotary };
        Kernel::RotateQueries { head_dim: 64, io_format: IoFormat::F32, change }.to_string()
    };
    let sections = MropeSections::new([8, 12, 12]);
    assert_eq!(name(false, Some(ROTARY)), "rotate_queries d64 f32-io half-split64");
    assert_eq!(name(true, None), "rotate_queries d64 f32-io norm");
    let turned = |sections| Some(RotaryShape { sections: Some(sections), ..ROTARY });
    assert_eq!(name(true, turned(sections)), "rotate_queries d64 f32-io norm half-split64 sections8-12-12");
    let dealt = turned(sections.with_interleaved(true));
    assert_eq!(name(false, dealt), "rotate_queries d64 f32-io half-split64 dealt8-12-12");
}

#[test]
fn their_uniforms_are_laid_out_as_on_the_host() {
    let host = [
        ("num_q_heads", offset_of!(RotateParams, num_q_heads)),
        ("q_base", offset_of!(RotateParams, q_base)),
        ("q_stride", offset_of!(RotateParams, q_stride)),
        ("rotated_base", offset_of!(RotateParams, rotated_base)),
        ("rotated_stride", offset_of!(RotateParams, rotated_stride)),
        ("norm_base", offset_of!(RotateParams, norm_base)),
        ("norm_eps", offset_of!(RotateParams, norm_eps)),
        ("padding_0", offset_of!(RotateParams, padding_0)),
    ];
    let change = RowChange { norm: true, rotary: Some(ROTARY) };
    let kernel = Kernel::RotateQueries { head_dim: 64, io_format: IoFormat::F16, change };
    assert_words(&kernel, "RotateParams", host, size_of::<RotateParams>());
    let host = [
        ("num_states", offset_of!(StateParams, num_states)),
        ("num_heads", offset_of!(StateParams, num_heads)),
        ("head_words", offset_of!(StateParams, head_words)),
        ("a_base", offset_of!(StateParams, a_base)),
        ("a_stride", offset_of!(StateParams, a_stride)),
        ("b_base", offset_of!(StateParams, b_base)),
        ("b_stride", offset_of!(StateParams, b_stride)),
        ("a_lse_base", offset_of!(StateParams, a_lse_base)),
        ("b_lse_base", offset_of!(StateParams, b_lse_base)),
        ("padding_0", offset_of!(StateParams, padding_0)),
        ("padding_1", offset_of!(StateParams, padding_1)),
        ("padding_2", offset_of!(StateParams, padding_2)),
    ];
    assert_words(&Kernel::MergeStates { io_format: IoFormat::F32 }, "StateParams", host, size_of::<StateParams>());
}
