//! The kernels that treat blocks as a whole, without a device: accepted, translated, and of the host's mind.

use std::mem::offset_of;

use super::shader_text::{Reflection, Translated, reflect, translate};
use crate::formats::KvDtype;
use crate::gpu::kernel::shape::KvShape;
use crate::gpu::kernel::{ITEM_LANES, Kernel};
use crate::gpu::value::ClearValue;
use crate::plan::{BlockCopy, StepHeader};

fn kernels() -> [Kernel; 3] {
    let kv = KvShape { format: KvDtype::Int8, head_dim: 40, v_head_dim: 24, block_size: 6 };
    let fill = |fill| Kernel::BlockClear { kv, fill };
    [Kernel::BlockCopy { kv }, fill(ClearValue::Zeros), fill(ClearValue::Poison)]
}

fn text(kernel: &Kernel) -> String {
    kernel.wgsl()
}

#[test]
fn they_are_translated_for_every_api_and_keep_the_default_limits() {
    for kernel in kernels() {
        let Translated { spirv_words, msl, hlsl } = translate(&kernel, &text(&kernel));
        assert!(spirv_words > 100 && msl.contains("kernel void main_") && hlsl.contains("void main("), "{kernel}");
        let Reflection { entry_points, constants, invocations, storage_buffers, workgroup_bytes, .. } =
            reflect(&kernel, &text(&kernel));
        assert_eq!(invocations, ITEM_LANES, "{kernel}");
        // Codes of 40 and of 24 bytes are three units and two, and the scale is one more.
        assert_eq!((constants["K_HEAD_UNITS"], constants["V_HEAD_UNITS"]), (6 * 4, 6 * 3), "{kernel}");
        assert_eq!((storage_buffers, workgroup_bytes), (3, 0), "{kernel}");
        assert_eq!(entry_points, ["main"], "{kernel}");
        assert!(!kernel.needs_subgroups());
    }
    let words = kernels().map(|kernel| reflect(&kernel, &text(&kernel)).constants.get("CLEAR_WORD").copied());
    assert_eq!(words, [None, Some(0), Some(u32::MAX)]);
}

#[test]
fn lists_lie_where_the_host_puts_them() {
    for kernel in kernels() {
        let (members, size) = &reflect(&kernel, &text(&kernel)).structs["StepHeader"];
        assert_eq!(*size as usize, size_of::<StepHeader>());
        for (name, offset) in [
            ("num_copies", offset_of!(StepHeader, num_copies)),
            ("copies_base", offset_of!(StepHeader, copies_base)),
            ("num_clears", offset_of!(StepHeader, num_clears)),
            ("clears_base", offset_of!(StepHeader, clears_base)),
        ] {
            let member = members.iter().find(|member| member.name == name).unwrap();
            assert_eq!(member.offset as usize, offset, "{name}");
        }
    }
    // The shader numbers the words of a copy instead of naming them: two of them, the source first.
    assert_eq!((offset_of!(BlockCopy, source), offset_of!(BlockCopy, target), size_of::<BlockCopy>()), (0, 4, 8));
    let copy = text(&kernels()[0]);
    assert!(copy.contains("let copy = header.copies_base + 2u * at.entry;"), "{copy}");
    assert!(
        copy.contains("let source = step[copy];") && copy.contains("let target_block = step[copy + 1u];"),
        "{copy}"
    );
}
